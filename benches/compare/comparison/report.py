"""The report: a table for the terminal, `report.md` for people, `report.json` for programs, and plots."""

import datetime
import json
import os
from dataclasses import asdict
from pathlib import Path

from .figures import Judged, Spread, judge, spread, summarise
from .plots import Bar, bars
from .profiles import PROFILES

COLUMNS = [
    ("time_s", "time s", 2),
    ("wall_s", "wall s", 2),
    ("wall_sync_s", "wall + sync s", 2),
    ("cpu_s", "CPU s", 2),
    ("server_cpu_s", "server CPU s", 2),
    ("foreign_cpu_s", "other CPU s", 2),
    ("peak_mib", "peak MiB", 0),
    ("requests", "requests", 0),
    ("sent", "sent / size", 3),
]
# Only where they say something.
RARE_COLUMNS = [
    ("busy_max", "connections", 0),
    ("left_at_first_drop", "left when not all busy", 4),
    ("resume_ratio", "both parts / uninterrupted", 3),
]
# Kernel threads that write to the disk are in it, so it is never nothing.
FOREIGN_CORES_MAX = 0.25
LIMITS = [
    ("disk_write_sync", "disk write with a sync"),
    ("loopback_two_curl", "loopback, two curls"),
    ("sha256_one_core", "SHA-256, one core"),
    ("sha256_cpu_second", "SHA-256, a second of CPU"),
    ("sha256_all_cores", "SHA-256, all cores"),
]


class Evaluated:
    """What the runs come to."""

    def __init__(self, comparison: dict):
        self.comparison = comparison
        self.summary = summarise(comparison["runs"])
        self.limits = limits_of(comparison["limits"])
        hub_peers = [name for name, peer in comparison["peers"].items() if peer["speaks_hub"]]
        self.judged = judge(self.summary, self.limits, comparison["sizes"], hub_peers)

    def columns(self, profile: str) -> list[tuple[str, str, int]]:
        peers = self.summary[profile].values()
        return COLUMNS + [column for column in RARE_COLUMNS if any(peer[column[0]] for peer in peers)]

    def ranked(self, profile: str) -> list[str]:
        """Fastest first; who never ended well comes last."""
        peers = self.summary[profile]
        return sorted(peers, key=lambda name: peers[name]["time_s"].mid if peers[name]["time_s"] else float("inf"))

    def disturbed(self) -> str:
        """A warning, if somebody else used the machine: more than the kernel needs while peers ran."""
        runs = self.comparison["runs"]
        cores = sum(run["foreign_cpu_s"] for run in runs) / max(1e-9, sum(run["wall_s"] for run in runs))
        if cores <= FOREIGN_CORES_MAX:
            return ""
        return (f"The machine was not quiet: beside peers and server {cores:.2f} cores were used on average. "
                "Take ratios at most, and those with care.")

    def faster(self, profile: str) -> list[str]:
        """Who was faster than muster at the defaults, with the ratio of the medians."""
        peers = self.summary[profile]
        ours = peers.get("muster", {}).get("time_s")
        if not ours:
            return []
        found = []
        for name in self.ranked(profile):
            theirs = peers[name]["time_s"]
            if not name.startswith("muster") and theirs and theirs.mid < ours.mid:
                does = "verifies too" if self.comparison["peers"][name]["verifies"] else "verifies nothing"
                found.append(f"{name} ({does}): {theirs.mid:.2f} s, muster takes {ours.mid / theirs.mid:.2f} times as long")
        return found


def limits_of(rows: list[dict]) -> dict[str, dict[str, Spread]]:
    found: dict = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("profile", "round"):
                found.setdefault(row["profile"], {}).setdefault(name, []).append(value)
    return {profile: {name: spread(values) for name, values in of.items()} for profile, of in found.items()}


def show(value: Spread | None, digits: int) -> str:
    """min/median/max, or the one number that all rounds gave."""
    if value is None:
        return "-"
    low, mid, high = (f"{part:.{digits}f}" for part in (value.low, value.mid, value.high))
    return mid if low == mid == high else f"{low}/{mid}/{high}"


def write(comparison: dict, out: Path) -> None:
    """Replaces the report's files; a run that is stopped later leaves what is finished so far."""
    evaluated = Evaluated(comparison)
    targets = [{**asdict(j.target), "value": j.value, "met": j.met, "why": j.why} for j in evaluated.judged]
    summary = {
        profile: {peer: {k: asdict(v) if isinstance(v, Spread) else v for k, v in of.items()} for peer, of in peers.items()}
        for profile, peers in evaluated.summary.items()
    }
    document = {"taken": today(), **comparison, "summary": summary, "targets": targets}
    _replace(out / "report.json", json.dumps(document, indent=1) + "\n")
    for profile in evaluated.summary:
        plot = plot_of(evaluated, profile)
        if plot:
            _replace(out / f"{profile}.svg", plot)
    _replace(out / "report.md", markdown(evaluated, out))


def plot_of(evaluated: Evaluated, profile: str) -> str | None:
    peers = evaluated.summary[profile]
    rows = [
        Bar(name, peers[name]["time_s"], name.startswith("muster"), evaluated.comparison["peers"][name]["verifies"])
        for name in evaluated.ranked(profile)
        if peers[name]["time_s"]
    ]
    return bars(f"{profile}: {PROFILES[profile].title}", "seconds until everything is on the disk", rows) if rows else None


