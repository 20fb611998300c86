"""The machine the figures are from, and its physical limits, measured in the same rounds."""

import os
import platform
import resource
import shutil
import subprocess
import time
from pathlib import Path

from .profiles import MIB
from .server import Server


def describe(work: Path) -> dict[str, str]:
    cpu = next((line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    flags = next((line.split() for line in _lines("/proc/cpuinfo") if line.startswith("flags")), [])
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    device, kind = mount_of(work)
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores, SHA instructions: {'yes' if 'sha_ni' in flags or 'sha2' in flags else 'no'}",
        "memory": f"{memory / 2**20:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": f"{kind} on {device}, {shutil.disk_usage(work).free / 1e9:.0f} GB free",
        "load when it began": f"{os.getloadavg()[0]:.2f}",
    }


def mount_of(path: Path) -> tuple[str, str]:
    """Device and type of the file system that holds the path."""
    best = ("?", "?", "")
    for line in _lines("/proc/mounts"):
        device, where, kind = line.split()[:3]
        inside = str(path.resolve()).startswith(where.rstrip("/") + "/") or where == "/"
        if inside and len(where) >= len(best[2]):
            best = (device, kind, where)
    return best[0], best[1]


def limits(server: Server, work: Path, scale: float) -> dict[str, float]:
    """MB/s: disk write with a sync, loopback fetch by two curls, SHA-256 on one core and on all."""
    scratch = work / "limit"
    try:
        return _limits(server, scratch, scale)
    finally:
        scratch.unlink(missing_ok=True)


def _limits(server: Server, scratch: Path, scale: float) -> dict[str, float]:
    size = max(16 * MIB, int(1024 * MIB * min(1.0, scale)))
    found = {"disk_write_sync": _write(scratch, size)}
    cores = os.cpu_count()
    dgst = ["openssl", "dgst", "-sha256", str(scratch)]
    if shutil.which("openssl"):
        cpu = _children_cpu_s()
        found["sha256_one_core"] = size / 1e6 / _seconds([dgst])
        # What the CPU targets are reckoned with: others on the machine change this least.
        found["sha256_cpu_second"] = size / 1e6 / (_children_cpu_s() - cpu)
        found["sha256_all_cores"] = cores * size / 1e6 / _seconds([dgst] * cores)
    if shutil.which("curl"):
        found["loopback_two_curl"] = _fetch(server)
    return found


def _write(path: Path, size: int) -> float:
    block = os.urandom(MIB)
    os.sync()
    start = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // MIB):
            file.write(block)
        os.fsync(file.fileno())
    return size / 1e6 / (time.monotonic() - start)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _seconds(commands: list[list[str]]) -> float:
    start = time.monotonic()
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands]
    try:
        for process in running:
            process.wait()
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return time.monotonic() - start


def _fetch(server: Server) -> float:
    """Two connections, each through every second of the largest files, at most 1 GiB (paced: 2 × 64 MiB)."""
    entries = sorted(server.repository.entries, key=lambda e: -e.size)
    # Small ones would tell of requests, not of bytes; one that is alone is fetched by both.
    entries = [entry for entry in entries if 4 * entry.size >= entries[0].size]
    budget = (64 if server.profile.pace else 512) * MIB
    trust = ["--cacert", str(server.ca)] if server.ca else []
    commands, total = [], 0
    for half in (entries[0::2] or entries, entries[1::2] or entries):
        urls, left = [], budget
        for entry in half:
            if left <= 0:
                break
            urls += [f"{server.cdn}/files/{entry.path}", "-o", "/dev/null"]
            left -= entry.size
            total += min(entry.size, budget)
        commands.append(["curl", "-s", "--noproxy", "*", "-r", f"0-{budget - 1}", *trust, *urls])
    return total / 1e6 / _seconds(commands)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
