"""Runs `cargo test …` so that nothing it starts can outlive it unseen, and adds up its results.

Owns: the time limit of a run, the check for processes, mounts, loop devices and files left behind,
the closing line `N passed, N failed, N skipped` (skipped: ignored, or a drill that said
`skipped: NAME: WHY`).
Invariant: a process is judged and ended by its id alone. As the
"child subreaper" this program becomes the parent of every orphan below it, in whatever session,
group or environment it hides, and of nothing else. A mount is the tests' when it is in their
temporary folder, and a loop device when its file is.

Usage: run_tests.py SECONDS COMMAND…
"""

import ctypes
import fcntl
import glob
import os
import re
import signal
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
MNT_FORCE = 1
MNT_DETACH = 2
LOOP_CLR_FD = 0x4C01
GRACE_S = 3.0
SKIPPED = re.compile(r"^skipped: (\S+: .+)$")
RESULT = re.compile(r"test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored;")


def main():
    limit_s, command = float(sys.argv[1]), sys.argv[2:]
    become_subreaper()
    signal.signal(signal.SIGTERM, interrupt)
    # Started under nohup it would be ignored, in every test too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    cargo = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    totals = [0, 0, 0]
    reader = threading.Thread(target=pass_on, args=(cargo.stdout, totals), daemon=True)
    reader.start()

    problems = []
    try:
        code = cargo.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        problems.append(f"the tests took longer than {limit_s:.0f} s and were stopped")
        code = 1
    except KeyboardInterrupt:
        problems.append("interrupted")
        code = 1
    stopped = bool(problems)
    folder = os.path.realpath(os.environ["TMPDIR"])
    # First, for a process may wait in a file system that it serves itself: no signal ends that.
    devices = undo_mounts(folder)
    left = descendants() if stopped else wait_for_no_descendants()
    if left and not stopped:
        problems.append("processes of the tests were left behind:")
        problems.extend(f"  {pid} {command_line(pid)}" for pid in left)
    end(left)
    # The pipe closes with the last process that holds it; all of them are gone now.
    reader.join(timeout=GRACE_S)
    devices += undo_mounts(folder)
    if devices and not stopped:
        problems.append("mounts and loop devices of the tests were left behind, and are undone:")
        problems.extend(f"  {line}" for line in devices)
    if code == 0 and not problems:
        problems.extend(files_left_behind(folder))

    sys.stdout.flush()
    for problem in problems:
        print(problem, file=sys.stderr, flush=True)
    print("\n{} passed, {} failed, {} skipped".format(*totals), flush=True)
    sys.exit(1 if problems else code)


def become_subreaper():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


def interrupt(_signal, _frame):
    raise KeyboardInterrupt


def pass_on(stream, totals):
    for line in stream:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        text = line.decode("utf-8", "replace")
        if SKIPPED.match(text.strip()):
            # The test returned early, so the harness says that it passed.
            totals[0] -= 1
            totals[2] += 1
        if found := RESULT.search(text):
            for at, number in enumerate(found.groups()):
                totals[at] += int(number)


def wait_for_no_descendants():
    """What is still there after a grace for processes that are ending anyway."""
    deadline = time.monotonic() + GRACE_S
    while (left := descendants()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def end(pids):
    """Ends what was left; bounded, for a process may start another while it is being ended."""
    for _ in range(100):
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
        pids = descendants()


def descendants():
    """The living processes below this one; the dead ones that are ours are reaped on the way."""
    reap()
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            state, parent = state_and_parent(int(name))
            if parent and state != "Z":
                parents[int(name)] = parent
    own, found, grown = os.getpid(), set(), True
    while grown:
        below = {p for p, parent in parents.items() if parent == own or parent in found}
        grown, found = below != found, below
    return sorted(found)


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def state_and_parent(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError):
        return "", 0


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as line:
            return line.read().replace("\0", " ").strip()
    except OSError:
        return "(ended meanwhile)"


def undo_mounts(folder):
    """Undoes what is mounted in the folder or lies there behind a loop device; says what it was."""
    said = {}
    deadline = time.monotonic() + GRACE_S
    while True:
        mounts, loops = mounts_below(folder), loops_below(folder)
        if not mounts and not loops:
            return list(said.values())
        for point in reversed(mounts):
            said.setdefault(point, f"mount {point}")
            unmount(point)
        for device, file in loops:
            said.setdefault(device, f"{device} of {file}")
            detach(device)
        if time.monotonic() > deadline:
            return list(said.values())
        time.sleep(0.05)


def mounts_below(folder):
    """Mount points in the folder, in the order of their making."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        points = [unescaped(line.split(" ")[4]) for line in lines]
    return [point for point in points if is_below(point, folder)]


def unescaped(text):
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def loops_below(folder):
    """Loop devices whose file is in the folder, whether or not it was removed since."""
    found = []
    for name in sorted(glob.glob("/sys/block/loop*/loop/backing_file")):
        try:
            with open(name, encoding="utf-8", errors="surrogateescape") as line:
                file = line.read().rstrip("\n")
        except OSError:
            continue
        if is_below(file, folder):
            found.append((f"/dev/{name.split('/')[3]}", file))
    return found


def is_below(path, folder):
    return path.startswith(folder + "/")


def unmount(point):
    # By force: a file system whose server is gone answers no more.
    ctypes.CDLL(None).umount2(os.fsencode(point), MNT_FORCE | MNT_DETACH)


def detach(device):
    try:
        with open(device, "rb") as handle:
            fcntl.ioctl(handle, LOOP_CLR_FD)
    except OSError:
        # It went by itself, or goes when its last user does.
        pass


def files_left_behind(folder):
    names = sorted(os.listdir(folder))
    return [f"the tests left files behind: {', '.join(names)}"] if names else []


if __name__ == "__main__":
    main()
