"""The frame of a chart: axes with round ticks, grid, legend, hover areas; charts put their marks into it.

Invariant: the plot lies between its axes whatever the legend takes. In: axes with names and units, ranges of values.
Out: one `<svg>` element.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pace.report import svg
from pace.report.scale import Point, number, ticks
from pace.report.svg import Markup

LEFT, RIGHT, TOP, BOTTOM = 60, 22, 12, 42
LEGEND_ROW = 19
NARROW, BROAD = frozenset("fijlrtI.,:;'|()[] "), frozenset("mwMW%@")
Entry = tuple[str, str, str | None]  # of a legend: name, colour, and "box" or the dash pattern of a line
BOX = "box"
HATCH = "url(#hatch)"  # the page defines it once


def text_width(text: str) -> float:
    """Of a line in the legend's size, about, whatever the system's font is."""
    return sum(4.4 if sign in NARROW else 11.0 if sign in BROAD else 7.3 for sign in text)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a chart, in pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Axis:
    """Its name with the unit; `zero`: begins at 0; `whole`: ticks are integers; `limits` overrule the values'."""

    name: str
    zero: bool = True
    whole: bool = False
    limits: Point | None = None


@dataclass(slots=True, kw_only=True)
class Frame:
    """Axes, grid and legend around marks; `at` maps values to places on the page. Without a `y` there is no grid."""

    size: Size
    x: Axis
    y: Axis | None
    x_range: Point
    y_range: Point
    legend: Sequence[Entry] = ()
    marks: list[str] = field(default_factory=list)

    @property
    def top(self) -> float:
        """Of the plot, below the legend."""
        return TOP + LEGEND_ROW * len(self._rows())

    def at(self, x: float, y: float) -> Point:
        """The place of a point."""
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        width, height = self.size.width - LEFT - RIGHT, self.size.height - self.top - BOTTOM
        return LEFT + (x - x0) / (x1 - x0) * width, self.top + (y1 - y) / (y1 - y0) * height

    def column(self, left: float, right: float, low: float, high: float, *children: str, **look: str | None) -> None:
        """A rectangle between two x and two y."""
        (x0, y1), (x1, y0) = self.at(left, low), self.at(right, high)
        self.marks.append(svg.rect(x0, y0, x1 - x0, y1 - y0, *children, **look))

    def band(self, left: float, right: float, text: str) -> None:
        """An area over the whole height that shows `text` when the pointer rests on it."""
        self.column(left, right, *self.y_range, svg.title(text), class_="band")

    def drawn(self, about: str) -> Markup:
        """The chart; `about` describes it to who can't see it."""
        body = [*self._grid(), *self.marks, *self._x_axis(), *self._legend()]
        return svg.element(
            "svg", svg.title(about), *body, viewBox=f"0 0 {self.size.width} {self.size.height}", role="img"
        )

    @property
    def _bottom(self) -> int:
        return self.size.height - BOTTOM

    def _grid(self) -> list[str]:
        """With the name and the ticks of the vertical axis."""
        if self.y is None:
            return []
        middle = f"translate(12 {(self.top + self._bottom) / 2:.0f}) rotate(-90)"
        found: list[str] = [
            svg.label(0, 0, self.y.name, class_="name", text_anchor="middle", transform=middle),
        ]
        for value in ticks(*self.y_range, max(2, round((self._bottom - self.top) / 34)), whole=self.y.whole):
            _, y = self.at(self.x_range[0], value)
            found.append(svg.element("line", x1=LEFT, x2=self.size.width - RIGHT, y1=y, y2=y, class_="grid"))
            found.append(svg.label(LEFT - 7, y + 4, number(value), class_="tick", text_anchor="end"))
        return found

    def _x_axis(self) -> list[str]:
        right, bottom = self.size.width - RIGHT, self._bottom
        found: list[str] = [
            svg.element("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"),
            svg.label((LEFT + right) / 2, self.size.height - 6, self.x.name, class_="name", text_anchor="middle"),
        ]
        low, high = self.x.limits or self.x_range
        for value in ticks(low, high, max(2, round((self.size.width - LEFT) / 66)), whole=self.x.whole):
            x, _ = self.at(value, self.y_range[0])
            found.append(svg.element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
            found.append(svg.label(x, bottom + 17, number(value), class_="tick", text_anchor="middle"))
        return found

    def _rows(self) -> list[list[Entry]]:
        """The legend's entries in rows that fit."""
        rows: list[list[Entry]] = []
        room = 0.0
        for entry in self.legend:
            width = 38 + text_width(entry[0])
            if not rows or room + width > self.size.width - LEFT - RIGHT:
                rows.append([])
                room = 0.0
            rows[-1].append(entry)
            room += width
        return rows

    def _legend(self) -> list[str]:
        found: list[str] = []
        for row, entries in enumerate(self._rows()):
            x, y = float(LEFT), 14.0 + LEGEND_ROW * row
            for name, colour, dash in entries:
                if dash == BOX:
                    found.append(svg.rect(x, y - 9, 18, 10, fill=colour, class_="mark"))
                else:
                    line = {"stroke": colour, "stroke_width": 2.5, "stroke_dasharray": dash}
                    found.append(svg.element("line", x1=x, x2=x + 18, y1=y - 4, y2=y - 4, **line))
                found.append(svg.label(x + 23, y, name, class_="legend"))
                x += 38 + text_width(name)
        return found
