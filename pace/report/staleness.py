"""Figures about staleness: its parts over the steps, and what the pool kept against what it rejected.

In: the decisions of the log; lags in versions. Out: figures. Source: the paper's figures 6 and 7 for distributions.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pace.report.chart import Series, columns, lines, scatter, stacked
from pace.report.figure import STEPS, Figure, Panel, average, each, known, look, names, over_steps
from pace.report.frame import Axis
from pace.report.palette import GENERATION, KEPT, POOL, REJECTED, SIBLINGS
from pace.report.reading import Run
from pace.report.scale import number, parts, tick_step
from pace.report.svg import Markup
from pace.types import Decision, Outcome

Read = Callable[[Decision], float | None]
BINS = 14
SPLIT: Mapping[str, tuple[str, Read]] = {
    "generation": (GENERATION, lambda d: d.gen),
    "waiting for siblings": (SIBLINGS, lambda d: d.sib),
    "waiting in the pool": (POOL, lambda d: d.pool),
}
NOTHING_REJECTED = (
    "The pool rejected no group, so there is nothing to compare. It does when rollout outruns training and occupancy "
    "exceeds --pace.target_batches; --pace.max_reject_rate must not be 0."
)


def kept(decision: Decision) -> bool:
    """A candidate that survived the ranking."""
    return decision.outcome is Outcome.KEPT


def rejected(decision: Decision) -> bool:
    """A candidate that was ranked out."""
    return decision.outcome is Outcome.REJECTED


def trained(decision: Decision) -> bool:
    """In the batch."""
    return decision.trained


def measures(run: Run) -> dict[str, Read]:
    """The three kinds of staleness, waiting as the run counts it (--pace.wait_from)."""
    from_trajectory = run.settings.get("wait_from") == "trajectory"
    return {
        "waiting": (lambda d: d.sib + d.pool) if from_trajectory else (lambda d: d.pool),
        "generation": lambda d: d.gen,
        "effective": lambda d: d.effective,
    }


def lag_split(runs: Sequence[Run]) -> Figure:
    """Where the lag of the trained groups arose."""
    panels = []
    for run in runs:
        found = []
        for step in run.steps:
            groups = [d for d in step.decisions if d.trained and d.gen is not None]
            if groups:
                found.append((float(step.number), [average(known(groups, read)) or 0.0 for _, read in SPLIT.values()]))
        if found:
            labels, colours = list(SPLIT), [colour for colour, _ in SPLIT.values()]
            lag = Axis("lag (versions)")
            draw = partial(stacked, found, names=labels, colours=colours, x=STEPS, y=lag, about="lag by origin")
            panels.append(Panel(names(runs)[id(run)], draw))

    def said(run: Run) -> str:
        groups = [d for d in run.decisions if d.trained and d.gen is not None]
        values = {name: average(known(groups, read)) for name, (_, read) in SPLIT.items()}
        total = average(known(groups, lambda d: d.total))
        return f"mean lag {number(total)} = {' + '.join(f'{number(v)} {name}' for name, v in values.items())}"

    how = "How many updates old the trained tokens are, mean over the groups of a step, by where the lag arose. "
    title = "Lag of what is trained, by origin"
    if not panels:
        return Figure(id="fig-lag", title=title, missing="No trained group has tokens of a known policy version.")
    return Figure(id="fig-lag", title=title, caption=how + each(runs, said), panels=panels)


def kept_against_rejected(runs: Sequence[Run]) -> Figure:
    """Distributions within one run."""
    title, anchor = "Staleness of kept and rejected groups", "fig-staleness-kept-rejected"
    having = [run for run in runs if any(map(rejected, run.decisions))]
    panels = []
    for run in having:
        for name, read in measures(run).items():
            values = [known(filter(among, run.decisions), read) for among in (kept, rejected)]
            heading = f"{names(runs)[id(run)]}: {name}".removeprefix(": ")
            panels.append(Panel(heading, _histogram(values, ["kept", "rejected"], [KEPT, REJECTED], name)))

    def said(run: Run) -> str:
        if run not in having:
            return "nothing was rejected"
        read = measures(run)["effective"]
        means = [average(known(filter(among, run.decisions), read)) for among in (kept, rejected)]
        return f"mean effective staleness {number(means[0])} of kept, {number(means[1])} of rejected groups"

    if not panels:
        return Figure(id=anchor, title=title, missing=NOTHING_REJECTED)
    how = "Share of the groups in each bin, kept and rejected apart; PACE works when rejected ones lie to the right. "
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def trained_between_runs(runs: Sequence[Run]) -> Figure:
    """Distributions of what was trained, one run against the other."""
    title, anchor = "Staleness of trained groups, run against run", "fig-staleness-runs"
    if len(runs) < 2:
        why = "One run was given. Add a second one, for example with --pace.max_reject_rate 0, to compare them."
        return Figure(id=anchor, title=title, missing=why)
    panels = []
    for name in measures(runs[0]):
        values = [known(filter(trained, run.decisions), measures(run)[name]) for run in runs]
        colours = [look(runs, run)[0] for run in runs]
        panels.append(Panel(name, _histogram(values, [run.label for run in runs], colours, name)))

    def said(run: Run) -> str:
        means = {name: average(known(filter(trained, run.decisions), read)) for name, read in measures(run).items()}
        return ", ".join(f"{name} {number(value)}" for name, value in means.items())

    how = (
        "Share of the trained groups in each bin. Rejection moves waiting and effective staleness to the left. Means: "
    )
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


def _histogram(values: Sequence[Sequence[float]], names: list[str], colours: list[str], name: str) -> partial[Markup]:
    """Shares in percent of each population, in bins that all have in common."""
    first, width, n_bins = _bins([value for population in values for value in population])
    heights = []
    for population in values:
        counts = [0] * n_bins
        for value in population:
            counts[max(0, min(int((value - first) / width + 1e-9), n_bins - 1))] += 1
        heights.append([100.0 * count / max(1, len(population)) for count in counts])
    sizes = [f"{label} ({len(population):,})" for label, population in zip(names, values, strict=True)]
    edges = [first + width * i for i in range(n_bins + 1)]
    x, y = Axis(f"{name} staleness (versions)"), Axis("groups (%)")
    return partial(columns, heights, edges=edges, names=sizes, colours=colours, x=x, y=y, about=f"{name} staleness")


def _bins(values: Sequence[float]) -> tuple[float, float, int]:
    """Where bins begin, their width and number; bins of whole numbers are centred on them."""
    top = max(values, default=0.0)
    whole = all(value == int(value) for value in values)
    width = tick_step(top or 1.0, BINS, whole=whole)
    first = -0.5 if whole and width == 1 else 0.0
    return first, width, max(1, int((top - first) / width + 1e-9) + 1)


def score_against_age(runs: Sequence[Run]) -> Figure:
    """What the prefix score adds to the lag of generation."""
    panels = []
    for run in runs:
        series = []
        for name, colour, among in (("kept", KEPT, trained), ("rejected", REJECTED, rejected)):
            groups = [d for d in run.decisions if among(d) and d.gen is not None and d.prefix_score is not None]
            points = [(d.gen or 0.0, d.prefix_score or 0.0) for d in groups]
            if points:
                series.append(Series("trained" if name == "kept" else name, points, colour))
        if series:
            x, y = Axis("generation staleness (versions)"), Axis("prefix score (nats per token)")
            draw = partial(scatter, series, x=x, y=y, about="prefix score by age")
            panels.append(Panel(names(runs)[id(run)], draw))

    def said(run: Run) -> str:
        groups = [d for d in run.decisions if d.gen and d.prefix_score is not None]
        if not groups:
            return "no group was interrupted by a weight sync and scored"
        ordered = sorted(d.prefix_score or 0.0 for d in groups)
        return f"{len(groups):,} scored groups, median {number(ordered[len(ordered) // 2])} nats per token"

    title, anchor = "Prefix score against age", "fig-prefix-score"
    if not panels:
        why = (
            "No group has a prefix score: none was interrupted by a weight sync, or --pace.rank is not 'effective', "
            "which alone needs scores."
        )
        return Figure(id=anchor, title=title, missing=why)
    how = (
        "A dot is a group: how old its tokens are against how far the policy has moved on them. Dots low on the right "
        "are old in versions but still what the policy would say; effective staleness spares them. "
    )
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)


BIAS: Mapping[str, tuple[str, Read]] = {
    "length": ("tokens", lambda d: d.length),
    "reward": ("reward", lambda d: d.reward),
    "solve rate": ("share solved", lambda d: d.solve_rate),
}


def bias(runs: Sequence[Run]) -> Figure:
    """Whether the selection prefers short, easy or well rewarded groups."""
    title, anchor = "Watch for bias of the selection", "fig-bias"
    having = [run for run in runs if any(map(rejected, run.decisions))]
    panels = []
    for run in having:
        for name, (unit, read) in BIAS.items():
            series = []
            for label, colour, dash, among in (("kept", KEPT, None, kept), ("rejected", REJECTED, "6 3", rejected)):
                found = over_steps(run, read, among)
                blocks = [[found[i] for i in part] for part in parts(len(found), 24)] if found else []
                points = [(block[-1][0], sum(y for _, y in block) / len(block)) for block in blocks]
                if points:
                    series.append(Series(label, points, colour, dash))
            if series:
                heading = f"{names(runs)[id(run)]}: {name}".removeprefix(": ")
                panels.append(Panel(heading, partial(lines, series, x=STEPS, y=Axis(unit), about=name)))

    def said(run: Run) -> str:
        if run not in having:
            return "nothing was rejected"
        found = []
        for name, (_, read) in BIAS.items():
            means = [average(known(filter(among, run.decisions), read)) for among in (kept, rejected)]
            found.append(f"{name} {number(means[0])} against {number(means[1])}")
        return "kept against rejected: " + ", ".join(found)

    if not panels:
        return Figure(id=anchor, title=title, missing=NOTHING_REJECTED)
    how = "Means of kept and rejected groups; lines that stay apart mean that the selection changes what is learnt. "
    return Figure(id=anchor, title=title, caption=how + each(runs, said), panels=panels)
