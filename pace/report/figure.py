"""A figure: panels with a caption that says how to read it, or a sentence that says why it isn't there.

Invariant: a figure has panels or `missing`, never neither. In: runs. Out: `Figure`, which the page lays out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pace.report.frame import Axis
from pace.report.palette import of_run
from pace.report.reading import Point, Run
from pace.report.svg import Markup
from pace.types import Decision

STEPS = Axis("step", zero=False, whole=True)


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with its own heading (empty: none); `draw(size=...)` draws it when its size is known."""

    title: str
    draw: Callable[..., Markup]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`id` is its anchor on the page."""

    id: str
    title: str
    caption: str = ""
    panels: Sequence[Panel] = ()
    missing: str = ""


def each(runs: Sequence[Run], say: Callable[[Run], str]) -> str:
    """A sentence about every run, named where there are several; runs without anything to say are left out."""
    said = [(run, text) for run in runs if (text := say(run))]
    if len(runs) == 1:
        return "".join(text[:1].upper() + text[1:] + "." for _, text in said)
    return " ".join(f"{run.label}: {text}." for run, text in said)


def names(runs: Sequence[Run]) -> dict[int, str]:
    """What each run is called in a panel's heading: nothing where there is only one."""
    return {id(run): run.label if len(runs) > 1 else "" for run in runs}


def look(runs: Sequence[Run], run: Run) -> tuple[str, str | None]:
    """Colour and dashes of a run."""
    return of_run(next(i for i, one in enumerate(runs) if one is run))


def average(values: Iterable[float]) -> float | None:
    """The mean of numbers, None for none."""
    known = list(values)
    return sum(known) / len(known) if known else None


def known(decisions: Iterable[Decision], read: Callable[[Decision], float | None]) -> list[float]:
    """The values that are known."""
    return [value for decision in decisions if (value := read(decision)) is not None]


def over_steps(run: Run, read: Callable[[Decision], float | None], among: Callable[[Decision], bool]) -> list[Point]:
    """(step, mean over its decisions) where there is any."""
    found = []
    for step in run.steps:
        mean = average(known(filter(among, step.decisions), read))
        if mean is not None:
            found.append((float(step.number), mean))
    return found
