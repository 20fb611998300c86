"""The report, placeholder until the tables and plots stand."""

import json
from pathlib import Path

from .figures import Spread, judge, spread, summarise


def limits_of(comparison: dict) -> dict[str, dict[str, Spread]]:
    found: dict = {}
    for row in comparison["limits"]:
        for name, value in row.items():
            if name not in ("profile", "round"):
                found.setdefault(row["profile"], {}).setdefault(name, []).append(value)
    return {profile: {name: spread(values) for name, values in of.items()} for profile, of in found.items()}


def text(comparison: dict) -> str:
    summary, limits = summarise(comparison["runs"]), limits_of(comparison)
    lines = []
    for profile, peers in summary.items():
        lines.append(f"\n{profile}: {comparison['sizes'][profile] / 1e6:.0f} MB")
        lines.append("  limits, MB/s: " + "; ".join(f"{n} {s.low:.0f}/{s.mid:.0f}/{s.high:.0f}" for n, s in limits[profile].items()))
        for peer, m in peers.items():
            def show(name, digits=2):
                s = m[name]
                return "-" if s is None else f"{s.low:.{digits}f}/{s.mid:.{digits}f}/{s.high:.{digits}f}"
            lines.append(f"  {peer:12} time {show('time_s'):17} wall {show('wall_s'):17} +sync {show('wall_sync_s'):17} cpu {show('cpu_s'):17} server {show('server_cpu_s'):15} peak {show('peak_mib', 0):11} req {show('requests', 0):15} sent {show('sent', 3)} ok {m['ok']}/{m['rounds']}")
    hub = [name for name, p in comparison["peers"].items() if p["speaks_hub"]]
    for j in judge(summary, limits, comparison["sizes"], hub):
        value = "-" if j.value is None else f"{j.value:.3f}"
        verdict = {True: "met", False: "MISSED", None: "not judged"}[j.met]
        lines.append(f"  {j.target.profile:9} {j.target.text:62} {value:>8} limit {j.target.limit:<5} {verdict} {j.why}")
    return "\n".join(lines)


def write(comparison: dict, out: Path) -> None:
    (out / "report.json").write_text(json.dumps(comparison, indent=1))
