"""The stand-in for the Hub and its CDN: one real nginx for both, on loopback.

The hub answers revision, tree and resolve from maps and small files, with no program of ours in the
path: nginx answers tens of thousands of such requests a second, a hub written for the purpose would
only be slower. LFS files are redirected with 302 to the CDN, another origin, under a URL that looks
signed; small ones with 307 to the hub itself, as the Hub does. Between client and nginx stands, where
a profile wants it, the kernel's pacing, TLS or the proxy `delay`.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from .content import Entry, Repository
from .profiles import Profile

OWNER = "bench"
TREE_PAGE = 1000
WINDOW_BYTES = 4 * 1024 * 1024
# Not in Python's socket module.
SO_MAX_PACING_RATE = 47
SEND_BUFFER_BYTES = 512 * 1024
QUERY = "Expires=4102444800&Policy=eyJTdGF0ZW1lbnQiOltdfQ__&Signature=c2lnbmVk~x-&Key-Pair-Id=K1"
LOG_FLUSH_S = 0.2


@dataclass(frozen=True)
class Request:
    """One answered request, as nginx logged it: seconds of the clock, bytes with and without headers."""

    end: float
    duration: float
    connection: int
    status: int
    sent: int
    body: int
    method: str
    path: str
    bytes_range: str

    @property
    def start(self) -> float:
        return self.end - self.duration


class Server:
    """nginx (and the proxy) for one profile; a context manager that leaves no process."""

    def __init__(self, profile: Profile, repository: Repository, folder: Path, tools: Path):
        self.profile, self.repository, self.folder, self.tools = profile, repository, folder, tools
        self.processes: list[subprocess.Popen] = []
        self.ca: Path | None = None
        self.scheme = "https" if profile.tls else "http"
        hub, cdn, hub_far, cdn_far = free_ports(4)
        self.near = {"hub": hub, "cdn": cdn}
        self.far = {"hub": hub_far, "cdn": cdn_far} if profile.rtt_ms else self.near
        self.offsets = {"hub": 0, "cdn": 0}

    @property
    def hub(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.far['hub']}"

    @property
    def cdn(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.far['cdn']}"

    @property
    def repo(self) -> str:
        return f"{OWNER}/{self.repository.name}"

    def resolve_url(self, entry: Entry) -> str:
        return f"{self.hub}/{self.repo}/resolve/{self.repository.commit}/{entry.path}"

    def __enter__(self) -> "Server":
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "api").mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        try:
            if self.profile.tls:
                self.ca = make_certificates(self.folder)
            self._write_answers()
            (self.folder / "nginx.conf").write_text(self._configuration())
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def _start(self) -> None:
        environment = {"PATH": os.environ["PATH"]}
        passed = []
        if self.profile.pace:
            # Accepted connections inherit the listener's pacing; it must not block, or a worker would.
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, self.profile.pace)
            # The log takes what is in the kernel's buffer for sent: that is to be little beside a request.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listener.setblocking(False)
            listener.bind(("127.0.0.1", self.near["cdn"]))
            listener.listen(511)
            passed.append(listener)
            environment["NGINX"] = f"{listener.fileno()};"
        command = [find_nginx(), "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]
        log = open(self.folder / "nginx.err", "wb")
        with log:
            self.processes.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 pass_fds=[s.fileno() for s in passed], start_new_session=True)
            )
            for listener in passed:
                listener.close()
            if self.profile.rtt_ms:
                routes = [f"127.0.0.1:{self.far[k]}=127.0.0.1:{self.near[k]}" for k in ("hub", "cdn")]
                delay = [str(self.tools / "delay"), str(self.profile.rtt_ms), str(WINDOW_BYTES), *routes]
                self.processes.append(
                    subprocess.Popen(delay, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
                )
        for port in [*self.near.values(), *self.far.values()]:
            self._wait_for(port)

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                dead = any(process.poll() is not None for process in self.processes)
                if dead or time.monotonic() > deadline:
                    text = (self.folder / "nginx.err").read_text(errors="replace")
                    raise RuntimeError(f"the server did not start: {text.strip()[-2000:]}") from None
                time.sleep(0.02)

    # What it used and sent.

    def cpu_seconds(self) -> float:
        """User and system time so far of nginx's master and workers and of the proxy."""
        pids = [process.pid for process in self.processes]
        return sum(cpu_of(pid) for parent in pids for pid in [parent, *children_of(parent)])

    def requests(self) -> dict[str, list[Request]]:
        """What `hub` and `cdn` answered since the last call."""
        time.sleep(2 * LOG_FLUSH_S)
        found = {}
        for name in ("hub", "cdn"):
            with open(self.folder / f"{name}.log", "rb") as file:
                file.seek(self.offsets[name])
                text = file.read()
            # A line cut in two is read whole the next time.
            text = text[: text.rfind(b"\n") + 1]
            self.offsets[name] += len(text)
            found[name] = [parse_request(line) for line in text.decode().splitlines()]
        return found

    # What it says.

    def _write_answers(self) -> None:
        repository = self.repository
        api = self.folder / "api"
        info = {
            "_id": "0" * 24,
            "id": self.repo,
            "modelId": self.repo,
            "author": OWNER,
            "sha": repository.commit,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "private": False,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [{"rfilename": entry.path} for entry in repository.entries],
        }
        (api / "info.json").write_text(json.dumps(info))
        tree = tree_entries(repository)
        for page in range(self._pages()):
            part = tree[page * TREE_PAGE : (page + 1) * TREE_PAGE]
            (api / f"tree-{page}.json").write_text(json.dumps(part))

    def _pages(self) -> int:
        return -(-len(tree_entries(self.repository)) // TREE_PAGE)

    def _configuration(self) -> str:
        repository, folder, repo = self.repository, self.folder, self.repo
        commit = repository.commit
        tree = f"{self.hub}/api/models/{repo}/tree/{commit}?recursive=true&expand=false&limit={TREE_PAGE}"
        etags = "".join(f'"{e.path}" "{e.etag}";\n' for e in repository.entries)
        sizes = "".join(f'"{e.path}" {e.size};\n' for e in repository.entries)
        pages = "".join(f'"{n}" tree-{n};\n' for n in range(1, self._pages()))
        links = "".join(
            f'"{n or ""}" \'<{tree}&cursor={n + 1}>; rel="next"\';\n' for n in range(self._pages() - 1)
        )
        secure, tls = "", ""
        if self.profile.tls:
            secure = " ssl"
            tls = f"ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key; ssl_session_cache shared:s:1m;"
        temporary = "".join(
            f"{kind}_temp_path {folder}/tmp;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        linked = "add_header X-Repo-Commit $commit always; add_header X-Linked-Etag $etag; add_header X-Linked-Size $size; add_header Accept-Ranges bytes; add_header ETag $etag;"
        return f"""
{user} daemon off; worker_processes {os.cpu_count()}; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  log_format lines '$msec $request_time $connection $status $bytes_sent $body_bytes_sent $request_method $uri "$http_range"';
  sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000; keepalive_timeout 75; absolute_redirect off;
  server_tokens off; default_type application/octet-stream; gzip off; {temporary} {tls}
  map_hash_max_size 65536; map_hash_bucket_size 256; variables_hash_max_size 4096;
  map "" $commit {{ default {commit}; }}
  map $path $oid {{ default ""; {etags} }}
  map $oid $etag {{ default '"$oid"'; "" ""; }}
  map $path $size {{ default ""; {sizes} }}
  map $arg_cursor $page {{ default tree-0; {pages} }}
  map $arg_cursor $next {{ default ""; {links} }}
  server {{
    listen 127.0.0.1:{self.near["hub"]}{secure};
    access_log {folder}/hub.log lines buffer=64k flush={int(LOG_FLUSH_S * 1000)}ms;
    root {folder}/api;
    location ~ ^/api/models/{repo}(/revision/[^/]+)?$ {{
      default_type application/json; add_header X-Repo-Commit $commit; try_files /info.json =404;
    }}
    location ~ ^/api/models/{repo}/tree/ {{
      default_type application/json; add_header X-Repo-Commit $commit; add_header Link $next; try_files /$page.json =404;
    }}
    location ~ ^/{repo}/resolve/[^/]+/(?<path>.+\\.safetensors)$ {{
      {linked} return 302 {self.cdn}/files/$path?{QUERY};
    }}
    location ~ ^/{repo}/resolve/[^/]+/(?<path>.+)$ {{
      {linked} return 307 /api/resolve-cache/models/{repo}/{commit}/$path?etag=%22$oid%22;
    }}
    location ~ ^/api/resolve-cache/models/{repo}/{commit}/(?<path>.+)$ {{
      etag off; add_header X-Repo-Commit $commit; add_header ETag $etag; alias {repository.folder}/$path;
    }}
    location / {{ return 404; }}
  }}
  server {{
    listen 127.0.0.1:{self.near["cdn"]}{secure};
    access_log {folder}/cdn.log lines buffer=64k flush={int(LOG_FLUSH_S * 1000)}ms;
    location /files/ {{ alias {repository.folder}/; autoindex on; }}
    location / {{ return 404; }}
  }}
}}
"""


def tree_entries(repository: Repository) -> list[dict]:
    """The recursive listing, folders included."""
    folders = sorted({str(parent) for e in repository.entries for parent in Path(e.path).parents} - {"."})
    tree = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in folders]
    for entry in repository.entries:
        item = {"type": "file", "oid": entry.oid, "size": entry.size, "path": entry.path}
        if entry.lfs:
            item["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
        tree.append(item)
    return tree


def parse_request(line: str) -> Request:
    end, duration, connection, status, sent, body, method, rest = line.split(" ", 7)
    path, _, bytes_range = rest.partition(' "')
    return Request(float(end), float(duration), int(connection), int(status), int(sent), int(body), method, path,
                   bytes_range.rstrip('"'))


def find_nginx() -> str:
    found = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    if not found:
        raise SystemExit("nginx is not installed and nothing can be compared without it (Debian: apt-get install nginx-light)")
    return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def make_certificates(folder: Path) -> Path:
    """An authority of our own and a certificate of it for 127.0.0.1; returns the authority's file."""
    ca, key = folder / "ca.pem", folder / "ca.key"
    extensions = folder / "server.ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n")
    fresh = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    steps = [
        [*fresh, "-x509", "-keyout", str(key), "-out", str(ca), "-days", "30", "-subj", "/CN=comparison authority",
         "-addext", "keyUsage=critical,keyCertSign,cRLSign"],
        [*fresh, "-keyout", str(folder / "server.key"), "-out", str(folder / "server.csr"), "-subj", "/CN=127.0.0.1"],
        ["openssl", "x509", "-req", "-in", str(folder / "server.csr"), "-CA", str(ca), "-CAkey", str(key),
         "-CAcreateserial", "-out", str(folder / "server.pem"), "-days", "30", "-extfile", str(extensions)],
    ]
    for step in steps:
        subprocess.run(step, check=True, capture_output=True)
    return ca


def cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
