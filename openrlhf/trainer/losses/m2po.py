"""M2PO: a trust region on the second moment of log-ratios to the policy that sampled the tokens.

Invariant: the second moment of the tokens that the bound looks at, capped or cut as the form says, is at most `budget`
(in the clipping form unless the minimal bounds are wider). Data that are all too far give a loss of 0 in the masking
form, never an error. In and out: see `SurrogateLoss`; pi_old is the behaviour policy, token by token, so data of mixed
versions need nothing more.

    d_t = log pi_old - log pi_new,   r_t = exp(-d_t),   M2(S) = mean of d_t^2 over the tokens S

Source: arXiv 2510.01161 and its published code. Two forms that must not be mixed:

clip    (the authors' code) H = {A > 0, r > 1} or {A < 0, r < 1}. Where M2(H) > budget, tau is the largest number with
        mean over H of min(d^2, tau^2) <= budget, and every ratio is clipped to
        [min(exp(-tau), 1 - min_low), max(exp(tau), 1 + min_high)]. Loss max(-A r, -A clip(r)). The published solver
        returns the data point just below this tau.
mask    (the paper's text, AReaL's port) over all action tokens: those of largest d^2 are left out until M2 of the rest
        is within the budget. Loss -A r of the rest; the denominator stays the number of all tokens.

Both are solved per call, that is per micro-batch, as the published code does.
"""

import math
from enum import Enum

import torch

from openrlhf.trainer.losses.surrogate import (
    LOG_RATIO_BOUND,
    SurrogateLoss,
    TokenBatch,
    TokenLosses,
    bounded_exp,
    clipped_objective,
)


class M2poForm(str, Enum):
    """How the budget is kept."""

    CLIP = "clip"
    MASK = "mask"


class M2poLoss(SurrogateLoss):
    """Second-moment trust region; see the module. `is_filter_ratio` is 0: there is no weight besides the ratio."""

    def __init__(
        self,
        *,
        budget: float = 0.04,
        form: M2poForm | str = M2poForm.CLIP,
        min_low: float = 0.3,
        min_high: float = 0.5,
        token_level: bool = True,
    ) -> None:
        """`budget` in nats^2 per token; the clip bounds are never tighter than 1 - `min_low` and 1 + `min_high` (both
        unused when masking). Raises ValueError for a budget that is not above 0, `min_low` outside [0, 1], a negative
        `min_high` or an unknown form."""
        super().__init__(token_level=token_level)
        if not budget > 0.0:
            raise ValueError(f"M2PO's budget must be above 0, got {budget}")
        if not (0.0 <= min_low <= 1.0 and min_high >= 0.0):
            raise ValueError(f"M2PO needs 0 <= min_low <= 1 and min_high >= 0, got {min_low} and {min_high}")
        self.budget = budget
        self.form = M2poForm(form)
        self.min_low = min_low
        self.min_high = min_high

    def token_losses(self, batch: TokenBatch) -> TokenLosses:
        log_ratio = batch.new - batch.behaviour
        ratio = bounded_exp(log_ratio)
        # The bound is a property of the data: no gradient flows through it. Unbounded and in double precision, so that
        # one far token weighs what it weighs and long sums keep the budget.
        squares = log_ratio.detach().double().square()
        if self.form is M2poForm.MASK:
            kept = within_budget(squares, batch.mask, self.budget)
            objective, clipped = torch.where(kept, ratio * batch.advantages, 0.0), batch.mask & ~kept
        else:
            harmful = batch.mask & (batch.advantages.sign() * log_ratio.detach() > 0)
            low, high = self._clip_range(largest_bound(squares[harmful], self.budget))
            objective, clipped = clipped_objective(ratio, batch.advantages, low, high)
        return TokenLosses(loss=-objective, clipped=clipped, filtered=torch.zeros_like(clipped))

    def _clip_range(self, tau: float) -> tuple[float, float]:
        # Ratios never exceed e^LOG_RATIO_BOUND; a wider bound is none, and must not overflow.
        high = math.exp(tau) if tau < LOG_RATIO_BOUND else math.inf
        return min(1.0 / high, 1.0 - self.min_low), max(high, 1.0 + self.min_high)


def largest_bound(squares: torch.Tensor, budget: float) -> float:
    """The largest tau >= 0 with mean(min(squares, tau^2)) <= budget, in nats; inf where no bound is needed.

    `squares` (n,) are the d^2 of the harmful tokens, in nats^2 and any order; without any, tau is inf.
    """
    n = squares.numel()
    ordered = squares.double().sort().values
    sums = ordered.cumsum(0)
    # What is left in all when everything is capped at the k-th smallest, k = 1..n; grows with k.
    capped = sums + torch.arange(n - 1, -1, -1, device=squares.device) * ordered
    n_below = int((capped <= n * budget).sum())
    if n_below == n:
        return math.inf
    spent = float(sums[n_below - 1]) if n_below else 0.0
    return math.sqrt(max(0.0, n * budget - spent) / (n - n_below))


def within_budget(squares: torch.Tensor, mask: torch.Tensor, budget: float) -> torch.Tensor:
    """The largest set of tokens whose mean d^2 is at most the budget, (B, A) bool: the smallest d^2, as many as fit.

    `squares` (B, A) in nats^2; only entries under `mask` (B, A) count. Empty where even the smallest is too large.
    """
    values, order = squares[mask].double().sort(stable=True)
    ranks = torch.arange(1, values.numel() + 1, dtype=torch.float64, device=squares.device)
    n_kept = (values.cumsum(0) <= ranks * budget).sum()
    chosen = torch.empty_like(values, dtype=torch.bool)
    chosen[order] = ranks <= n_kept
    return torch.zeros_like(mask).masked_scatter(mask, chosen)
