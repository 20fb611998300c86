"""One timed run of one peer, and the check of what it left.

Timed is the peer alone. Before it: an empty folder and a `sync`. After it: a `sync`, timed apart; then,
untimed, every file's digest, and the folder's removal, which takes it out of the page cache as well.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .busy import left_when_not_full
from .content import Repository, git_oid
from .peers import Peer, Run
from .profiles import MIB
from .server import Request, Server

LOOK_S = 0.002


@dataclass
class Figures:
    """What one run used. Times in seconds, sizes in bytes; `sync_s` is the `sync` after the peer."""

    wall_s: float = 0.0
    sync_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    server_cpu_s: float = 0.0
    foreign_cpu_s: float = 0.0
    peak_bytes: int = 0
    requests: int = 0
    hub_requests: int = 0
    sent_bytes: int = 0
    exit: int = 0
    wrong: list[str] = field(default_factory=list)
    message: str = ""
    busy_max: int = 0
    left_at_first_drop: float | None = None
    wall_uninterrupted_s: float | None = None
    sent_before_kill: int | None = None
    wall_after_kill_s: float | None = None

    @property
    def ok(self) -> bool:
        return self.exit == 0 and not self.wrong


class Runner:
    """Runs peers against one server. `busy` is the process group of the moment, for whoever must end it."""

    def __init__(self, server: Server, work: Path, tools: Path, limit_s: float):
        self.server, self.work, self.tools, self.limit_s = server, work, tools, limit_s
        self.size = server.repository.size

    def measure(self, peer: Peer) -> Figures:
        """The peer from an empty folder to its end, or to half and then to its end."""
        profile = self.server.profile
        if not profile.interrupted:
            return self._whole(peer)
        alone = self._whole(peer)
        figures = self._interrupted(peer)
        figures.wall_uninterrupted_s = alone.wall_s
        figures.wrong += [f"uninterrupted: {what}" for what in alone.wrong]
        figures.exit = figures.exit or alone.exit
        return figures

    def _whole(self, peer: Peer) -> Figures:
        run = self._fresh()
        figures = self._timed(peer, run)
        self._finish(peer, run, figures)
        return figures

    def _interrupted(self, peer: Peer) -> Figures:
        """Killed when half of the bytes are written, then started again: the figures are of both parts."""
        run = self._fresh()
        first = self._timed(peer, run, kill_at=self.size // 2)
        second = self._timed(peer, run, after_kill=True)
        second.wall_after_kill_s = second.wall_s
        second.sent_before_kill = first.sent_bytes
        second.wall_s += first.wall_s
        second.user_s += first.user_s
        second.system_s += first.system_s
        second.server_cpu_s += first.server_cpu_s
        second.foreign_cpu_s += first.foreign_cpu_s
        second.requests += first.requests
        second.hub_requests += first.hub_requests
        second.sent_bytes += first.sent_bytes
        second.peak_bytes = max(first.peak_bytes, second.peak_bytes)
        if first.exit != -signal.SIGKILL:
            second.wrong.append(f"ended with {first.exit} before it could be killed")
        self._finish(peer, run, second)
        return second

    def _fresh(self) -> Run:
        shutil.rmtree(self.work, ignore_errors=True)
        run = Run(self.server, self.work / "target", self.work / "scratch")
        run.target.mkdir(parents=True)
        (run.scratch / "home" / "tmp").mkdir(parents=True)
        return run

    def _timed(self, peer: Peer, run: Run, kill_at: int | None = None, after_kill: bool = False) -> Figures:
        """Between the two parts of an interrupted run there is no `sync`: it would be a present."""
        report = run.scratch / "figures.json"
        report.unlink(missing_ok=True)
        command = [str(self.tools / "measure"), str(report), *peer.command(run)]
        environment = {**clean_environment(run), **peer.environment(run)}
        if not after_kill:
            self.server.requests()
            os.sync()
        cpu, machine = self.server.cpu_seconds(), machine_cpu_s()
        start = time.monotonic()
        with open(run.scratch / "log", "ab") as log:
            process = subprocess.Popen(command, env=environment, cwd=run.scratch, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=log, start_new_session=True)
        try:
            if kill_at is not None:
                kill_at_written(process, kill_at)
            process.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_session(process)
        end = time.monotonic()
        cpu, machine = self.server.cpu_seconds() - cpu, machine_cpu_s() - machine
        if kill_at is None:
            os.sync()
        synced = time.monotonic()
        figures = Figures(sync_s=synced - end, server_cpu_s=cpu, wall_s=end - start, exit=124)
        found = json.loads(report.read_text()) if report.exists() else {}
        if "exit" in found:
            figures.exit, figures.wall_s = found["exit"], found["wall_s"]
            figures.user_s, figures.system_s, figures.peak_bytes = found["user_s"], found["system_s"], found["peak_bytes"]
            used = figures.user_s + figures.system_s + figures.server_cpu_s
            figures.foreign_cpu_s = max(0.0, machine - used)
        self._count(figures)
        return figures

    def _count(self, figures: Figures) -> None:
        seen = self.server.requests()
        figures.hub_requests = len(seen["hub"])
        figures.requests = len(seen["hub"]) + len(seen["cdn"])
        figures.sent_bytes = sum(request.body for requests in seen.values() for request in requests)
        if self.server.profile.pace and not self.server.profile.interrupted:
            bodies = [request for request in seen["cdn"] if request.method == "GET" and request.status in (200, 206)]
            figures.busy_max, figures.left_at_first_drop = left_when_not_full(bodies)

    def _finish(self, peer: Peer, run: Run, figures: Figures) -> None:
        figures.wrong += wrong_files(self.server.repository, peer.folder(run))
        if not figures.ok:
            text = (run.scratch / "log").read_text(errors="replace").strip()
            figures.message = text[-600:]
        shutil.rmtree(self.work, ignore_errors=True)


def machine_cpu_s() -> float:
    """CPU seconds of everybody so far: user, nice, system, interrupts."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / os.sysconf("SC_CLK_TCK")


