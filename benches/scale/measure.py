"""What is measured with: one command with its resources, the loopback alone, SHA-256 alone, plain writing."""

import contextlib
import hashlib
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import threading
import time

CHUNK = 1 << 20
HASHED = 64 << 20


def cores():
    return sorted(os.sched_getaffinity(0))


def run(command, pinned=None, env=None):
    """Runs a command to its end: wall and CPU seconds, peak memory and descriptors, what it read and wrote.

    Peak memory is the kernel's high-water mark, looked at every 5 ms: `ru_maxrss` would count what this very
    program was before the command took its place.
    """
    pin = (lambda: os.sched_setaffinity(0, pinned)) if pinned else None
    began = time.monotonic()
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=pin,
        env={**os.environ, **(env or {})},
    )
    noise = []
    reader = threading.Thread(target=lambda: noise.append(child.stderr.read()), daemon=True)
    reader.start()
    ended = threading.Event()

    def wait():
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        wait.wall = time.monotonic() - began
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    peak = {"rss_mib": 0, "anonymous_mib": 0, "descriptors": 0, "threads": 0}
    while not ended.wait(0.005):
        with contextlib.suppress(OSError, KeyError):
            with open(f"/proc/{child.pid}/status") as file:
                status = dict(line.split(":", 1) for line in file)
            value = lambda name: int(status[name].split()[0])
            peak["rss_mib"] = max(peak["rss_mib"], value("VmHWM") / 1024)
            peak["anonymous_mib"] = max(peak["anonymous_mib"], value("RssAnon") / 1024)
            peak["threads"] = max(peak["threads"], value("Threads"))
            peak["descriptors"] = max(peak["descriptors"], len(os.listdir(f"/proc/{child.pid}/fd")))
    with open(f"/proc/{child.pid}/io") as file:
        io = {key: int(value) for key, value in (line.split(":") for line in file)}
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    reader.join(5)
    if child.returncode:
        raise RuntimeError(f"{command} ended with {child.returncode}: {noise[0][-2000:].decode(errors='replace')}")
    return {
        "wall_s": wait.wall, "user_s": usage.ru_utime, "system_s": usage.ru_stime, "cpu_s": usage.ru_utime + usage.ru_stime,
        "switches": usage.ru_nvcsw + usage.ru_nivcsw, **peak, "read_mib": io["rchar"] / 2**20,
    }


@contextlib.contextmanager
def mirror(muster, volume):
    """A `muster mirror` on loopback: its address, and a function that tells its CPU seconds so far."""
    command = [muster, "mirror", "--volume", volume, "--listen", "127.0.0.1:0", "--quiet"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        url = server.stdout.readline().decode().strip()
        if not url.startswith("http://"):
            raise RuntimeError("the mirror did not start")
        yield url, lambda: cpu_of(server.pid)
    finally:
        server.terminate()
        server.wait()


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _together(count, work, *arguments, pinned=None):
    """Runs `work(index, start, *arguments)` in `count` processes; bytes a second from the common start to the last end."""
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(count + 1), context.SimpleQueue()

    def process(index):
        if pinned:
            os.sched_setaffinity(0, pinned)
        answers.put(work(index, start, *arguments))

    processes = [context.Process(target=process, args=(index,)) for index in range(count)]
    for one in processes:
        one.start()
    start.wait()
    began = time.monotonic()
    done = [answers.get() for _ in processes]
    took = time.monotonic() - began
    for one in processes:
        one.join()
    return sum(done) / took


def _fetch(_, start, address, next_path, paths, files_max, folder=None):
    buffer = memoryview(bytearray(CHUNK))
    host, port = re.fullmatch(r"http://(.*):(\d+)", address).groups()
    stream = socket.create_connection((host, int(port)))
    start.wait()
    total = 0
    while True:
        with next_path.get_lock():
            at, next_path.value = next_path.value, next_path.value + 1
        if at >= files_max:
            return total
        stream.sendall(f"GET {paths[at % len(paths)]} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            came = stream.recv(4096)
            if not came:
                raise RuntimeError("the server hung up")
            head += came
        head, rest = head.split(b"\r\n\r\n", 1)
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(head[:200])
        left = int(re.search(rb"content-length: *(\d+)", head, re.I)[1]) - len(rest)
        total += left + len(rest)
        file = open(os.path.join(folder, f"fetched-{at}"), "wb", buffering=0) if folder else None
        if file:
            file.write(rest)
        while left:
            came = stream.recv_into(buffer, min(left, CHUNK))
            if not came:
                raise RuntimeError("the server hung up")
            left -= came
            if file:
                file.write(buffer[:came])
        if file:
            file.close()


def fetching(address, model, connections, folder):
    """F: the same to files of `folder`, which go again: what a client does that only fetches."""
    os.makedirs(folder)
    next_path = multiprocessing.get_context("fork").Value("q", 0)
    paths = [f"/{model.repo}/resolve/main/{name}" for name in model.names]
    try:
        return _together(connections, _fetch, address, next_path, paths, len(paths), folder)
    finally:
        shutil.rmtree(folder)


def loopback(address, model, connections, pinned=None):
    """L: whole files from the mirror by `connections` processes that throw them away: `recv_into`, 1 MiB at most."""
    next_path = multiprocessing.get_context("fork").Value("q", 0)
    paths = [f"/{model.repo}/resolve/main/{name}" for name in model.names]
    return _together(connections, _fetch, address, next_path, paths, len(paths), pinned=pinned)


def _hash(_, start, total):
    buffer = os.urandom(CHUNK)
    start.wait()
    digest = hashlib.sha256()
    for _ in range(total // CHUNK):
        digest.update(buffer)
    return total


def sha256(count, total=1 << 30, pinned=None):
    """S: SHA-256 by OpenSSL (`hashlib`) in `count` processes over 1 MiB of memory, nothing read."""
    return _together(count, _hash, total, pinned=pinned)


def _write(index, start, folder, total):
    buffer = os.urandom(CHUNK)
    path = os.path.join(folder, f"written-{index}")
    start.wait()
    with open(path, "wb", buffering=0) as file:
        for _ in range(total // CHUNK):
            file.write(buffer)
        os.fdatasync(file.fileno())
    os.unlink(path)
    return total


def writing(folder, count, total):
    """Plain writing with a sync, `count` files at a time."""
    os.makedirs(folder, exist_ok=True)
    return _together(count, _write, folder, total)


def openssl_files(paths, count):
    """`openssl dgst -sha256`, one process a core, each given the next file of the list; without openssl, `hashlib`."""
    openssl = shutil.which("openssl")
    order = sorted(paths, key=os.path.getsize, reverse=True)
    lock, at = threading.Lock(), iter(order)

    def work():
        while True:
            with lock:
                path = next(at, None)
            if path is None:
                return
            if openssl:
                subprocess.run([openssl, "dgst", "-sha256", path], check=True, stdout=subprocess.DEVNULL)
            else:
                with open(path, "rb") as file:
                    hashlib.file_digest(file, "sha256")

    began = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return time.monotonic() - began


def cache(paths, keep):
    """Brings files into the page cache, or puts them out of it."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        if keep:
            while os.read(fd, CHUNK):
                pass
        else:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
