"""Figures about rollout trees: where the budget went, what was mixed, how well the predictor knew, and one tree.

In: lines of kind `trees` and TRACE's metrics. Out: figures; none of them for a run without trees.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pace.report import keys
from pace.report.chart import Series, columns, lines, scatter
from pace.report.figure import STEPS, Figure, Panel, average, each, look, names
from pace.report.frame import Axis
from pace.report.palette import BLUE, VERMILLION
from pace.report.reading import Run
from pace.report.scale import number, smoothed
from pace.report.tree_drawing import drawing, is_number, readable

NO_TREES = "The log has no lines of kind 'trees': it was written before they were, or no update was made with trees."
Rows = Iterator[list[float]]


def has_trees(run: Run) -> bool:
    """Whether TRACE was on."""
    return bool(run.trees) or any(key.startswith("trace/") for step in run.steps for key in step.metrics)


def tree_figures(runs: Sequence[Run]) -> list[Figure]:
    """All figures about trees of the runs that have them."""
    having = [run for run in runs if has_trees(run)]
    if not having:
        return []
    return [one_tree(having), roots(having), continuations(having), ratios(having), calibration(having), skill(having)]


def _rows(run: Run, name: str, width: int) -> Rows:
    """The entries of `name` in all lines that hold `width` numbers; the last two of them may be None."""
    for line in run.trees:
        for row in line.content.get(name) or ():
            if isinstance(row, list) and len(row) == width and all(map(is_number, row[:-2])):
                if all(value is None or is_number(value) for value in row[-2:]):
                    yield row


def one_tree(runs: Sequence[Run]) -> Figure:
    """The newest tree that can be read on a page, of every run."""
    title, anchor, panels = "A rollout tree", "fig-tree", []
    chosen: dict[int, tuple[int, dict[str, Any]]] = {}
    for run in runs:
        found = [(line.step, tree) for line in run.trees if (tree := line.content.get("tree"))]
        found = [(step, tree) for step, tree in found if readable(tree)]
        if found:
            step, tree = chosen[id(run)] = found[-1]
            panels.append(Panel(names(runs)[id(run)], partial(drawing, tree)))

    def said(run: Run) -> str:
        if id(run) not in chosen:
            return ""
        step, tree = chosen[id(run)]
        return (
            f"prompt {tree.get('prompt_id')} at step {step}, predicted success {number(tree.get('predicted'))}, "
            f"observed {number(tree.get('value'))}"
        )

    if not panels:
        return Figure(id=anchor, title=title, missing=NO_TREES)
    how = (
        "A node is a turn, its shade the mean outcome below it, the number above the line its advantage. Solid lines "
        "are bare rollouts, dashed ones continuations; a ring marks a prefix that was continued, p the success "
        "predicted there, and a square ends a rollout with its reward. "
    )
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def roots(runs: Sequence[Run]) -> Figure:
    """Bare rollouts per prompt."""
    title, anchor = "Bare rollouts per prompt", "fig-roots"
    counts = [Counter(int(row[0]) for row in _rows(run, "prompts", 3)) for run in runs]
    if not any(counts):
        return Figure(id=anchor, title=title, missing=NO_TREES)
    top = max(max(count, default=0) for count in counts)
    heights = [[100.0 * count[m] / max(1, count.total()) for m in range(top + 1)] for count in counts]
    edges = [m - 0.5 for m in range(top + 2)]

    def said(run: Run) -> str:
        given = [row[0] for row in _rows(run, "prompts", 3)]
        return (
            f"{number(average(given))} on average over {len(given):,} prompts, at most {number(max(given))}"
            if given
            else ""
        )

    how = (
        "How many rollouts the allocator gave the prompts that it started (skipped ones are in the ledger), and how "
        "that follows from the predicted success. "
    )
    x, y = Axis("bare rollouts (m)", whole=True), Axis("prompts (%)")
    colours = [look(runs, run)[0] for run in runs]
    draw = partial(
        columns, heights, edges=edges, names=[r.label for r in runs], colours=colours, x=x, y=y, about=title
    )
    panels = [Panel("how many", draw)]
    dots = [
        Series(run.label, [(p, m) for m, p, _ in _rows(run, "prompts", 3) if p is not None], look(runs, run)[0])
        for run in runs
    ]
    if any(one.points for one in dots):
        axes = (Axis("predicted success", limits=(0.0, 1.0)), Axis("bare rollouts (m)", whole=True))
        shown = [one for one in dots if one.points]
        panels.append(
            Panel("by prediction", partial(scatter, shown, x=axes[0], y=axes[1], about="rollouts by prediction"))
        )
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def continuations(runs: Sequence[Run]) -> Figure:
    """Where the continuations went."""
    title, anchor = "Continuations by place", "fig-continuations"
    having = [run for run in runs if any(True for _ in _rows(run, "prefixes", 5))]
    if not having:
        return Figure(
            id=anchor, title=title, missing=f"No prefix was continued (--trace.continuations). Or: {NO_TREES}"
        )
    top = max(int(row[0]) for run in having for row in _rows(run, "prefixes", 5))
    by_turn, by_place = [], []
    for run in having:
        turns, places = Counter[int](), Counter[int]()
        for turn, share, count, *_ in _rows(run, "prefixes", 5):
            turns[int(turn)] += int(count)
            places[min(9, int(share * 10))] += int(count)
        total = max(1, turns.total())
        by_turn.append([100.0 * turns[t] / total for t in range(top + 1)])
        by_place.append([100.0 * places[t] / total for t in range(10)])

    def said(run: Run) -> str:
        counts = [int(row[2]) for row in _rows(run, "prefixes", 5)]
        shares = [row[1] * row[2] for row in _rows(run, "prefixes", 5)]
        where = sum(shares) / max(1, sum(counts))
        return (
            f"{sum(counts):,} continuations of {len(counts):,} prefixes, on average after {where:.0%} of the rollout"
        )

    how = "Share of the continuations (K) by the turn and by the part of the rollout after which they start. "
    colours, labels = [look(runs, run)[0] for run in having], [run.label for run in having]
    y = Axis("continuations (%)")
    by_turns = partial(
        columns, by_turn, edges=[t - 0.5 for t in range(top + 2)], names=labels, colours=colours,
        x=Axis("turns before it", whole=True), y=y, about="by turn",
    )  # fmt: skip
    by_share = partial(
        columns, by_place, edges=[t / 10 for t in range(11)], names=labels, colours=colours,
        x=Axis("share of the rollout's tokens before it"), y=y, about="by place",
    )  # fmt: skip
    panels = [Panel("by turn", by_turns), Panel("by relative position", by_share)]
    return Figure(id=anchor, title=title, caption=how + each(having, said), panels=panels)


def _over_time(
    runs: Sequence[Run], anchor: str, title: str, parts: Sequence[tuple[str, str, Axis]], how: str
) -> Figure:
    """A panel for each (heading, metric, axis)."""
    panels, said_of = [], []
    for heading, key, axis in parts:
        series = []
        for run in runs:
            points = run.series(key)
            if points:
                colour, dash = look(runs, run)
                width = max(1, len(points) // 12)
                thin = [Series("", points, colour, width=1.0, opacity=0.4)] if width > 1 else []
                series += [*thin, Series(run.label, smoothed(points, width), colour, dash)]
        if series:
            said_of.append((heading, key))
            panels.append(Panel(heading, partial(lines, series, x=STEPS, y=axis, about=heading)))

    def said(run: Run) -> str:
        found = [(heading, average(value for _, value in run.series(key))) for heading, key in said_of]
        return "mean " + ", ".join(f"{heading} {number(value)}" for heading, value in found)

    if not panels:
        return Figure(id=anchor, title=title, missing=f"The log has none of {', '.join(key for _, key, _ in parts)}.")
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def ratios(runs: Sequence[Run]) -> Figure:
    """How much of what was sampled has contrast."""
    share = Axis("share")
    parts = (("at prompts", keys.ROOT_RATIO, share), ("at continued prefixes", keys.ANCHOR_RATIO, share))
    how = (
        "Share of the rollouts below prompts, and below continued prefixes, holding both outcomes; only those teach. "
    )
    return _over_time(runs, "fig-effective-ratio", "Effective ratio", parts, how)


def skill(runs: Sequence[Run]) -> Figure:
    """Predictor over time."""
    parts = (
        ("rank correlation at prompts", keys.SPEARMAN_ROOT, Axis("Spearman")),
        ("rank correlation at prefixes", keys.SPEARMAN_PREFIX, Axis("Spearman")),
        ("calibration error", keys.PREDICTOR_ECE, Axis("ECE")),
    )
    how = (
        "How well predicted success orders prompts and prefixes (1: perfectly, 0: not at all), and how far it is off. "
    )
    return _over_time(runs, "fig-predictor", "Predictor over time", parts, how)


def calibration(runs: Sequence[Run]) -> Figure:
    """Predicted against observed, in ten parts, and where the predictions lie."""
    title, anchor, panels = "Calibration of the predictor", "fig-calibration", []
    for run in runs:
        pairs = {
            name: [(p, y) for *_, p, y in _rows(run, name, width) if p is not None and y is not None]
            for name, width in (("prompts", 3), ("prefixes", 5))
        }
        if any(pairs.values()):
            x = Axis("predicted success", limits=(0.0, 1.0))
            y = Axis("observed success", limits=(0.0, 1.0))
            colours = {"prompts": BLUE, "prefixes": VERMILLION}
            series = [
                Series(name, _binned(found), colours[name], opacity=0.9) for name, found in pairs.items() if found
            ]
            draw = partial(scatter, series, x=x, y=y, about=title, diagonal=True, radius=4.5)
            panels.append(Panel(f"{names(runs)[id(run)]} predicted and observed".strip(), draw))
            spread = partial(
                columns,
                [_shares([p for p, _ in found]) for found in pairs.values()],
                edges=[i / 20 for i in range(21)],
                names=[f"{name} ({len(found):,})" for name, found in pairs.items()],
                colours=[colours[name] for name in pairs],
                x=Axis("predicted success"),
                y=Axis("predictions (%)"),
                about="predictions",
            )
            panels.append(Panel(f"{names(runs)[id(run)]} predictions".strip(), spread))

    def said(run: Run) -> str:
        error = average(value for _, value in run.series(keys.PREDICTOR_MSE))
        return f"mean squared error {number(error)} over the run" if error is not None else ""

    if not panels:
        return Figure(id=anchor, title=title, missing=NO_TREES)
    how = "A dot is the mean of a tenth of the predictions, ordered by size; on the dashed line they come true. "
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def _shares(values: Sequence[float]) -> list[float]:
    """Percent of the values in each twentieth of [0, 1]."""
    counts = Counter(min(19, max(0, int(value * 20))) for value in values)
    return [100.0 * counts[i] / max(1, len(values)) for i in range(20)]


def _binned(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of ten parts of the pairs, ordered by prediction; equal predictions stay together."""
    groups: dict[int, list[tuple[float, float]]] = {}
    ordered = sorted(pairs)
    first_of: dict[float, int] = {}
    for i, (p, _) in enumerate(ordered):
        first_of.setdefault(p, i * 10 // len(ordered))
    for p, y in ordered:
        groups.setdefault(first_of[p], []).append((p, y))
    return [(sum(p for p, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups.values()]