def text(comparison: dict) -> str:
    """For the terminal."""
    evaluated = Evaluated(comparison)
    lines = []
    for profile in evaluated.summary:
        lines += ["", _title(evaluated, profile), _limits(evaluated, profile), *_aligned(_table(evaluated, profile))]
    if evaluated.judged:
        lines += ["", "Against the targets (ratios of medians):", *_aligned(_judgements(evaluated.judged))]
    for profile in evaluated.summary:
        lines += [f"{profile}: faster than muster: {what}" for what in evaluated.faster(profile)]
    lines += [evaluated.disturbed()] if evaluated.disturbed() else []
    for name, why in comparison["missing"].items():
        lines.append(f"not compared: {name}: {why}")
    return "\n".join(lines)


def markdown(evaluated: Evaluated, out: Path) -> str:
    comparison = evaluated.comparison
    setting, machine = comparison["setting"], comparison["machine"]
    lines = [
        "# muster beside its peers",
        "",
        f"Taken on {today()} by `benches/compare/run`, {setting['rounds']} interleaved rounds"
        + (f", shards scaled by {setting['scale']:g}" if setting["scale"] != 1 else "")
        + ". Everything is on loopback; the server takes its CPU from the same cores. What is measured and how: `../README.md`.",
        "",
    ]
    if evaluated.disturbed():
        lines += [f"**{evaluated.disturbed()}**", ""]
    lines += ["## The machine", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    lines += ["", "## The peers", ""]
    lines += _pipes([["peer", "version", "how"], *[[n, p["version"], p["note"]] for n, p in comparison["peers"].items()]])
    lines += [f"\nNot compared: {name}: {why}." for name, why in comparison["missing"].items()]
    lines += ["", "## Against the targets", "", "Ratios of medians. `time` is muster's wall (it verifies, syncs and publishes), and a peer's "
              "wall plus the `sync` after it.", ""]
    lines += _pipes(_judgements(evaluated.judged))
    lines += ["", "## Where muster loses", ""]
    lost = [f"- {profile}: {what}." for profile in evaluated.summary for what in evaluated.faster(profile)]
    missed = [f"- target missed: {j.target.profile}, {j.target.text}: {j.value:.3f}, limit {j.target.limit:g}." for j in evaluated.judged if j.met is False]
    lines += lost + missed or ["Nowhere in these profiles."]
    for profile in evaluated.summary:
        lines += ["", f"## {_title(evaluated, profile)}", "", _limits(evaluated, profile), ""]
        lines += _pipes(_table(evaluated, profile))
        if (out / f"{profile}.svg").exists():
            lines += ["", f"![{profile}]({profile}.svg)"]
        if PROFILES[profile].why_these_peers:
            lines += ["", f"Not every peer: {PROFILES[profile].why_these_peers}."]
        lines += [f"\n{what}" for what in _failures(comparison, profile)]
    return "\n".join(lines) + "\n"


def _title(evaluated: Evaluated, profile: str) -> str:
    return f"{profile}: {PROFILES[profile].title}, {evaluated.comparison['sizes'][profile] / 1e6:,.0f} MB"


def _limits(evaluated: Evaluated, profile: str) -> str:
    limits = evaluated.limits.get(profile, {})
    shown = [f"{what} {show(limits[name], 0)}" for name, what in LIMITS if name in limits]
    return f"Limits in these rounds, MB/s (min/median/max): {'; '.join(shown)}."


def _table(evaluated: Evaluated, profile: str) -> list[list[str]]:
    columns = evaluated.columns(profile)
    rows = [["peer", *[title for _, title, _ in columns], "right"]]
    for name in evaluated.ranked(profile):
        found = evaluated.summary[profile][name]
        rows.append([name, *[show(found[key], digits) for key, _, digits in columns], f"{found['ok']}/{found['rounds']}"])
    return rows


def _judgements(judged: list[Judged]) -> list[list[str]]:
    words = {True: "met", False: "MISSED", None: "not judged"}
    rows = [["profile", "what", "came out", "limit", "verdict"]]
    for each in judged:
        value = "-" if each.value is None else f"{each.value:.3f}"
        verdict = words[each.met] + (f" ({each.why})" if each.why else "")
        rows.append([each.target.profile, each.target.text, value, f"{each.target.limit:g}", verdict])
    return rows


def _failures(comparison: dict, profile: str) -> list[str]:
    """Runs that did not end with every file right."""
    failed = [run for run in comparison["runs"] if run["profile"] == profile and not run["ok"]]
    found = []
    for name in dict.fromkeys(run["peer"] for run in failed):
        of = [run for run in failed if run["peer"] == name]
        what = "; ".join(of[0]["wrong"][:2]) or "content right"
        found.append(f"{name}: {len(of)} of its runs did not end well (first: exit {of[0]['exit']}; {what}); they are not in its figures.")
    return found


def _pipes(rows: list[list[str]]) -> list[str]:
    def line(row: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    return [line(rows[0]), "|" + " --- |" * len(rows[0]), *map(line, rows[1:])]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def today() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"


def _replace(path: Path, content: str) -> None:
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(content)
    os.replace(new, path)
