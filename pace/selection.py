"""Algorithm 1, steps 3 to 5, as a pure function, and its replay from the decision log.

Invariants: the batch is never short because of a rejection; exactly B groups are chosen or nothing is rejected; the
choice depends on the listed numbers only, so that a logged draw can be decided again.

    (3) evict candidates above the hard cap     (4) rank the rest, reject up to R
    (5) fill up from behind the window, rejecting nothing more
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pace.admission import StaleCap
from pace.budget import RejectionBudget
from pace.ranking import rejection_key
from pace.types import Decision, Outcome, PoolDraw


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the choice depends on: `score` as the ranking gave it, `over_cap` from the hard cap."""

    group_id: str
    ready_version: int
    score: float | None
    over_cap: bool


def select(window: Sequence[Candidate], *, rejections: int, batch_groups: int, spare: int) -> list[Outcome]:
    """The outcome of each candidate, aligned with `window`.

    `rejections` is R, `spare` the number of groups behind the window that may take the place of evicted ones. When the
    survivors and the spare together do not reach a batch, nothing is rejected.
    """
    eligible = [i for i, candidate in enumerate(window) if not candidate.over_cap]
    n_rejected = max(0, min(rejections, len(eligible) + spare - batch_groups))

    def key(i: int) -> tuple[bool, float, int, str]:
        return rejection_key(window[i].score, window[i].ready_version, window[i].group_id)

    rejected = set(sorted(eligible, key=key)[:n_rejected])
    return [
        Outcome.EVICTED if candidate.over_cap else Outcome.REJECTED if i in rejected else Outcome.KEPT
        for i, candidate in enumerate(window)
    ]


def replay(draw: PoolDraw, *, budget: RejectionBudget, cap: StaleCap) -> list[str]:
    """Decides a logged draw again from its recorded numbers; one line per difference, none when it replays.

    `budget` and `cap` carry the run's settings; the budget's state is not touched.
    """
    differences = []
    plan = budget.plan_from(draw.plan.occupancy, rate=draw.plan.rate_before, carry=draw.plan.carry_before)
    if plan != draw.plan:
        differences.append(f"step {draw.version}: the budget was {draw.plan}, replays as {plan}")
    outcomes = _replayed_outcomes(draw, rejections=plan.rejections, cap=cap)
    for decision, outcome in zip(draw.all_decisions, outcomes, strict=True):
        if decision.outcome is not outcome:
            differences.append(
                f"step {draw.version}: group {decision.group_id} was {decision.outcome.value}, "
                f"replays as {outcome.value}"
            )
    return differences


def _replayed_outcomes(draw: PoolDraw, *, rejections: int, cap: StaleCap) -> list[Outcome]:
    def over_cap(decision: Decision) -> bool:
        return cap.reason(decision.worst_lag, decision.n_unknown) is not None

    # A group evicted before the batch was formed has no other way to leave, so it replays only if the cap says so.
    before = [Outcome.EVICTED if over_cap(decision) else Outcome.KEPT for decision in draw.evicted_before]
    window, behind = draw.decisions[: draw.n_window], draw.decisions[draw.n_window :]
    filled = [Outcome.EVICTED if over_cap(decision) else Outcome.REFILLED for decision in behind]
    candidates = [Candidate(d.group_id, d.ready_version, d.score, over_cap(d)) for d in window]
    chosen = select(
        candidates,
        rejections=rejections,
        batch_groups=draw.batch_groups,
        spare=filled.count(Outcome.REFILLED),
    )
    return before + chosen + filled
