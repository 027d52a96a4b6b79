"""What the losses for stale data share: upstream's interface, bounded ratios, the clipped objective, the reduction.

Invariant: called exactly as upstream's `PolicyLoss` and answering with the same five values, a loss of this package
can take the place of `ActorPPOTrainer.actor_loss_fn`. Loss, metrics and gradients are finite for finite log-probs and
advantages, whatever padding holds, also when no token is left. In: log-probs under three policies, advantages and the
action mask, all (B, A). Out: a scalar, reduced by upstream's own `aggregate_loss`, and metrics.

    objective = min(r A, clip(r, low, high) A),   r = exp(log pi_a - log pi_b)         (PPO, arXiv 1707.06347, eq. 7)
"""

from dataclasses import dataclass

import torch
from torch import nn

from openrlhf.models.loss import aggregate_loss

# In nats; upstream's own bound. e^20 is 5e8: two such weights times an advantage are finite in float32, and no policy
# that is worth a gradient step is that far from another.
LOG_RATIO_BOUND = 20.0

LossAndMetrics = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """One micro-batch, every tensor (B, A) and 0 where `mask` is False. Log-probs in nats.

    `new` has the gradient. `old` is the policy at the start of the update, recomputed by the trainer; `behaviour` is
    the policy that sampled the token, whichever version that was, as recorded by the engine.
    """

    new: torch.Tensor
    old: torch.Tensor
    behaviour: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """`loss` (B, A) before the reduction; `clipped` (B, A): tokens whose gradient the method removed; `filtered`:
    where a weight for the behaviour policy was cut, (B, A) by token or (B, 1) by sequence."""

    loss: torch.Tensor
    clipped: torch.Tensor
    filtered: torch.Tensor


class SurrogateLoss(nn.Module):
    """A policy loss with upstream's call signature; subclasses say what one token contributes."""

    def __init__(self, *, token_level: bool = True) -> None:
        """`token_level`: mean over tokens, else mean over sequences of their token means."""
        super().__init__()
        self.token_level = token_level

    def token_losses(self, batch: TokenBatch) -> TokenLosses:
        raise NotImplementedError

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        rollout_log_probs: torch.Tensor | None = None,
        dp_size: int = 1,
        batch_num_tokens: float | torch.Tensor | None = None,
        global_batch_size: float | torch.Tensor | None = None,
    ) -> LossAndMetrics:
        """Returns (loss, clip_ratio, ppo_kl, vllm_kl, is_filter_ratio), all 0-D.

        Log-probs, advantages and mask are (B, A). Without `rollout_log_probs` the behaviour policy is taken to be
        `old_log_probs`. `batch_num_tokens`, `global_batch_size` and `dp_size` normalise over micro-batches and ranks
        as in upstream's `aggregate_loss`.

        clip_ratio: share of tokens clipped or masked. ppo_kl: mean old - new, vllm_kl: mean rollout - old, in nats.
        is_filter_ratio: share of tokens (of sequences, for a weight by sequence) whose behaviour weight was cut. The
        last two are None together without `rollout_log_probs`, since upstream logs both or neither.
        """
        mask = torch.ones_like(log_probs, dtype=torch.bool) if action_mask is None else action_mask.bool()
        behaviour = old_log_probs if rollout_log_probs is None else rollout_log_probs
        # Padding is cut out before any arithmetic: a NaN times a mask of 0 would still be a NaN.
        new, old, behaviour, advantages = (
            torch.where(mask, values, 0.0) for values in (log_probs, old_log_probs, behaviour, advantages)
        )
        tokens = self.token_losses(TokenBatch(new=new, old=old, behaviour=behaviour, advantages=advantages, mask=mask))
        loss = _reduce(tokens.loss, mask, self.token_level, dp_size, batch_num_tokens, global_batch_size)
        with torch.no_grad():
            clip_ratio, ppo_kl = masked_mean(tokens.clipped, mask), masked_mean(old - new, mask)
            if rollout_log_probs is None:
                return loss, clip_ratio, ppo_kl, None, None
            units = mask if tokens.filtered.shape == mask.shape else mask.any(dim=-1, keepdim=True)
            return loss, clip_ratio, ppo_kl, masked_mean(behaviour - old, mask), masked_mean(tokens.filtered, units)


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp within +-`LOG_RATIO_BOUND` nats. Outside the value is constant and the gradient 0, never 0 * inf."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def clipped_objective(
    ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's pessimistic objective by token, to be maximised, and where the clip decides it. Bounds are ratios."""
    unclipped = ratio * advantages
    clipped = ratio.clamp(low, high) * advantages
    return torch.minimum(unclipped, clipped), clipped < unclipped


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the True entries of a mask of the same shape, 0 without any."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def _reduce(
    loss: torch.Tensor,
    mask: torch.Tensor,
    token_level: bool,
    dp_size: int,
    batch_num_tokens: float | torch.Tensor | None,
    global_batch_size: float | torch.Tensor | None,
) -> torch.Tensor:
    """`aggregate_loss`, but 0 with a zero gradient where it divides 0 by 0 because the batch has no token."""
    total = batch_num_tokens if token_level else global_batch_size
    if total is None:  # upstream then takes the micro-batch for the whole batch, and no rank counts
        total, dp_size = (mask if token_level else mask.any(dim=-1)).sum(), 1
    # Totals may be fractions (upstream divides them by the accumulation steps), so only 0 itself is replaced.
    total = torch.where(total > 0, total, torch.ones_like(total)) if isinstance(total, torch.Tensor) else total or 1.0
    return aggregate_loss(loss, mask, token_level, dp_size, batch_num_tokens=total, global_batch_size=total)
