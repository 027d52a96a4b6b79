"""Figures about the pool: how full it is, how much it rejects, and what became of everything generated.

In: metrics of steps and the final accounts. Out: figures.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from pace.report import keys
from pace.report.chart import Bar, Series, bars, lines
from pace.report.figure import STEPS, Figure, Panel, each, look, names
from pace.report.frame import Axis
from pace.report.palette import FATES, GREY
from pace.report.reading import Run
from pace.report.scale import number

FATE_NAMES = {"in_pool": "in the pool", "in_flight": "in flight"}


def occupancy(runs: Sequence[Run]) -> Figure:
    """Ready groups at the draw against the target."""
    title, anchor, panels = "Ready groups in the pool", "fig-occupancy", []
    for run in runs:
        ready, target = run.series(keys.OCCUPANCY), run.series(keys.TARGET)
        if ready:
            colour, _ = look(runs, run)
            series = [Series("ready groups", ready, colour), Series("target", target, GREY, "6 4")]
            series = [one for one in series if one.points]
            panels.append(Panel(names(runs)[id(run)], partial(lines, series, x=STEPS, y=Axis("groups"), about=title)))

    def said(run: Run) -> str:
        above, steps = over_target(run)
        return f"above the target at {above} of {steps} steps" if steps else ""

    if not panels:
        return Figure(id=anchor, title=title, missing=f"The log has no metric {keys.OCCUPANCY}: give --pace.enable.")
    how = "How many groups were ready when a batch was drawn. Above the target the pool begins to reject. "
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def over_target(run: Run) -> tuple[int, int]:
    """Steps with more ready groups than the target, and steps of which both are known."""
    target = dict(run.series(keys.TARGET))
    ready = [(step, value) for step, value in run.series(keys.OCCUPANCY) if step in target]
    return sum(value > target[step] for step, value in ready), len(ready)


def rejection(runs: Sequence[Run]) -> Figure:
    """The budget of each step."""
    title, anchor = "Rejection budget", "fig-rejection"
    parts = (("groups to reject", keys.BUDGET, Axis("groups")), ("rejection rate", keys.RATE, Axis("rate")))
    panels = []
    for heading, key, axis in parts:
        series = [Series(run.label, run.series(key), *look(runs, run)) for run in runs if run.series(key)]
        if series:
            panels.append(Panel(heading, partial(lines, series, x=STEPS, y=axis, about=heading)))

    def said(run: Run) -> str:
        rates = [value for _, value in run.series(keys.RATE)]
        total = sum(value for _, value in run.series(keys.BUDGET))
        return f"{number(total)} groups in all, mean rate {number(sum(rates) / len(rates))}" if rates else ""

    if not panels:
        return Figure(id=anchor, title=title, missing=f"The log has no metric {keys.BUDGET}: give --pace.enable.")
    how = "How many groups the pool may reject at a step; the rate follows the excess over the target slowly. "
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def account(run: Run, unit: str) -> Mapping[str, float] | None:
    """Column -> groups or tokens, at the end or at the last step; None when the log does not say."""
    found = {column: run.latest(key) for column, key in keys.ledger(unit).items()}
    known = {column: value for column, value in found.items() if value is not None}
    return known if "generated" in known and "trained" in known else None


def gap(columns: Mapping[str, float]) -> float:
    """What the account fails to explain; 0 when it closes."""
    return columns["generated"] - sum(value for column, value in columns.items() if column != "generated")


def ledger(runs: Sequence[Run]) -> Figure:
    """What became of everything generated."""
    title, anchor, rows = "Where everything generated went", "fig-ledger", []
    for run in runs:
        for unit in ("groups", "tokens"):
            columns = account(run, unit)
            if columns:
                name = f"{run.label}, {unit}" if len(runs) > 1 else unit
                rows.append(Bar(name, _shares(columns), note=f"{number(columns['generated'])} generated"))

    def said(run: Run) -> str:
        columns = account(run, "tokens")
        if not columns:
            return ""
        listed = " + ".join(
            f"{number(value)} {FATE_NAMES.get(column, column)}"
            for column, value in columns.items()
            if column != "generated" and value
        )
        closes = (
            "it closes" if abs(gap(columns)) < 0.5 else f"it does NOT close, {number(gap(columns))} tokens are lost"
        )
        return f"{number(columns['generated'])} tokens generated = {listed}; {closes}"

    if not rows:
        return Figure(id=anchor, title=title, missing="The log has no ledger: give --pace.enable.")
    how = "Every group and every token is counted once, by how it left. "
    panels = [Panel("", partial(bars, rows, x=Axis("share of what was generated (%)"), about=title))]
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def _shares(columns: Mapping[str, float]) -> list[tuple[str, str, float, str]]:
    """The parts of a bar, in percent of what was generated."""
    whole = columns["generated"] or 1.0
    return [
        (FATE_NAMES.get(fate, fate), colour, 100.0 * columns[fate] / whole, number(columns[fate]))
        for fate, colour in FATES.items()
        if fate in columns
    ]
