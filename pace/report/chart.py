"""Charts as SVG: lines, columns, stacked columns, scatter, bars.

Invariant: a chart's size doesn't depend on how much it is given: lines are thinned to `scale.POINTS`, hover areas and
stacked columns are limited, a scatter shows about DOTS points.

In: series in their own units. Out: one `<svg>` element, with a legend and hover text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pace.report import svg
from pace.report.frame import BOTTOM, BOX, HATCH, Axis, Entry, Frame, Size
from pace.report.palette import GREY
from pace.report.scale import Point, bounds, number, parts, thinned
from pace.report.svg import Markup

DOTS = 1200
BANDS = 120  # hover areas of a chart
MARKED = 30  # points up to which a line shows each of them


@dataclass(frozen=True, slots=True)
class Series:
    """A line (or a set of dots) with its look; without a `name` it is in no legend and no hover text."""

    name: str
    points: Sequence[Point]
    colour: str
    dash: str | None = None
    width: float = 2.0
    opacity: float | None = None


def lines(series: Sequence[Series], *, x: Axis, y: Axis, size: Size, about: str) -> Markup:
    """Lines over x, with one hover area per place that says all values there. At least one point is needed."""
    xs = [point[0] for one in series for point in one.points]
    ys = [point[1] for one in series for point in one.points]
    legend: list[Entry] = [(one.name, one.colour, one.dash) for one in series if one.name]
    frame = Frame(
        size=size,
        x=x,
        y=y,
        x_range=x.limits or (bounds(xs, zero=x.zero, room=0.0)),
        y_range=y.limits or bounds(ys, zero=y.zero),
        legend=legend if len(legend) > 1 else (),
    )
    for one in series:
        placed = [frame.at(*point) for point in thinned(one.points)]
        look = {"stroke": one.colour, "stroke_width": one.width, "stroke_dasharray": one.dash, "opacity": one.opacity}
        if len(placed) > 1:
            frame.marks.append(svg.path(placed, **look, stroke_linejoin="round"))
        if one.name and len(placed) <= MARKED:
            frame.marks += [svg.element("circle", cx=cx, cy=cy, r=2.4, fill=one.colour) for cx, cy in placed]
    _hover(frame, [one for one in series if one.name], x.name)
    return frame.drawn(about)


def _hover(frame: Frame, series: Sequence[Series], name: str) -> None:
    places = sorted({x for one in series for x, _ in one.points})
    values = [dict(one.points) for one in series]
    middles = [places[part[len(part) // 2]] for part in parts(len(places), BANDS)]
    for i, x in enumerate(middles):
        left = frame.x_range[0] if i == 0 else (middles[i - 1] + x) / 2
        right = frame.x_range[1] if i == len(middles) - 1 else (x + middles[i + 1]) / 2
        said = [f"{one.name}: {number(at[x])}" for one, at in zip(series, values, strict=True) if x in at]
        frame.band(left, right, "\n".join([f"{name} {number(x)}", *said]))


def columns(
    heights: Sequence[Sequence[float]],
    *,
    edges: Sequence[float],
    names: Sequence[str],
    colours: Sequence[str],
    x: Axis,
    y: Axis,
    size: Size,
    about: str,
) -> Markup:
    """Columns side by side in bins: `heights[i][b]` of population i in the bin from `edges[b]` to `edges[b + 1]`."""
    top = bounds([height for row in heights for height in row])
    legend: list[Entry] = [(name, colour, BOX) for name, colour in zip(names, colours, strict=True)]
    shown = legend if len(legend) > 1 else ()
    frame = Frame(size=size, x=x, y=y, x_range=(edges[0], edges[-1]), y_range=top, legend=shown)
    n = len(heights)
    for b, (left, right) in enumerate(zip(edges, edges[1:], strict=False)):
        gap = 0.06 * (right - left)
        width = (right - left - 2 * gap) / n
        for i, row in enumerate(heights):
            start = left + gap + i * width
            frame.column(start, start + width, 0.0, row[b], fill=colours[i], class_="mark")
        said = [f"{name}: {number(row[b])}" for name, row in zip(names, heights, strict=True)]
        frame.band(left, right, "\n".join([f"{number(left)} to {number(right)}", *said]))
    return frame.drawn(about)


def stacked(
    points: Sequence[tuple[float, Sequence[float]]],
    *,
    names: Sequence[str],
    colours: Sequence[str],
    x: Axis,
    y: Axis,
    size: Size,
    about: str,
    limit: int = 60,
    line: Series | None = None,
) -> Markup:
    """Parts on top of each other over x, in at most `limit` columns: each the mean of those that it stands for."""
    blocks = []
    for part in parts(len(points), limit):
        rows = [points[i][1] for i in part]
        heights = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        blocks.append((points[part[0]][0], points[part[-1]][0], heights))
    tops = [sum(heights) for _, _, heights in blocks] + ([y for _, y in line.points] if line else [])
    legend: list[Entry] = [(name, colour, BOX) for name, colour in zip(names, colours, strict=True)]
    if line:
        legend.append((line.name, line.colour, line.dash))
    x_range = (points[0][0] - 0.5, points[-1][0] + 0.5)
    frame = Frame(size=size, x=x, y=y, x_range=x_range, y_range=bounds(tops), legend=legend)
    for first, last, heights in blocks:
        base, gap = 0.0, 0.06 * (last - first + 1)
        for height, colour in zip(heights, colours, strict=True):
            if height > 0:
                frame.column(first - 0.5 + gap, last + 0.5 - gap, base, base + height, fill=colour)
            base += height
        place = number(first) if first == last else f"{number(first)} to {number(last)}"
        said = [f"{name}: {number(height)}" for name, height in zip(names, heights, strict=True)]
        frame.band(first - 0.5, last + 0.5, "\n".join([f"{x.name} {place}", *said]))
    if line:
        placed = [frame.at(*point) for point in thinned(line.points)]
        frame.marks.append(svg.path(placed, stroke=line.colour, stroke_width=line.width, stroke_dasharray=line.dash))
    return frame.drawn(about)


def scatter(
    series: Sequence[Series], *, x: Axis, y: Axis, size: Size, about: str, diagonal: bool = False, radius: float = 3.2
) -> Markup:
    """Dots; of more than DOTS, evenly chosen ones. `diagonal` marks x = y."""
    xs = [point[0] for one in series for point in one.points]
    ys = [point[1] for one in series for point in one.points]
    x_range, y_range = x.limits or bounds(xs, zero=x.zero), y.limits or bounds(ys, zero=y.zero)
    legend: list[Entry] = [(f"{one.name} ({len(one.points):,})", one.colour, BOX) for one in series]
    frame = Frame(size=size, x=x, y=y, x_range=x_range, y_range=y_range, legend=legend)
    if diagonal:
        ends = [frame.at(value, value) for value in frame.x_range]
        frame.marks.append(svg.path(ends, stroke=GREY, stroke_dasharray="4 4"))
    share = max(1.0, len(xs) / DOTS)
    for one in series:
        count = min(len(one.points), max(1, int(len(one.points) / share)))
        for part in parts(len(one.points), count):
            place = one.points[part[0]]
            cx, cy = frame.at(*place)
            said = svg.title(f"{one.name}: {number(place[0])}, {number(place[1])}")
            frame.marks.append(
                svg.element("circle", said, cx=cx, cy=cy, r=radius, fill=one.colour, fill_opacity=one.opacity or 0.55)
            )
    return frame.drawn(about)


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar: `parts` are (name, colour, length, what to say in it); `beside` is a hatched one below."""

    name: str
    parts: Sequence[tuple[str, str, float, str]]
    note: str = ""
    beside: tuple[str, float] | None = None


