"""Decoupled PPO: the trust region is around a recent policy, the correction goes to the policy that sampled.

Invariant: the behaviour weight is a constant of the data (no gradient) in [0, behaviour_cap]; with behaviour equal to
the proximal policy the loss is PPO's, to the last bit upstream's `PolicyLoss` of the same clip. In and out: see
`SurrogateLoss`. pi_prox is the policy at the start of the update (`old_log_probs`), pi_behav is the version that
sampled each token (`rollout_log_probs`), so sequences of mixed versions are exact.

    u = pi_theta / pi_prox,   w = pi_prox / pi_behav
    loss = -E[ w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A) ]                      (arXiv 2505.24298, eq. 5)

E divides by the number of all tokens, also when w masks some of them. Source of the cap, its modes and levels: AReaL's
code. A weight by sequence is the geometric mean of its tokens' ratios, which doesn't grow with the length. Dual clip
(arXiv 1912.09729, eq. 5): for A < 0 the objective is at least dual_clip A.
"""

import math
from enum import Enum

import torch

from openrlhf.trainer.losses.surrogate import (
    SurrogateLoss,
    TokenBatch,
    TokenLosses,
    bounded_exp,
    clipped_objective,
)


class BehaviourMode(str, Enum):
    """What becomes of a behaviour weight above the cap."""

    CLAMP = "clamp"  # the cap itself
    MASK = "mask"  # 0


class BehaviourLevel(str, Enum):
    """What has a behaviour weight of its own."""

    TOKEN = "token"
    SEQUENCE = "sequence"


class DecoupledPpoLoss(SurrogateLoss):
    """PPO around the proximal policy, weighted by how likely it is to have sampled the data; see the module."""

    def __init__(
        self,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        behaviour_cap: float = 5.0,
        behaviour_mode: BehaviourMode | str = BehaviourMode.CLAMP,
        level: BehaviourLevel | str = BehaviourLevel.TOKEN,
        dual_clip: float | None = None,
        token_level: bool = True,
    ) -> None:
        """Clips are distances of the ratio u from 1. Raises ValueError for a `clip_low` outside [0, 1], a negative
        `clip_high`, a cap below 1 (it would cut on-policy data), a `dual_clip` of at most 1, or an unknown name."""
        super().__init__(token_level=token_level)
        if not (0.0 <= clip_low <= 1.0 and clip_high >= 0.0):
            raise ValueError(f"PPO needs 0 <= clip_low <= 1 and clip_high >= 0, got {clip_low} and {clip_high}")
        if not behaviour_cap >= 1.0:
            raise ValueError(f"behaviour_cap must be at least 1, or on-policy data are cut; got {behaviour_cap}")
        if dual_clip is not None and not dual_clip > 1.0:
            raise ValueError(f"dual_clip must be above 1, got {dual_clip}")
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.behaviour_cap = behaviour_cap
        self.behaviour_mode = BehaviourMode(behaviour_mode)
        self.level = BehaviourLevel(level)
        self.dual_clip = dual_clip

    def token_losses(self, batch: TokenBatch) -> TokenLosses:
        ratio = bounded_exp(batch.new - batch.old)
        objective, clipped = clipped_objective(ratio, batch.advantages, 1 - self.clip_low, 1 + self.clip_high)
        if self.dual_clip is not None:
            floor = torch.where(batch.advantages < 0, self.dual_clip * batch.advantages, -math.inf)
            objective = torch.maximum(objective, floor)
        weight, filtered = self._behaviour_weight(batch)
        return TokenLosses(loss=-weight * objective, clipped=clipped, filtered=filtered)

    def _behaviour_weight(self, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights and where they were cut, (B, A) by token or (B, 1) by sequence."""
        log_weight = (batch.old - batch.behaviour).detach()
        if self.level is BehaviourLevel.SEQUENCE:
            counts = batch.mask.sum(dim=-1, keepdim=True).clamp(min=1)
            log_weight = log_weight.sum(dim=-1, keepdim=True) / counts
        weight = bounded_exp(log_weight)
        filtered = weight > self.behaviour_cap
        instead = self.behaviour_cap if self.behaviour_mode is BehaviourMode.CLAMP else 0.0
        return torch.where(filtered, instead, weight), filtered
