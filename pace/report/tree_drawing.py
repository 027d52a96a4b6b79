"""A rollout tree from left to right: turns in columns, leaves in rows.

Invariant: leaves don't overlap, a parent stands at the mean height of its children. In: the `tree` of a line of kind
`trees`. Out: one `<svg>`.
"""

from collections.abc import Mapping
from typing import Any

from pace.report import svg
from pace.report.frame import Size
from pace.report.palette import GREY, INK, ORANGE
from pace.report.scale import number
from pace.report.svg import Markup

ROW, TOP, LEFT, RIGHT = 26, 34, 46, 96
MAX_LEAVES = 36
PALE, DEEP = (232, 240, 248), (0, 90, 150)
Tree = Mapping[str, Any]


def readable(tree: object) -> bool:
    """Whether it is a tree that can be drawn and fits on a page."""
    if not isinstance(tree, Mapping):
        return False
    nodes = tree.get("nodes")
    if not isinstance(nodes, list) or not nodes or not all(isinstance(node, dict) for node in nodes):
        return False
    parents = [node.get("parent") for node in nodes]
    if not all(isinstance(parent, int) and -1 <= parent < at for at, parent in enumerate(parents)):
        return False
    shown = [node.get(name) for node in (tree, *nodes) for name in ("value", "advantage", "predicted", "reward")]
    n_leaves = len(nodes) - len(set(parents) - {-1})
    return n_leaves <= MAX_LEAVES and all(value is None or is_number(value) for value in shown)


def is_number(value: object) -> bool:
    """A number that can be shown."""
    return isinstance(value, int | float) and abs(value) < 1e300


def drawing(tree: Tree, *, size: Size) -> Markup:
    """The whole tree; as high as its leaves need, whatever `size` says."""
    nodes: list[Mapping[str, Any]] = list(tree["nodes"])
    depth, height = _places(nodes)
    step = min(210.0, (size.width - LEFT - RIGHT) / max(depth))
    total = round(TOP + ROW * (max(height) + 0.8))
    at = [(LEFT + step * d, TOP + ROW * h) for d, h in zip(depth, height, strict=True)]
    firsts = [height[i] for i, node in enumerate(nodes) if node["parent"] < 0]
    root = (float(LEFT), TOP + ROW * sum(firsts) / len(firsts))
    marks: list[str] = []
    for node, place in zip(nodes, at, strict=True):
        marks.append(_edge(node, root if node["parent"] < 0 else at[node["parent"]], place))
    marks += [
        svg.element(
            "circle",
            svg.title(_root_text(tree)),
            cx=root[0],
            cy=root[1],
            r=9,
            fill=_shade(tree.get("value")),
            stroke=INK,
        ),
        svg.label(root[0] - 14, root[1] - 14, "prompt", class_="tick"),
    ]
    for node, place in zip(nodes, at, strict=True):
        marks += _node(node, place)
    for turn in range(1, max(depth) + 1):
        marks.append(svg.label(LEFT + step * turn, 13, f"turn {turn}", class_="tick", text_anchor="middle"))
    return svg.element("svg", svg.title("rollout tree"), *marks, viewBox=f"0 0 {size.width} {total}", role="img")


def _places(nodes: list[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Column and row of every node: leaves in the order of a walk, a parent in the middle of its children."""
    children: list[list[int]] = [[] for _ in range(len(nodes) + 1)]
    depth: list[int] = []
    for at, node in enumerate(nodes):
        children[node["parent"] + 1].append(at)
        depth.append(1 if node["parent"] < 0 else depth[node["parent"]] + 1)
    height = [0.0] * len(nodes)
    waiting, row = list(reversed(children[0])), 0
    while waiting:
        at = waiting.pop()
        if not children[at + 1]:
            height[at], row = float(row), row + 1
        waiting += reversed(children[at + 1])
    for at in reversed(range(len(nodes))):
        below = children[at + 1]
        if below:
            height[at] = sum(height[child] for child in below) / len(below)
    return depth, height


def _edge(node: Mapping[str, Any], start: tuple[float, float], end: tuple[float, float]) -> Markup:
    """With the advantage of the turn's tokens above it."""
    (x0, y0), (x1, y1) = start, end
    bend = x0 + 0.45 * (x1 - x0)
    bare = bool(node.get("bare"))
    line = svg.element(
        "path",
        d=f"M{x0:.1f} {y0:.1f}C{bend:.1f} {y0:.1f} {bend:.1f} {y1:.1f} {x0 + 0.6 * (x1 - x0):.1f} {y1:.1f}H{x1:.1f}",
        fill="none",
        stroke=GREY if bare else ORANGE,
        stroke_width=1.6,
        stroke_dasharray=None if bare else "5 3",
    )
    advantage = node.get("advantage")
    if advantage is None:
        return line
    text = svg.label(x1 - 13, y1 - 4, f"A {_signed(advantage)}", class_="tick", text_anchor="end")
    return svg.Markup(line + text)


def _node(node: Mapping[str, Any], place: tuple[float, float]) -> list[str]:
    x, y = place
    said = svg.title(_text(node))
    fill = _shade(node.get("value"))
    marks: list[str] = []
    if node.get("predicted") is not None:
        marks.append(svg.element("circle", cx=x, cy=y, r=11, fill="none", stroke=ORANGE, stroke_width=2))
        marks.append(svg.label(x + 13, y + 14, f"p {number(node['predicted'], 2)}", class_="tick"))
    if node.get("reward") is not None:
        marks.append(svg.rect(x - 7, y - 7, 14, 14, said, fill=fill, stroke=INK))
        marks.append(svg.label(x + 13, y + 4, f"reward {number(node['reward'])}", class_="legend"))
    else:
        marks.append(svg.element("circle", said, cx=x, cy=y, r=7, fill=fill, stroke=INK))
    return marks


def _shade(value: Any) -> str:
    """From pale (0) to deep (1); white where the value is not known."""
    if not isinstance(value, int | float):
        return "#fff"
    share = min(1.0, max(0.0, value))
    return "#" + "".join(f"{round(low + share * (high - low)):02x}" for low, high in zip(PALE, DEEP, strict=True))


def _signed(value: float) -> str:
    return f"+{number(value, 2)}" if value > 0 else number(value, 2)


def _root_text(tree: Tree) -> str:
    success = f"predicted {number(tree.get('predicted'))}, observed {number(tree.get('value'))}"
    return f"prompt {tree.get('prompt_id')}\n{success}"


def _text(node: Mapping[str, Any]) -> str:
    said = [f"{node.get('text', '')}", f"{node.get('n_tokens', '?')} tokens, mean outcome {number(node.get('value'))}"]
    if node.get("predicted") is not None:
        said.append(f"predicted {number(node['predicted'])}")
    return "\n".join(said)
