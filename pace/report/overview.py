"""The head of the report: a table of totals, settings that differ from their defaults, and plain warnings.

Invariant: a warning says what is there, why, and which flag changes it. In: runs. Out: rows of text.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import median

from pace.config import PaceConfig, flag
from pace.report import keys
from pace.report.accounts import account, gap, over_target
from pace.report.progress import first_and_last
from pace.report.reading import Run
from pace.report.scale import duration, number
from pace.report.staleness import rejected

WASTE = 0.3  # share of tokens thrown away from which it is said
NOTHING = number(None)


def rows(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(name, text of each run)."""
    table: list[tuple[str, Callable[[Run], str]]] = [
        ("State", _state),
        ("Updates", lambda run: f"{len(run.steps):,} (to step {run.steps[-1].number:,})"),
        ("Wall time", lambda run: duration(run.steps[-1].seconds)),
        ("Seconds per step (median)", _seconds),
        ("Reward, first and last steps", _reward),
        ("Groups per batch, rollouts per group", _sizes),
        ("Groups ready for each trained (load)", _load),
        ("Groups trained, rejected, evicted", _groups),
        ("Tokens generated, thrown away", _tokens),
        ("Mean lag of trained groups", _lag),
        ("Settings that differ from the defaults", _settings),
    ]
    return [(name, [say(run) for run in runs]) for name, say in table]


def _state(run: Run) -> str:
    resumed = (
        f", resumed {run.n_starts - 1} times" if run.n_starts > 2 else ", resumed once" if run.n_starts == 2 else ""
    )
    return ("finished" if run.end is not None else "running, or ended early") + resumed


def _seconds(run: Run) -> str:
    values = [value for _, value in run.series(keys.STEP_S)]
    return f"{number(median(values))} s" if values else NOTHING


def _reward(run: Run) -> str:
    values = [value for _, value in run.series(keys.REWARD)]
    if not values:
        return NOTHING
    first, last, n = first_and_last(values)
    return f"{number(first)} \N{RIGHTWARDS ARROW} {number(last)} (means of {n})"


def _sizes(run: Run) -> str:
    batch, samples = run.about.get("batch_groups"), run.about.get("n_samples")
    return f"{batch or NOTHING}, {samples or NOTHING}"


def load(run: Run) -> float | None:
    """Groups that got ready over groups that were trained; None when the log does not say."""
    columns = account(run, "groups")
    if not columns or not columns["trained"]:
        return None
    return sum(columns.get(name, 0.0) for name in ("trained", "rejected", "evicted", "in_pool")) / columns["trained"]


def _load(run: Run) -> str:
    value = load(run)
    return number(value)


def _groups(run: Run) -> str:
    columns = account(run, "groups") or {}
    return ", ".join(number(columns.get(name)) for name in ("trained", "rejected", "evicted"))


def _tokens(run: Run) -> str:
    columns, share = account(run, "tokens"), run.latest(keys.WASTED)
    if not columns:
        return NOTHING
    return f"{number(columns['generated'])}, " + (f"{share:.1%}" if share is not None else NOTHING)


def _lag(run: Run) -> str:
    lags = [d.total for d in run.decisions if d.trained and d.total is not None]
    return f"{number(sum(lags) / len(lags))} versions, at most {number(max(lags))}" if lags else NOTHING


def changed(run: Run) -> dict[str, object]:
    """Flag -> value where it isn't PACE's default; the log's folder left out."""
    defaults = {f.name: f.default for f in fields(PaceConfig)}
    return {
        flag(name): value
        for name, value in run.settings.items()
        if name in defaults and name != "log_dir" and value != defaults[name]
    }


def _settings(run: Run) -> str:
    found = [name if value is True else f"{name} {value}" for name, value in changed(run).items()]
    return "  ".join(found) or "none"


def warnings(run: Run) -> list[str]:
    """What a reader should know before reading on."""
    found = [_rejected_nothing(run), _unclosed(run), *_log_itself(run)]
    coverage = [value for _, value in run.series(keys.COVERAGE)]
    if coverage and min(coverage) < 1:
        found.append(
            f"Up to {1 - min(coverage):.1%} of a batch's tokens have no known policy version; they count as unknown, "
            "not as fresh. Every engine should label its tokens."
        )
    share = run.latest(keys.WASTED)
    if share is not None and share > WASTE:
        found.append(
            f"{share:.0%} of all generated tokens were thrown away: rollout outruns training by far. Give the trainer "
            "more of the machines, or bound what is started with --pace.admission areal."
        )
    return [text for text in found if text]


def _rejected_nothing(run: Run) -> str:
    if any(map(rejected, run.decisions)):
        return ""
    if run.settings.get("max_reject_rate") == 0:
        return "PACE rejected nothing: rejection is off (--pace.max_reject_rate 0)."
    above, steps = over_target(run)
    if steps and not above:
        return (
            "PACE rejected nothing: occupancy never exceeded the target; rollout does not outrun training (inert by "
            "design)."
        )
    if steps:
        return (
            f"PACE rejected nothing, although occupancy exceeded the target at {above} of {steps} steps: the surplus "
            "was too small or too short for the smoothed rate (--pace.rate_smoothing)."
        )
    return ""


def _unclosed(run: Run) -> str:
    lost = [(unit, gap(columns)) for unit in ("groups", "tokens") if (columns := account(run, unit))]
    wrong = [f"{number(value)} {unit}" for unit, value in lost if abs(value) >= 0.5]
    return f"The account does not close: {' and '.join(wrong)} are not accounted for." if wrong else ""


def _log_itself(run: Run) -> list[str]:
    found = []
    if run.end is None:
        found.append("The log has no last line: the run goes on, or it was killed. Totals are those of its last step.")
    if run.torn:
        found.append("The last line of the log was cut off and is left out.")
    if run.n_not_finite:
        found.append(f"{run.n_not_finite} numbers in the log are not finite (NaN or infinite) and are left out.")
    return found
