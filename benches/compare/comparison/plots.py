"""Plots as SVG, written by hand: horizontal bars of the medians with whiskers from minimum to maximum."""

from dataclasses import dataclass
from html import escape
from math import floor, log10

from .figures import Spread

WIDTH = 760
LEFT = 130
RIGHT = 150
TOP = 62
ROW = 30
BAR = 18
OURS, OTHERS, PLAIN = "#2a78d6", "#b9b7b0", "#8a8881"
INK, QUIET, GRID, PAPER = "#1c1c1a", "#5c5b56", "#e4e2dc", "#fcfcfb"
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


@dataclass(frozen=True)
class Bar:
    """One row: who, how much, and whether it is one of ours (colour) and verifies (full or pale)."""

    label: str
    value: Spread
    ours: bool
    verifies: bool


def ticks(top: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to at least `top`, about so many."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10 ** floor(log10(top / wanted))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if step * factor * wanted >= top)
    count = -int(-top // step)
    return [round(step * n, 10) for n in range(count + 1)]


def number(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def bars(title: str, unit: str, rows: list[Bar]) -> str:
    """A whole SVG document; the rows in the given order."""
    marks = ticks(max((row.value.high for row in rows), default=1.0))
    height = TOP + ROW * len(rows) + 58
    room = WIDTH - LEFT - RIGHT

    def x(value: float) -> float:
        return LEFT + room * value / marks[-1]

    bottom = TOP + ROW * len(rows)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' role='img' {FONT}>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='{PAPER}'/>",
        _text(16, 27, title, size=15, weight=600),
        _text(16, 46, f"{unit}; median, whiskers from minimum to maximum; less is better", fill=QUIET),
    ]
    for mark in marks:
        parts.append(f"<line x1='{x(mark):.1f}' x2='{x(mark):.1f}' y1='{TOP}' y2='{bottom}' stroke='{GRID}'/>")
        parts.append(_text(x(mark), bottom + 17, f"{mark:g}", fill=QUIET, anchor="middle"))
    for n, row in enumerate(rows):
        parts += _bar(row, TOP + ROW * n, x)
    parts += _legend(rows, bottom + 40)
    return "\n".join([*parts, "</svg>", ""])


def _bar(row: Bar, top: float, x) -> list[str]:
    middle, value = top + ROW / 2, row.value
    colour = OURS if row.ours else PLAIN if row.verifies else OTHERS
    parts = [
        _text(LEFT - 10, middle + 4, row.label, anchor="end", weight=600 if row.ours else 400),
        f"<rect x='{LEFT}' y='{middle - BAR / 2:.1f}' width='{max(1.0, x(value.mid) - LEFT):.1f}' height='{BAR}' rx='2' fill='{colour}'/>",
    ]
    if value.high > value.low:
        low, high = x(value.low), x(value.high)
        parts.append(
            f"<path d='M{low:.1f} {middle - 5:.1f}v10M{low:.1f} {middle:.1f}H{high:.1f}M{high:.1f} {middle - 5:.1f}v10' "
            f"stroke='{INK}' fill='none'/>"
        )
    parts.append(_text(x(value.high) + 8, middle + 4, number(value.mid)))
    return parts


def _legend(rows: list[Bar], y: float) -> list[str]:
    kinds = [
        (OURS, "muster (verifies and syncs)", any(row.ours for row in rows)),
        (PLAIN, "verifies", any(row.verifies and not row.ours for row in rows)),
        (OTHERS, "verifies nothing", any(not row.verifies and not row.ours for row in rows)),
    ]
    parts, left = [], LEFT
    for colour, what, shown in kinds:
        if shown:
            parts.append(f"<rect x='{left}' y='{y - 9}' width='11' height='11' rx='2' fill='{colour}'/>")
            parts.append(_text(left + 17, y, what, fill=QUIET))
            left += 40 + 7 * len(what)
    return parts


def _text(x: float, y: float, what: str, size: int = 12, fill: str = INK, anchor: str = "start", weight: int = 400) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{fill}' text-anchor='{anchor}' font-weight='{weight}'>"
        f"{escape(what)}</text>"
    )
