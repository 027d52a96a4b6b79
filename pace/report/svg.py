"""SVG as text.

Invariant: whatever comes in as text or attribute is escaped, so that no name from a log can become markup.
"""

from html import escape
from typing import Any


class Markup(str):
    """Text that is markup already."""


def element(name: str, *children: str, **attributes: Any) -> Markup:
    """An element; `class_` is `class`, and `stroke_width` is `stroke-width`; None leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")


def html(name: str, *children: str, **attributes: Any) -> Markup:
    """As `element`, with an end tag in any case, as HTML wants it."""
    made = element(name, *children, **attributes)
    return Markup(f"{made[:-2]}></{name}>") if made.endswith("/>") and not children else made


def label(x: float, y: float, text: str, **attributes: Any) -> Markup:
    """A line of text."""
    return element("text", text, x=x, y=y, **attributes)


def path(points: list[tuple[float, float]], **attributes: Any) -> Markup:
    """A line through points."""
    at = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{at}", fill="none", **attributes)


def rect(x: float, y: float, width: float, height: float, *children: str, **attributes: Any) -> Markup:
    """A rectangle."""
    return element("rect", *children, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), **attributes)


def title(text: str) -> Markup:
    """What is shown when the pointer rests on the element around it."""
    return element("title", text)


def _text(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
