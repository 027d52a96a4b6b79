"""Figures of how training went: reward over steps and over time, evaluations, time per step.

In: metrics of steps, lines of evaluations. Out: figures. Source: the paper's figures 1, 5 and 8 for their choice.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

from pace.report import keys
from pace.report.chart import Bar, Series, bars, lines, stacked
from pace.report.figure import STEPS, Figure, Panel, average, each, look, names
from pace.report.frame import Axis
from pace.report.palette import TIMES
from pace.report.reading import Point, Run, Step
from pace.report.scale import duration, number, smoothed

RESCORE = "prefix scoring (beside the generation)"
Read = Callable[[Run], Sequence[Point]]


def first_and_last(values: Sequence[float], n: int = 10) -> tuple[float, float, int]:
    """Means of the first and of the last steps, and of how many: `n`, or half of the run."""
    n = max(1, min(n, len(values) // 2))
    return sum(values[:n]) / n, sum(values[-n:]) / n, n


def reward_over_steps(runs: Sequence[Run]) -> Figure:
    """Mean reward of the trained batch."""

    def said(run: Run) -> str:
        values = [value for _, value in run.series(keys.REWARD)]
        if not values:
            return ""
        first, last, n = first_and_last(values)
        return f"{number(first)} over the first {n} steps, {number(last)} over the last {n}"

    how = "Mean reward of the groups trained at each step. In long runs thin: single steps, thick: a moving mean. "
    return _reward(
        runs, "fig-reward-steps", "Reward over steps", STEPS, lambda run: run.series(keys.REWARD), how, said
    )


def reward_over_time(runs: Sequence[Run]) -> Figure:
    """The same against the clock: what a user waits for."""
    unit, seconds = clock(max(run.steps[-1].seconds for run in runs))

    def points(run: Run) -> list[Point]:
        have = [step for step in run.steps if keys.REWARD in step.metrics]
        return [(step.seconds / seconds, step.metrics[keys.REWARD]) for step in have]

    def said(run: Run) -> str:
        return f"{len(run.steps)} updates in {duration(run.steps[-1].seconds)}"

    how = "The same against the clock: evaluations count, pauses before a resumption do not. "
    axis = Axis(f"{unit} since the run began", whole=False)
    return _reward(runs, "fig-reward-time", "Reward over wall time", axis, points, how, said)


def clock(longest: float) -> tuple[str, float]:
    """A unit for a time axis up to `longest` seconds, and its seconds."""
    units = (("hours", 3600.0), ("minutes", 60.0))
    return next((unit for unit in units if longest > 3 * unit[1]), ("seconds", 1.0))


def _reward(
    runs: Sequence[Run], anchor: str, title: str, x: Axis, read: Read, how: str, said: Callable[[Run], str]
) -> Figure:
    found = [(run, points) for run in runs if (points := read(run))]
    if not found:
        return Figure(id=anchor, title=title, missing=f"The log has no metric {keys.REWARD}: no step had a reward.")
    series = []
    for run, points in found:
        colour, dash = look(runs, run)
        width = max(1, len(points) // 12)
        if width > 1:
            series.append(Series("", points, colour, width=1.0, opacity=0.4))
        series.append(Series(run.label, smoothed(points, width), colour, dash))
    draw = partial(lines, series, x=x, y=Axis("mean reward"), about=title)
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=[Panel("", draw)])


def evaluations(runs: Sequence[Run]) -> Figure:
    """Every metric of the evaluations, success rates first."""
    anchor, title = "fig-evaluation", "Evaluation"
    keys_found = {key for run in runs for line in run.evaluations for key in line.content}
    found = sorted(keys_found, key=lambda key: (not key.endswith("_pass1"), "_pass" not in key, key))
    if not found:
        why = "No evaluation was made: give --eval.dataset and --eval.steps."
        return Figure(id=anchor, title=title, missing=why)
    panels = []
    for key in found:
        series = []
        for run in runs:
            points = [(float(line.step), line.content[key]) for line in run.evaluations if key in line.content]
            if points:
                series.append(Series(run.label, points, *look(runs, run)))
        axis = Axis("policy version", zero=False, whole=True)
        panels.append(Panel(key, partial(lines, series, x=axis, y=Axis(""), about=key)))

    def said(run: Run) -> str:
        values = [line.content[found[0]] for line in run.evaluations if found[0] in line.content]
        return f"from {number(values[0])} to {number(values[-1])} in {found[0]}" if values else ""

    how = "Held-out prompts, answered by one policy version each. "
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def time_parts(step: Step) -> dict[str, float] | None:
    """Seconds of a step by part, with what no part accounts for; None when its length is not known."""
    total = step.metrics.get(keys.STEP_S)
    if total is None:
        return None
    found = {name: max(0.0, step.metrics.get(key, 0.0)) for name, key in keys.TIME_PARTS.items()}
    return found | {"rest": max(0.0, total - sum(found.values()))}


def time_per_step(runs: Sequence[Run]) -> Figure:
    """A bar for each run: the mean step."""
    anchor, title = "fig-time-mean", "Where a step's time goes"
    rows = []
    for run in runs:
        steps = [split for step in run.steps if (split := time_parts(step)) is not None]
        if steps:
            means = {name: average(step[name] for step in steps) or 0.0 for name in steps[0]}
            scoring = average(value for _, value in run.series(keys.RESCORE_S))
            rows.append(_time_bar(run, means, scoring))
    if not rows:
        return Figure(id=anchor, title=title, missing=f"The log has no metric {keys.STEP_S}, the length of a step.")

    def said(run: Run) -> str:
        waits = average(value for _, value in run.series(keys.TIME_PARTS["waiting for rollouts"]))
        total = [value for _, value in run.series(keys.STEP_S)]
        if waits is None or not total:
            return ""
        share = waits * len(total) / max(sum(total), 1e-9)
        return f"median {number(median(total))} s a step; {share:.0%} of the time is spent waiting for rollouts"

    how = (
        "Mean seconds of an update by what the trainer does, in parts that do not overlap. Hatched: the scoring of "
        "prefixes on the engines, which runs beside. "
    )
    panels = [Panel("", partial(bars, rows, x=Axis("seconds per step"), about=title))]
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def _time_bar(run: Run, means: Mapping[str, float], scoring: float | None) -> Bar:
    parts = [(name, TIMES[name], value, f"{number(value)} s") for name, value in means.items()]
    beside = (RESCORE, scoring) if scoring else None
    return Bar(run.label, parts, note=f"{number(sum(means.values()))} s", beside=beside)


def time_over_steps(runs: Sequence[Run]) -> Figure:
    """The same, step by step."""
    anchor, title, panels = "fig-time-steps", "Time of the steps", []
    for run in runs:
        split = [(float(step.number), list(found.values())) for step in run.steps if (found := time_parts(step))]
        if split:
            labels, colours = list(TIMES), list(TIMES.values())
            draw = partial(stacked, split, names=labels, colours=colours, x=STEPS, y=Axis("seconds"), about=title)
            panels.append(Panel(names(runs)[id(run)], draw))
    if not panels:
        return Figure(id=anchor, title=title, missing=f"The log has no metric {keys.STEP_S}, the length of a step.")

    def said(run: Run) -> str:
        slowest = max(run.series(keys.STEP_S), key=lambda point: point[1], default=None)
        return f"the slowest step is {number(slowest[0])} with {number(slowest[1])} s" if slowest else ""

    how = "A column is a step, or the mean of several; pale grey at the bottom is waiting for rollouts. "
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)
