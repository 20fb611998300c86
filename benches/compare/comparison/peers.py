"""Who is compared: how each is got, started, and told where the server is.

A peer that cannot be had is reported with the reason and left out; the rest runs.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .server import Server

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "benches" / "compare"


class Missing(Exception):
    """Why a peer cannot take part."""


@dataclass(frozen=True)
class Run:
    """Where one run puts things: `target` is the folder to fill, fresh; `scratch` is outside the figures."""

    server: Server
    target: Path
    scratch: Path


class Peer:
    """A client. `verifies` says whether it checks content; `syncs`, whether it ends with all of it durable."""

    name = ""
    verifies = False
    syncs = False
    speaks_hub = True
    note = ""

    def __init__(self) -> None:
        self.version = ""

    def prepare(self, setup: "Setup") -> None:
        """Finds or installs it and sets its version, or raises `Missing`."""
        raise NotImplementedError

    def command(self, run: Run) -> list[str]:
        raise NotImplementedError

    def environment(self, run: Run) -> dict[str, str]:
        return {}

    def folder(self, run: Run) -> Path:
        """Where the repository's files lie afterwards."""
        return run.target


@dataclass
class Setup:
    """What the peers are built and installed with."""

    cache: Path
    muster: Path | None
    say: object

    def __post_init__(self) -> None:
        self._asked_apt: set[str] = set()

    @property
    def tools(self) -> Path:
        return self.cache / "cargo" / "tools" / "release"

    def program(self, name: str, package: str) -> str:
        """A program on PATH, installed from Debian's package if we may."""
        path = os.environ["PATH"] + ":/usr/sbin"
        if not shutil.which(name, path=path) and os.geteuid() == 0 and shutil.which("apt-get") and package not in self._asked_apt:
            self._asked_apt.add(package)
            self.say(f"apt-get install {package}")
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for step in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
                finish(["apt-get", *step], environment)
        found = shutil.which(name, path=path)
        if not found:
            raise Missing(f"{name} is not on PATH (Debian: apt-get install {package})")
        return found

    def cargo(self, manifest: Path, name: str, *arguments: str) -> Path:
        """Builds a package of ours into the cache; returns the folder of its programs."""
        if not shutil.which("cargo"):
            raise Missing("cargo is not installed")
        target = self.cache / "cargo" / name
        self.say(f"cargo build --release {manifest.relative_to(ROOT)}")
        command = ["cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", str(manifest), *arguments]
        code, output = finish([*command, "--target-dir", str(target)])
        if code:
            raise Missing(f"cargo build failed: {last_line(output)}")
        return target / "release"

    def venv(self, name: str, *requirements: str) -> Path:
        """A virtual environment with these packages; returns its `bin`."""
        folder = self.cache / "venv" / name
        stamp = folder / "installed"
        wanted = f"{sys.version}\n{' '.join(requirements)}\n{folder}"
        if not stamp.is_file() or stamp.read_text() != wanted:
            self.say(f"pip install {' '.join(requirements)}")
            shutil.rmtree(folder, ignore_errors=True)
            for step in ([sys.executable, "-m", "venv", str(folder)],
                         [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *requirements]):
                code, output = finish(step)
                if code:
                    raise Missing(f"{' '.join(step[-3:])} failed: {last_line(output)}")
            stamp.write_text(wanted)
        return folder / "bin"


class Muster(Peer):
    name = "muster"
    verifies = True
    syncs = True
    note = "at the defaults; verifies and syncs every file"
    arguments: tuple[str, ...] = ()

    def prepare(self, setup: Setup) -> None:
        if setup.muster:
            if not os.access(setup.muster, os.X_OK):
                raise Missing(f"{setup.muster} is no program")
            self.program, built = setup.muster.resolve(), "as given by --muster"
        else:
            self.program = setup.cargo(ROOT / "Cargo.toml", "muster", "--bin", "muster") / "muster"
            built = git_state()
        self.version = f"{first_line([self.program, '--version'])} ({built})"

    def command(self, run: Run) -> list[str]:
        return [str(self.program), "pull", run.server.repo, "--volume", str(run.target), "--quiet", *self.arguments]

    def folder(self, run: Run) -> Path:
        return run.target / run.server.repo


class Muster64(Muster):
    name = "muster-64"
    note = "--connections 64"
    arguments = ("--connections", "64")


class Hf(Peer):
    name = "hf"
    note = "the official client, newest; 8 workers, verifies nothing"
    requirements = ("huggingface_hub",)
    packages = ("huggingface_hub", "hf_xet")

    def prepare(self, setup: Setup) -> None:
        self.bin = setup.venv(self.name, *self.requirements)
        script = "import importlib.metadata as m, sys; print(' + '.join(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
        self.version = first_line([self.bin / "python", "-c", script, *self.packages])

    def command(self, run: Run) -> list[str]:
        return [str(self.bin / "hf"), "download", run.server.repo, "--local-dir", str(run.target)]


class HfTransfer(Hf):
    name = "hf-transfer"
    note = "huggingface_hub 0.34 with hf_transfer, which takes files above 50 MB; verifies nothing"
    requirements = ("huggingface_hub==0.34.*", "hf_transfer")
    packages = ("huggingface_hub", "hf_transfer")

    def environment(self, run: Run) -> dict[str, str]:
        return {"HF_HUB_ENABLE_HF_TRANSFER": "1"}