def clean_environment(run: Run) -> dict[str, str]:
    """Nothing of the user's, no telemetry, no look for updates, no proxy, a home of its own."""
    home = run.scratch / "home"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "LANG": "C.UTF-8",
        "NO_PROXY": "*",
        "HF_ENDPOINT": run.server.hub,
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if run.server.ca:
        environment |= {name: str(run.server.ca) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")}
    return environment


def kill_at_written(process: subprocess.Popen, limit: int) -> None:
    """Ends the peer with SIGKILL as soon as its processes have written so many bytes."""
    while process.poll() is None:
        pids = session_members(process.pid)
        if sum(written_by(pid) for pid in pids if pid != process.pid) >= limit:
            for pid in pids:
                # `measure` stays: it reports what the killed one used.
                if pid != process.pid:
                    kill(pid)
            return
        time.sleep(LOOK_S)


def end_session(process: subprocess.Popen) -> None:
    """Ends whatever the peer left in its session, `measure` last."""
    for _ in range(50):
        left = [pid for pid in session_members(process.pid) if pid != process.pid]
        if not left:
            break
        for pid in left:
            kill(pid)
        time.sleep(0.02)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def session_members(session: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getsid(int(name)) == session and not is_zombie(int(name)):
                    found.append(int(name))
            except OSError:
                pass
    return found


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def written_by(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def wrong_files(repository: Repository, folder: Path) -> list[str]:
    """What is missing or differs, at most ten of it; hashed here, whatever the peer said."""

    def look(entry) -> str | None:
        path = folder / entry.path
        try:
            size = path.stat().st_size
            if size != entry.size:
                return f"{entry.path}: {size} bytes of {entry.size}"
            hasher = hashlib.sha256() if entry.lfs else git_oid(entry.size)
            with open(path, "rb", buffering=0) as file:
                while block := file.read(4 * MIB):
                    hasher.update(block)
        except OSError as error:
            return f"{entry.path}: {error.strerror}"
        return None if hasher.hexdigest() == entry.etag else f"{entry.path}: wrong content"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [what for what in pool.map(look, repository.entries) if what]
    return found[:10] + ([f"and {len(found) - 10} more"] if len(found) > 10 else [])
