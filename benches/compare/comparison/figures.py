"""Medians of interleaved rounds, the columns of the tables, and what issue 4 asks for as ratios."""

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of the rounds."""

    low: float
    mid: float
    high: float


def spread(values: list[float]) -> Spread | None:
    values = [value for value in values if value is not None]
    return Spread(min(values), median(values), max(values)) if values else None


def durable_s(run: dict) -> float:
    """When all of it was safe: a peer that syncs is done when it ends, any other after a `sync`."""
    return run["wall_s"] if run["syncs"] else run["wall_s"] + run["sync_s"]


# name, what it is of a run
METRICS = {
    "time_s": durable_s,
    "wall_s": lambda run: run["wall_s"],
    "wall_sync_s": lambda run: run["wall_s"] + run["sync_s"],
    "cpu_s": lambda run: run["user_s"] + run["system_s"],
    "server_cpu_s": lambda run: run["server_cpu_s"],
    "foreign_cpu_s": lambda run: run["foreign_cpu_s"],
    "peak_mib": lambda run: run["peak_bytes"] / 2**20,
    "requests": lambda run: run["requests"],
    "sent": lambda run: run["sent_bytes"] / run["size_bytes"],
    "left_at_first_drop": lambda run: run["left_at_first_drop"],
    "busy_max": lambda run: run["busy_max"] or None,
    "resume_ratio": lambda run: run["wall_s"] / run["wall_uninterrupted_s"] if run["wall_uninterrupted_s"] else None,
}


def summarise(runs: list[dict]) -> dict[str, dict[str, dict[str, Spread | None]]]:
    """profile → peer → metric → spread, over the runs that ended well; `ok` and `rounds` count all."""
    found: dict = {}
    for run in runs:
        found.setdefault(run["profile"], {}).setdefault(run["peer"], []).append(run)
    return {profile: {peer: _summary(of) for peer, of in peers.items()} for profile, peers in found.items()}


def _summary(runs: list[dict]) -> dict:
    good = [run for run in runs if run["ok"]]
    summary = {name: spread([value(run) for run in good]) for name, value in METRICS.items()}
    return summary | {"ok": len(good), "rounds": len(runs)}


@dataclass(frozen=True)
class Target:
    """`subject` measured by `metric`, at most `limit` times `against` (or `limit` itself)."""

    profile: str
    text: str
    limit: float
    subject: str = "muster"
    metric: str = "time_s"
    against: str | None = None


def _times(profile: str, limits: dict[str, float], subject: str = "muster") -> list[Target]:
    return [Target(profile, f"time of {subject} / {peer}", limit, subject, "time_s", peer) for peer, limit in limits.items()]


TARGETS = [
    *_times("kimi16", {"hf-hub": 0.85, "curl": 0.55, "hf": 0.3, "aria2c": 0.25, "aria2c-k1m": 0.25}),
    Target("kimi16", "CPU of muster / (hf-hub + 1.6 × SHA-256 of the bytes)", 1.0, metric="cpu_s", against="hf-hub+sha"),
    *_times("big512", {"hf-hub": 0.85, "curl": 0.55, "hf": 0.3, "aria2c": 0.25, "aria2c-k1m": 0.25}),
    Target("big512", "CPU of muster / (hf-hub + 1.6 × SHA-256 of the bytes)", 1.0, metric="cpu_s", against="hf-hub+sha"),
    *_times("tls", {"hf-hub": 1.0, "curl": 0.7}),
    *_times("many2000", {"hf-hub": 1.0}),
    *_times("paced20", {"aria2c": 0.8, "aria2c-k1m": 0.8}),
    *_times("paced20", {"aria2c": 0.5, "aria2c-k1m": 0.5}, "muster-64"),
    Target("rtt80", "time of muster / the best peer that speaks the Hub", 1.0, against="best"),
    Target("one8g", "share of the bytes left when connections first idle", 0.02, metric="left_at_first_drop"),
    Target("one8g", "share of the bytes left when connections first idle, 64", 0.02, "muster-64", "left_at_first_drop"),
    *[Target(p, f"peak memory, MiB ({p})", 64, metric="peak_mib") for p in ("kimi16", "big512", "many2000", "paced20", "one8g")],
    *[Target(p, f"peak memory at 64 connections, MiB ({p})", 200, "muster-64", "peak_mib") for p in ("paced20", "one8g")],
    Target("resume", "both parts / uninterrupted pull, wall", 1.1, metric="resume_ratio"),
]


@dataclass(frozen=True)
class Judged:
    """A target and what came out; `value` is None where a peer or the profile did not run."""

    target: Target
    value: float | None
    why: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.value is None else self.value <= self.target.limit


def judge(summary: dict, limits: dict, sizes: dict, hub_peers: list[str]) -> list[Judged]:
    """Every target whose profile ran."""
    return [_judge(target, summary, limits, sizes, hub_peers) for target in TARGETS if target.profile in summary]


def _judge(target: Target, summary: dict, limits: dict, sizes: dict, hub_peers: list[str]) -> Judged:
    peers = summary[target.profile]
    subject = _mid(peers, target.subject, target.metric)
    if subject is None:
        return Judged(target, None, f"{target.subject} did not run or never ended well")
    if target.against is None:
        return Judged(target, subject)
    if target.against == "hf-hub+sha":
        other = _mid(peers, "hf-hub", "cpu_s")
        rate = limits.get(target.profile, {}).get("sha256_cpu_second")
        if other is None or rate is None:
            return Judged(target, None, "hf-hub did not run")
        return Judged(target, subject / (other + 1.6 * sizes[target.profile] / 1e6 / rate.mid))
    if target.against == "best":
        candidates = {peer: _mid(peers, peer, target.metric) for peer in hub_peers if not peer.startswith("muster")}
        candidates = {peer: value for peer, value in candidates.items() if value}
        if not candidates:
            return Judged(target, None, "no peer that speaks the Hub ran")
        best = min(candidates, key=candidates.get)
        return Judged(target, subject / candidates[best], f"the best was {best}")
    other = _mid(peers, target.against, target.metric)
    return Judged(target, None, f"{target.against} did not run or never ended well") if not other else Judged(target, subject / other)


def _mid(peers: dict, peer: str, metric: str) -> float | None:
    found = peers.get(peer, {}).get(metric)
    return found.mid if found else None
