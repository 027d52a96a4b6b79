"""VCPO's step size: the staler the data, the fewer sequences a batch is worth, the smaller the step.

Invariant: one number per global batch, however it is cut into micro-batches and ranks; 1 / B <= rho <= 1 for any
finite log-probs, since only differences to the largest log-weight are exponentiated. In: log-probs of the sampled
tokens under the policy before the update (old) and under the policy that sampled them (rollout), with their mask.
Out: a factor in (0, 1] for the learning rate of this one step.

    w_i = exp(sum_t (log pi_old - log pi_rollout))         sequence i of B, not truncated
    rho = ESS / B,   ESS = (sum_i w_i)^2 / sum_i w_i^2
    scale = sqrt(min(1, rho / base))   or, by the linear law, min(1, rho / base)

Source: arXiv 2602.17616 and its published code.
"""

from collections.abc import Iterable
from enum import Enum

import torch

# (old_log_probs, rollout_log_probs, action_mask), each (b, a); b and a may differ between micro-batches.
MicroBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class StepLaw(str, Enum):
    """How the step shrinks with the effective sample size."""

    SQRT = "sqrt"
    LINEAR = "linear"


def sequence_log_weights(micro_batches: Iterable[MicroBatch]) -> torch.Tensor:
    """log w_i, in nats, of every sequence that has an action token; (B,), double precision, on the CPU.

    Ranks that each hold a part of the global batch concatenate these before `relative_ess`. Raises ValueError when an
    action token has a log-prob that isn't finite: a sampled token has none under either policy.
    """
    parts = [torch.empty(0, dtype=torch.float64)]
    for old_log_probs, rollout_log_probs, action_mask in micro_batches:
        mask = action_mask.bool()
        log_ratio = old_log_probs.detach().double() - rollout_log_probs.detach().double()
        sums = torch.where(mask, log_ratio, 0.0).sum(dim=-1)
        parts.append(sums[mask.any(dim=-1)].cpu())
    log_weights = torch.cat(parts)
    if not bool(log_weights.isfinite().all()):
        raise ValueError("the log-probs of some action tokens are not finite, so the sequence weights are undefined")
    return log_weights


def relative_ess(log_weights: torch.Tensor) -> float:
    """rho of the sequences with these log-weights (B,): 1 for equal ones, 1 / B when one outweighs all others.

    Without any sequence 1: there is no sign of staleness, and no gradient to scale.
    """
    if log_weights.numel() == 0:
        return 1.0
    weights = (log_weights.double() - log_weights.max()).exp()  # rho doesn't depend on a common factor
    return min(1.0, float(weights.sum().square() / (weights.square().sum() * weights.numel())))


def batch_relative_ess(micro_batches: Iterable[MicroBatch]) -> float:
    """rho of the batch that the micro-batches make up, all of them together."""
    return relative_ess(sequence_log_weights(micro_batches))


def step_scale(rho: float, base: float = 1.0, law: StepLaw | str = StepLaw.SQRT) -> float:
    """The factor on the learning rate: 1 from rho = `base` on, below it by the law.

    Raises ValueError for a rho outside (0, 1], a base that is not above 0, or an unknown law.
    """
    if not 0.0 < rho <= 1.0:
        raise ValueError(f"the relative effective sample size lies in (0, 1], got {rho}")
    if not base > 0.0:
        raise ValueError(f"the base of the step scale must be above 0, got {base}")
    share = min(1.0, rho / base)
    return share if StepLaw(law) is StepLaw.LINEAR else share**0.5