class HfHub(Peer):
    name = "hf-hub"
    note = "the Rust crate 1.0, `snapshot_download` into a folder; 8 workers, neither hashes nor syncs"

    def prepare(self, setup: Setup) -> None:
        self.program = setup.cargo(HERE / "peer-hf-hub" / "Cargo.toml", "hf-hub") / "peer-hf-hub"
        self.version = "hf-hub 1.0.0"

    def command(self, run: Run) -> list[str]:
        return [str(self.program), run.server.repo, str(run.target)]


class Aria2(Peer):
    name = "aria2c"
    verifies = True
    note = "-x16 -s16, SHA-256 of LFS files; the small ones go unchecked"
    # Its default writes zeros first, which would be no fair time.
    arguments: tuple[str, ...] = ()

    def prepare(self, setup: Setup) -> None:
        self.program = setup.program("aria2c", "aria2")
        self.version = first_line([self.program, "--version"])

    def command(self, run: Run) -> list[str]:
        lines = []
        for entry in run.server.repository.entries:
            lines += [run.server.resolve_url(entry), f"  out={entry.path}"]
            if entry.lfs:
                lines.append(f"  checksum=sha-256={entry.sha256}")
        listing = run.scratch / "aria2.txt"
        listing.write_text("\n".join(lines) + "\n")
        trust = [f"--ca-certificate={run.server.ca}"] if run.server.ca else []
        return [self.program, "-x16", "-s16", "-c", "--file-allocation=falloc", *self.arguments, "--no-conf=true", "--quiet=true",
                "--auto-file-renaming=false", f"--dir={run.target}", f"--input-file={listing}", *trust]


class Aria2Pieces(Aria2):
    name = "aria2c-k1m"
    note = "-x16 -s16 -k1M -j4: the line that circulates; shards of any size are split"
    arguments = ("-k1M", "-j4")


class Rclone(Peer):
    name = "rclone"
    speaks_hub = False
    note = "from the CDN's index pages, past the hub; 8 transfers, 8 streams from 64 MB; verifies nothing"

    def prepare(self, setup: Setup) -> None:
        self.program = setup.program("rclone", "rclone")
        self.version = first_line([self.program, "version"])

    def command(self, run: Run) -> list[str]:
        trust = ["--ca-cert", str(run.server.ca)] if run.server.ca else []
        return [self.program, "copy", ":http:", str(run.target), "--http-url", f"{run.server.cdn}/files/", "--transfers", "8",
                "--multi-thread-streams", "8", "--multi-thread-cutoff", "64M", "--config", "/dev/null", *trust]


class Curl(Peer):
    name = "curl"
    verifies = True
    note = "curl --parallel (8), then openssl dgst on all cores; git blobs by git hash-object"

    def prepare(self, setup: Setup) -> None:
        self.program = setup.program("curl", "curl")
        openssl, git = setup.program("openssl", "openssl"), setup.program("git", "git")
        self.version = ", ".join([first_line([self.program, "--version"]).split(" (")[0], first_line([openssl, "version"]),
                                  first_line([git, "--version"])])

    def command(self, run: Run) -> list[str]:
        entries = run.server.repository.entries
        configuration, lfs, blobs = run.scratch / "curl.txt", run.scratch / "lfs.txt", run.scratch / "blobs.txt"
        configuration.write_text("".join(
            f'url = "{run.server.resolve_url(e)}"\noutput = "{run.target / e.path}"\n' for e in entries))
        lfs.write_text("".join(f"{e.sha256} *{e.path}\n" for e in entries if e.lfs))
        # Whole paths: inside a repository git reads relative ones from its top.
        blobs.write_text("".join(f"{e.oid} {run.target / e.path}\n" for e in entries if not e.lfs))
        trust = f"--cacert {shlex.quote(str(run.server.ca))}" if run.server.ca else ""
        script = f"""
set -e -o pipefail
{self.program} --silent --show-error --fail --location --create-dirs --parallel --parallel-max 8 {trust} \
--config {shlex.quote(str(configuration))}
cd {shlex.quote(str(run.target))}
cut -d' ' -f2- {shlex.quote(str(lfs))} | cut -c2- | xargs -r -d '\\n' -n 4 -P {os.cpu_count()} openssl dgst -sha256 -r | sort > ../sums
sort {shlex.quote(str(lfs))} | cmp - ../sums
cut -d' ' -f2- {shlex.quote(str(blobs))} | git hash-object --no-filters --stdin-paths > ../oids
cut -d' ' -f1 {shlex.quote(str(blobs))} | cmp - ../oids
"""
        return ["bash", "-c", script]


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in [Muster, Muster64, HfHub, Curl, Hf, HfTransfer, Aria2, Aria2Pieces, Rclone]
}


def finish(command: list[str], environment: dict | None = None) -> tuple[int, str]:
    """Runs a step of the preparation: its exit and output. Interrupted, it ends with all that it started."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = process.communicate()
    except BaseException:
        # Its own session, so its own group: nobody else is in it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, output


def first_line(command: list) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    return ((done.stdout or done.stderr).strip().splitlines() or ["version unknown"])[0]


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def git_state() -> str:
    described = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return f"commit {described.stdout.strip()}" if described.returncode == 0 else "no git"