def bars(rows: Sequence[Bar], *, x: Axis, size: Size, about: str) -> Markup:
    """Horizontal stacked bars with a common scale, a note at each end; as high as they need, whatever `size` says."""
    longest = max(sum(part[2] for part in row.parts) for row in rows)
    found: dict[str, str] = {}
    for row in rows:
        found |= {part[0]: part[1] for part in row.parts if part[2] > 0}
        found |= {row.beside[0]: HATCH} if row.beside else {}
    legend: list[Entry] = [(name, colour, BOX) for name, colour in found.items()]
    x_range, y_range = (0.0, (longest or 1.0) * 1.16), (0.0, float(len(rows)))
    x = replace(x, limits=(0.0, longest or 1.0))  # no ticks below the notes
    frame = Frame(size=size, x=x, y=None, x_range=x_range, y_range=y_range, legend=legend)
    frame.size = Size(size.width, round(frame.top) + 62 * len(rows) + BOTTOM)
    for i, row in enumerate(rows):
        base, high, low = 0.0, len(rows) - i - 0.36, len(rows) - i - 0.80
        left, y = frame.at(0.0, len(rows) - i)
        frame.marks.append(svg.label(left, y + 16, row.name, class_="legend strong"))
        for name, colour, length, text in row.parts:
            frame.column(base, base + length, low, high, svg.title(f"{name}: {text}"), fill=colour, class_="mark")
            base += length
        if row.beside:
            said = svg.title(f"{row.beside[0]}: {number(row.beside[1])}")
            frame.column(0.0, row.beside[1], low - 0.16, low - 0.02, said, fill=HATCH, class_="mark")
        end, middle = frame.at(base, (low + high) / 2)
        frame.marks.append(svg.label(end + 6, middle + 4, row.note, class_="legend"))
    return frame.drawn(about)
