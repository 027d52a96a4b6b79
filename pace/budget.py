"""How many groups to reject: the rejection budget, set by the pool's occupancy.

Invariants: a plan never leaves fewer than a full batch (R_j <= Q_j - B), the applied rate is in [0, r_max], and it is
0 whenever ready groups are scarce. For step j with Q ready groups and batch B:

    Q*  = kappa B                                             target (design)
    e   = max(0, Q - Q*) / Q          law "share"             excess (digest: occupancy relative to the target)
        = min(1, max(0, Q - Q*) / Q*) law "relative"
    r_j = min(r_max, beta r_{j-1} + (1 - beta) e)             smoothing (digest: EMA)
    r_j = 0 and the EMA is halved if Q < B + margin           release, at once (paper: relax when data is scarce)
    R_j = floor(B r_j / (1 - r_j) + carry), M_j = B + R_j     integers; the fraction is carried on (design)

Under constant load rho > 1 (rollout over training speed) the share law settles at Q = rho Q*, the relative law at
Q* (2 - 1/rho): the target is where rejection begins, not where the pool comes to rest. For rho < 1 the pool stays near
B and nothing is rejected.
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pace.state import State, StateError, check_keys
from pace.types import BudgetPlan


class ExcessLaw(str, Enum):
    """Surplus as a share of the pool, or relative to the target."""

    SHARE = "share"
    RELATIVE = "relative"


def excess(occupancy: int, target: float, law: ExcessLaw) -> float:
    """e_j in [0, 1] for `occupancy` ready groups and a target of `target` groups (> 0)."""
    surplus = max(0.0, occupancy - target)
    if law is ExcessLaw.SHARE:
        return surplus / occupancy if occupancy else 0.0
    return min(1.0, surplus / target)


class RejectionBudget:
    """Turns occupancy into an integer number of rejections, one plan per step.

    `batch_groups` is B, `target_batches` kappa >= 1, `smoothing` beta in [0, 1), `max_rate` r_max in [0, 1); 0 turns
    rejection off. `scarce_margin` is how many ready groups beyond B count as scarce still. Raises ValueError
    otherwise.
    """

    def __init__(
        self,
        *,
        batch_groups: int,
        target_batches: float = 1.25,
        law: ExcessLaw = ExcessLaw.SHARE,
        smoothing: float = 0.8,
        max_rate: float = 0.5,
        scarce_margin: int = 0,
    ) -> None:
        in_range = batch_groups >= 1 and 1.0 <= target_batches < math.inf and scarce_margin >= 0
        if not (in_range and 0.0 <= smoothing < 1.0 and 0.0 <= max_rate < 1.0):
            raise ValueError("RejectionBudget: a setting is out of range, see the class docstring")
        self.batch_groups = batch_groups
        self.target = target_batches * batch_groups
        self.law = law
        self.smoothing = smoothing
        self.max_rate = max_rate
        self.scarce_margin = scarce_margin
        self.rate = 0.0
        self.carry = 0.0

    def plan(self, occupancy: int) -> BudgetPlan:
        """The budget of the next step with `occupancy` ready groups; call once per step, it moves the state on."""
        plan = self.plan_from(occupancy, rate=self.rate, carry=self.carry)
        self.rate, self.carry = plan.rate_after, plan.carry_after
        return plan

    def plan_from(self, occupancy: int, *, rate: float, carry: float) -> BudgetPlan:
        """The plan as a pure function of the recorded numbers: `rate` is r_{j-1}, `carry` the fraction left over."""
        over = excess(occupancy, self.target, self.law)
        scarce = occupancy < self.batch_groups + self.scarce_margin
        if scarce:
            applied, after = 0.0, rate / 2
        else:
            applied = after = min(self.max_rate, self.smoothing * rate + (1.0 - self.smoothing) * over)
        wanted = self.batch_groups * applied / (1.0 - applied) + (0.0 if scarce else carry)
        whole = math.floor(wanted)
        rejections = max(0, min(whole, occupancy - self.batch_groups))
        return BudgetPlan(
            occupancy=occupancy,
            target=self.target,
            excess=over,
            scarce=scarce,
            rate_before=rate,
            rate=applied,
            rate_after=after,
            carry_before=carry,
            carry_after=carry if scarce else wanted - whole,
            candidates=min(occupancy, self.batch_groups + rejections),
            rejections=rejections,
        )

    def state_dict(self) -> State:
        """The smoothed rate and the carried fraction."""
        return {"rate": self.rate, "carry": self.carry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises StateError on foreign keys or numbers out of range."""
        check_keys(state, ("rate", "carry"), type(self).__name__)
        rate, carry = float(state["rate"]), float(state["carry"])
        if not (0.0 <= rate < 1.0 and 0.0 <= carry < 1.0):
            raise StateError(f"state of RejectionBudget: rate {rate} or carry {carry} is out of range")
        self.rate, self.carry = rate, carry

    def metrics(self) -> dict[str, float]:
        """Gauges: `rate`, `carry`, `target`."""
        return {"rate": self.rate, "carry": self.carry, "target": self.target}
