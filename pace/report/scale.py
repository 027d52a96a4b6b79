"""Numbers for the eye: round ticks, short text, fewer points.

Invariant: `thinned` keeps the least and the greatest value of every part of a line, so no spike is lost.
"""

import math
from collections.abc import Iterable, Sequence

Point = tuple[float, float]
POINTS = 500  # of a line; more are no wider than a pixel
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def tick_step(span: float, n: int, *, whole: bool = False) -> float:
    """A round distance of ticks that gives about `n` of them over `span`; with `whole` at least 1 and an integer."""
    raw = max(span / max(n, 1), 1e-300)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((unit * factor for factor in _STEPS if unit * factor >= raw * (1 - 1e-9)), 10 * unit)
    return max(1.0, float(math.ceil(step))) if whole else step


def ticks(low: float, high: float, n: int, *, whole: bool = False) -> list[float]:
    """Round values in [low, high]."""
    step = tick_step(high - low, n, whole=whole)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def bounds(values: Iterable[float], *, zero: bool = True, room: float = 0.06) -> Point:
    """The range of an axis that shows `values`: with 0 if `zero`, never empty."""
    known = list(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(1.0, abs(high)):
        return (low, low + 1.0) if zero else (low - 0.5, high + 0.5)
    margin = (high - low) * room
    return (low - margin if low < 0 or not zero else low), (high + margin if high > 0 or not zero else high)


def number(value: float | None, digits: int = 3) -> str:
    """`value` with about three digits: 0.0123, 12.3, 1,234, 12.3 M; "-" for none."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    size = abs(value)
    if size >= 1e6:
        for unit, name in ((1e15, ""), (1e12, "T"), (1e9, "G"), (1e6, "M")):
            if size >= unit:
                return f"{value:.2e}" if not name else f"{value / unit:.{digits}g} {name}"
    if size >= 1000 or value == int(value):
        text = f"{value:,.0f}"
    elif size < 1e-4:
        text = f"{value:.1e}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "\N{MINUS SIGN}", 1) if value < 0 else text


def duration(seconds: float) -> str:
    """1.2 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{number(seconds)} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def thinned(points: Sequence[Point], limit: int = POINTS) -> list[Point]:
    """At most about `limit` of the points, in order: first, last, and of each part the least and the greatest."""
    if len(points) <= limit:
        return list(points)
    n_parts = max(1, limit // 2)
    kept: set[int] = {0, len(points) - 1}
    for part in range(n_parts):
        span = range(part * len(points) // n_parts, (part + 1) * len(points) // n_parts)
        kept.add(min(span, key=lambda i: points[i][1]))
        kept.add(max(span, key=lambda i: points[i][1]))
    return [points[i] for i in sorted(kept)]


def parts(n: int, limit: int) -> list[range]:
    """0 ... n - 1 in at most `limit` runs of nearly equal length."""
    count = min(n, limit)
    return [range(i * n // count, (i + 1) * n // count) for i in range(count)]


def smoothed(points: Sequence[Point], width: int) -> list[Point]:
    """The mean of each point and up to `width` - 1 before it."""
    result, total = [], 0.0
    for i, (x, y) in enumerate(points):
        total += y - (points[i - width][1] if i >= width else 0.0)
        result.append((x, total / min(i + 1, width)))
    return result
