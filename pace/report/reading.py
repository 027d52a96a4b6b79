"""A run's log as the report needs it.

Invariants: every step is there once, as it was logged last (a resumed run repeats steps); a last line that was not
written to its end is left out; numbers that are not finite are missing, never 0. Wall time counts while the run was
running: from its settings line on, without the pause before a resumption.

In: a folder with `pace.jsonl` or `pace.jsonl.gz`, or such a file. Out: `Run`. Unknown lines and keys are ignored.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pace.state import StateError, unpack_decisions
from pace.types import Decision

NAMES = ("pace.jsonl", "pace.jsonl.gz")
Point = tuple[float, float]
_FIELDS = {f.name for f in fields(Decision)}
_NUMBERS = _FIELDS - {"group_id", "prompt_id", "outcome", "reason", "requeued"}
# Of a decision's numbers, those that may be unknown.
_OPTIONAL = {"gen", "effective", "score", "prefix_score", "percentile", "weight", "reward", "solve_rate"}


class ReportError(ValueError):
    """A log that can't be reported on; the message names what was given and what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """Update number `number`, done `seconds` after the run began, and the decision on every group that left."""

    number: int
    seconds: float
    metrics: Mapping[str, float]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """The content of an evaluation or of a step's trees."""

    step: int
    seconds: float
    content: Mapping[str, Any]


@dataclass(slots=True)
class Run:
    """One run: `settings` are PACE's, `about` is what else the settings line says; `end` are the final accounts."""

    label: str
    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    evaluations: tuple[Line, ...] = ()
    trees: tuple[Line, ...] = ()
    end: Mapping[str, float] | None = None
    n_starts: int = 0
    torn: bool = False
    n_not_finite: int = 0

    def series(self, key: str) -> list[Point]:
        """(step, value) where the metric is known."""
        return [(step.number, step.metrics[key]) for step in self.steps if key in step.metrics]

    def latest(self, key: str) -> float | None:
        """The final account if the run has ended, else the metric of the last step that has it."""
        if self.end is not None and key in self.end:
            return self.end[key]
        return next((step.metrics[key] for step in reversed(self.steps) if key in step.metrics), None)

    @property
    def decisions(self) -> list[Decision]:
        """Of all steps."""
        return [decision for step in self.steps for decision in step.decisions]


def read_run(path: Path, label: str = "") -> Run:
    """The run whose log is, or lies in, `path`. Raises ReportError when there is none, or nothing to report on."""
    log = _find(path)
    reader = _Reader(Run(label or _name(log), log))
    for number, line in _lines(log, reader.run):
        try:
            reader.take(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ReportError(
                f"{log}, line {number}: not a line of a run log ({why}); give a run's log_dir"
            ) from error
    return reader.done()


class _Reader:
    """Takes the lines of a log one by one; raises what a line without its fields raises."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._steps: dict[int, Step] = {}
        self._evaluations: dict[int, Line] = {}
        self._trees: dict[int, Line] = {}
        self._clock = _Clock()

    def take(self, line: Mapping[str, Any]) -> None:
        """One line, of any kind."""
        kind, run = line.get("kind"), self.run
        seconds = self._clock.at(line, starts=kind == "settings")
        if kind == "settings":
            run.settings, run.n_starts, run.end = dict(line["pace"]), run.n_starts + 1, None
            run.about = {key: value for key, value in line.items() if key not in ("kind", "time", "pace")}
        elif kind == "step":
            self._steps[int(line["step"])] = _step(line, seconds, run)
        elif kind == "evaluation":
            version = int(line["version"])
            self._evaluations[version] = Line(version, seconds, _numbers(line["metrics"], run))
        elif kind == "trees":
            self._trees[int(line["step"])] = Line(int(line["step"]), seconds, line)
        elif kind == "end":
            run.end = _numbers(line["metrics"], run)

    def done(self) -> Run:
        """The run, of which all lines were taken. Raises ReportError when it holds no step."""
        run, wrong = self.run, "it holds no line of kind 'settings' or 'step'; give a run's log_dir"
        if not self._steps:
            wrong = "it holds no step yet: wait for the first update, or give another run" if run.n_starts else wrong
            raise ReportError(f"{run.path} can't be reported on, {wrong}")
        run.steps = tuple(self._steps[number] for number in sorted(self._steps))
        run.evaluations = tuple(self._evaluations[version] for version in sorted(self._evaluations))
        run.trees = tuple(self._trees[number] for number in sorted(self._trees))
        return run


class _Clock:
    """Seconds since the run began, pauses left out."""

    def __init__(self) -> None:
        self._before = self._last = 0.0
        self._began: float | None = None

    def at(self, line: Mapping[str, Any], *, starts: bool) -> float:
        """At a line; one that `starts` goes on where the line before it was."""
        now = line.get("time")
        if not isinstance(now, int | float):
            return self._last
        if starts or self._began is None:
            self._before, self._began = self._last, now
        self._last = max(self._last, self._before + now - self._began)
        return self._last


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise ReportError(f"{path} does not exist: give the run's log_dir (--pace.log_dir, or --ckpt.path)")
    for name in NAMES:
        if (path / name).is_file():
            return path / name
    raise ReportError(f"{path} holds no {NAMES[0]}: give the run's log_dir (--pace.log_dir, or --ckpt.path)")


def _name(log: Path) -> str:
    folder = log.resolve().parent.name
    return folder if log.name in NAMES and folder else log.name


def _lines(log: Path, run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """Whole lines with their numbers. A line that is broken anywhere but at the end is an error."""
    with gzip.open(log, "rb") if log.suffix == ".gz" else log.open("rb") as file:
        try:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    run.torn = True
                elif raw.strip():
                    line = json.loads(raw, parse_float=_finite, parse_constant=lambda _: None)
                    if not isinstance(line, dict):
                        raise ValueError("not an object")
                    yield number, line
        except EOFError:
            run.torn = True
        except (ValueError, OSError, zlib.error) as error:
            raise ReportError(f"{log} is not the log of a run ({error}); give a run's log_dir") from error


def _is_number(name: str, value: object) -> bool:
    return isinstance(value, int | float) or (value is None and name in _OPTIONAL)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _numbers(metrics: Mapping[str, Any], run: Run) -> dict[str, float]:
    found = {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)  # an integer may be too large for a float
    }
    run.n_not_finite += sum(value is None for value in metrics.values())
    return found


def _step(line: Mapping[str, Any], seconds: float, run: Run) -> Step:
    draw = line["draw"]
    states = [*draw.get("evicted_before", ()), *draw["decisions"]]
    for state in states:
        wrong = [name for name in sorted(_NUMBERS & state.keys()) if not _is_number(name, state[name])]
        if wrong:
            raise StateError(f"decision on group {state.get('group_id')!r} has no number for {', '.join(wrong)}")
    known = [{name: value for name, value in state.items() if name in _FIELDS} for state in states]
    return Step(int(line["step"]), seconds, _numbers(line["metrics"], run), unpack_decisions(known))
