"""From drawn groups to what upstream trains on: the only place where lists become tensors.

Invariants: groups stay whole and in order; every batch has the same number of rollouts, so that all ranks do the same
number of collective operations. The last batch of the data may have fewer groups: it is filled up with silent copies,
on which no advantage depends. They keep one token in the mask, since upstream divides by its size, and so their share
of the mean: one token each, or one sequence each with `--actor.loss_agg_mode seq-mean-token-mean`. That share makes
the last gradient smaller, and changes nothing else.

In: responses of the drawn groups. Out: upstream's `Experience` objects.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from openrlhf.trainer.losses.ess import MicroBatch, batch_relative_ess
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

Response = dict[str, Any]


def to_samples(
    groups: Sequence[Sequence[Response]], *, batch_groups: int, max_length: int, generator: SamplesGenerator
) -> tuple[list[Experience], int]:
    """One `Experience` per rollout, `batch_groups` groups of them, and how many rollouts are real.

    `generator` is upstream's, for its conversion of a response; `max_length` is `--data.max_len` in tokens. Raises
    ValueError for groups of different sizes: upstream's group baselines need equal ones.
    """
    sizes = {len(group) for group in groups}
    if len(sizes) > 1:
        raise ValueError(f"the groups of a batch have {sorted(sizes)} rollouts, but must all have the same number")
    filled = [groups[i % len(groups)] for i in range(batch_groups)]
    samples = [
        generator._process_response_into_experience(response, max_len=max_length)
        for group in filled
        for response in group
    ]
    return samples, sum(len(group) for group in groups)


class PoolExperienceMaker(RemoteExperienceMaker):
    """Upstream's, for groups of any one size and for a last batch that is not full.

    `n_real` is the number of real rollouts of the next batch, which come first (None: all). Afterwards `relative_ess`
    is the real batch's effective sample size as a share of it, and `m2` the second moment of its log-ratios.
    """

    n_real: int | None = None
    relative_ess: float = 1.0
    m2: float = 0.0

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """As upstream's on the real rollouts, in groups of the size that came; the copies are silenced."""
        n_rollouts = sum(len(experience.index) for experience in experiences)
        n_real = n_rollouts if self.n_real is None else self.n_real
        chosen = [[row for row, i in enumerate(e.index) if i < n_real] for e in experiences]
        real = experiences
        if n_real < n_rollouts:
            real = [rows_of(e, rows) for e, rows in zip(experiences, chosen, strict=True) if rows]
        asked = self.args.rollout.n_samples_per_prompt
        self.args.rollout.n_samples_per_prompt = n_rollouts // self.args.rollout.batch_size
        try:
            real = super().compute_advantages_and_returns(real)
        finally:
            self.args.rollout.n_samples_per_prompt = asked
        batches = [(e.action_log_probs, e.rollout_log_probs, e.action_mask) for e in real]
        self.relative_ess, self.m2 = batch_relative_ess(batches), second_moment(batches)
        if n_real < n_rollouts:
            parts = iter(real)
            for experience, rows in zip(experiences, chosen, strict=True):
                silence_others(experience, rows, computed=next(parts) if rows else rows_of(real[0], []))
        return experiences


def second_moment(batches: Sequence[MicroBatch]) -> float:
    """Mean square of log pi_old - log pi_behaviour over the generated tokens."""
    squares = [(old - behaviour)[mask.bool()].double().square() for old, behaviour, mask in batches]
    tokens = torch.cat(squares)
    return tokens.mean().item() if len(tokens) else 0.0


def rows_of(experience: Experience, rows: Sequence[int]) -> Experience:
    """Some rows of a batch, as one that shares nothing with it."""

    def pick(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value[list(rows)]
        if isinstance(value, dict):
            return {key: pick(item) for key, item in value.items()}
        return [value[row] for row in rows] if isinstance(value, list) and value else value

    return replace(experience, **{f.name: pick(getattr(experience, f.name)) for f in fields(Experience)})


def silence_others(experience: Experience, rows: Sequence[int], *, computed: Experience) -> None:
    """Gives `rows` what was computed for them, and all other rows no advantage and one token in the mask.

    No row gets an empty mask: upstream's means over a sequence would divide by zero. A silent row's return is what the
    critic predicts anyway; in the logs it counts like the rollout that it copies.
    """
    others = [row for row in range(len(experience.sequences)) if row not in rows]
    first = experience.action_mask[others].long().argmax(dim=-1)
    experience.action_mask[others] = 0
    experience.action_mask[others, first] = 1
    nothing = torch.zeros_like(experience.action_log_probs)
    experience.advantages = _filled(nothing, rows, computed.advantages)
    returns = nothing if experience.values is None else experience.values
    experience.returns = _filled(returns, rows, computed.returns)
    experience.rewards = _filled(experience.rewards, rows, computed.rewards)
    zeros = torch.zeros(len(experience.sequences))
    experience.info |= {
        key: _filled(experience.info.get(key, zeros), rows, value) for key, value in computed.info.items()
    }
    experience.kl = None


def _filled(values: torch.Tensor, rows: Sequence[int], computed: torch.Tensor) -> torch.Tensor:
    """A copy with other `rows`, in the type of what was computed."""
    filled = values.to(computed.dtype, copy=True)
    if rows:
        filled[list(rows)] = computed
    return filled
