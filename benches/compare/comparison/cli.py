"""The one command: prepares peers and files, runs the rounds, reports."""

import argparse
import contextlib
import fcntl
import json
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from . import machine, report
from .content import NoSpace, prepare, require_space
from .figures import durable_s
from .measure import Figures, Runner
from .peers import HERE, PEERS, ROOT, Missing, Peer, Setup
from .profiles import DEFAULT_PROFILES, PROFILES, Profile
from .server import Server, find_nginx

SMOKE_LIMIT_S = 60


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benches/compare/run", description=__doc__)
    parser.add_argument("--profiles", type=_names(PROFILES), help=f"of {', '.join(PROFILES)} [default: all but smoke]")
    parser.add_argument("--peers", type=_names(PEERS), help=f"of {', '.join(PEERS)} [default: all that suit the profile]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder of the report [default: CACHE/report]")
    parser.add_argument("--add", action="store_true", help="keep what the report in --out says of other profiles: a comparison in several sittings")
    parser.add_argument("--muster", type=Path, help="this program instead of a fresh release build")
    parser.add_argument("--cache", type=Path, default=ROOT / "target" / "compare", help="builds, peers and files [default: %(default)s]")
    parser.add_argument("--work", type=Path, help="where is downloaded to: decides which disk is measured [default: CACHE/work]")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the shards, as a factor")
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds until a run is ended [default: %(default)s]")
    parser.add_argument("--smoke", action="store_true", help="one round of the tiny profile with muster and curl; exit 0 only if all is well")
    options = parser.parse_args(given)
    if options.smoke:
        options.profiles, options.rounds, options.limit = ["smoke"], 1, SMOKE_LIMIT_S
    options.profiles = options.profiles or DEFAULT_PROFILES
    options.cache = options.cache.resolve()
    options.work = (options.work or options.cache / "work").resolve()
    options.out = (options.out or options.cache / "report").resolve()
    return options


def _names(known: dict):
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
        return names

    return parse


def say(text: str) -> None:
    print(f"compare: {text}", file=sys.stderr, flush=True)


def main(given: list[str]) -> int:
    options = arguments(given)
    # SIGTERM ends as ^C does: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.cache.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    setup = Setup(options.cache, options.muster, say)
    lock = one_at_a_time(options.cache)
    comparison = begun(options)
    try:
        for name, package in (("nginx", "nginx-light"), ("openssl", "openssl"), ("curl", "curl")):
            with contextlib.suppress(Missing):
                setup.program(name, package)
        find_nginx()
        setup.cargo(HERE / "tools" / "Cargo.toml", "tools")
        peers = prepare_peers(options, setup, comparison)
        comparison["machine"] = machine.describe(options.work)
        comparison["setting"] = {"rounds": options.rounds, "scale": options.scale}
        for name in options.profiles:
            try:
                run_profile(PROFILES[name], peers, options, setup, comparison)
            except NoSpace as why:
                comparison["missing"][f"profile {name}"] = str(why)
                say(f"without {name}: {why}")
                continue
            report.write(comparison, options.out)
    except Missing as missing:
        say(str(missing))
        return 1
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
        return 130
    finally:
        lock.close()
    print(report.text(comparison))
    say(f"report in {options.out}")
    failed = [run for run in comparison["runs"] if not run["ok"]]
    for run in failed:
        say(f"{run['profile']}, {run['peer']}, round {run['round']}: exit {run['exit']}, {'; '.join(run['wrong'][:3])} {run['message']}")
    return 1 if options.smoke and failed else 0


def begun(options: argparse.Namespace) -> dict:
    """A comparison without runs, or with those of other profiles from an earlier sitting."""
    comparison = {"runs": [], "limits": [], "sizes": {}, "missing": {}, "peers": {}}
    earlier = options.out / "report.json"
    if options.add and earlier.exists():
        found = json.loads(earlier.read_text())
        for rows in ("runs", "limits"):
            comparison[rows] = [row for row in found[rows] if row["profile"] not in options.profiles]
        profiles = {run["profile"] for run in comparison["runs"]}
        comparison["sizes"] = {name: size for name, size in found["sizes"].items() if name in profiles}
        comparison["peers"] = {name: peer for name, peer in found["peers"].items() if any(run["peer"] == name for run in comparison["runs"])}
    return comparison


def one_at_a_time(cache: Path):
    """Two comparisons would measure each other: a second one waits until this file is closed."""
    lock = open(cache / "lock", "a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another comparison runs with this cache; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def prepare_peers(options: argparse.Namespace, setup: Setup, comparison: dict) -> dict[str, Peer]:
    wanted = options.peers or [name for name in PEERS if any(takes_part(PROFILES[p], name) for p in options.profiles)]
    ready = {}
    for name in wanted:
        peer = PEERS[name]()
        try:
            peer.prepare(setup)
        except Missing as missing:
            comparison["missing"][name] = str(missing)
            say(f"without {name}: {missing}")
            continue
        ready[name] = peer
        comparison["peers"][name] = {"version": peer.version, "note": peer.note, "verifies": peer.verifies, "syncs": peer.syncs,
                                     "speaks_hub": peer.speaks_hub}
    if not ready:
        raise Missing("no peer is left")
    return ready


def takes_part(profile: Profile, peer: str) -> bool:
    """Whether the peer is in the profile when nobody asked for particular ones."""
    if peer in profile.extra_rows:
        return True
    if peer == "muster-64":
        return False
    return profile.peers is None or peer in profile.peers


def run_profile(profile: Profile, peers: dict[str, Peer], options: argparse.Namespace, setup: Setup, comparison: dict) -> None:
    repository = prepare(profile, options.scale, options.cache, say)
    comparison["sizes"][profile.name] = repository.size
    require_space(options.work, repository.size)
    run_folder = options.work / "run"
    taking = [peer for peer in peers.values() if options.peers or takes_part(profile, peer.name)]
    with Server(profile, repository, options.cache / "server", setup.tools) as server, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, run_folder, ignore_errors=True)
        runner = Runner(server, run_folder, setup.tools, options.limit)
        for round_number in range(options.rounds):
            repository.warm()
            found = machine.limits(server, options.work, options.scale)
            comparison["limits"].append({"profile": profile.name, "round": round_number, **found})
            turn = round_number % len(taking)
            for peer in taking[turn:] + taking[:turn]:
                figures = runner.measure(peer)
                run = record(profile, peer, round_number, repository.size, figures)
                comparison["runs"].append(run)
                say(f"{profile.name} {round_number + 1}/{options.rounds} {peer.name}: {durable_s(run):.2f} s, "
                    f"CPU {figures.user_s + figures.system_s:.2f} s, {figures.peak_bytes / 2**20:.0f} MiB, "
                    f"{figures.requests} requests, {'ok' if figures.ok else 'NOT OK'}")


def record(profile: Profile, peer: Peer, round_number: int, size: int, figures: Figures) -> dict:
    return {"profile": profile.name, "peer": peer.name, "round": round_number, "size_bytes": size, "syncs": peer.syncs,
            "ok": figures.ok, **asdict(figures)}
