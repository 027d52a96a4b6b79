"""Rows of rollout trees as upstream's `Experience`: any number of them, with an advantage per token.

Invariants: one row per leaf, in the order of the groups; a token is trained in the rows whose mask holds it, with the
tree's own credit. A batch is filled up to a multiple of what the ranks take with copies of its shortest row that train
nothing (one token in the mask, advantage 0), so that all ranks do the same number of collective operations.

In: responses of the drawn trees, rows of their credit. Out: upstream's `Experience` objects. Source: trace.md 6.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from openrlhf.trainer.fully_async.batch import PoolExperienceMaker, Response, rows_of, second_moment
from openrlhf.trainer.losses.ess import batch_relative_ess
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from trace_alloc.credit import Row


def row_unit(args: Any, n_updates: int) -> int:
    """Rows come in multiples of this: whole micro-batches for every rank and optimizer step."""
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    ranks //= args.ds.ring_attn_size * args.ds.tensor_parallel_size
    return math.lcm(args.rollout.micro_batch_size, args.train.micro_batch_size) * ranks * n_updates


def tree_samples(
    groups: Sequence[Sequence[Response]], *, unit: int, max_length: int, generator: SamplesGenerator
) -> tuple[list[Experience], int]:
    """One `Experience` per response and copies up to a multiple of `unit`; how many are real."""
    responses = [response for group in groups for response in group]
    shortest = min(responses, key=lambda response: len(response["observation_tokens"]))
    n_copies = -len(responses) % unit
    samples = [
        generator._process_response_into_experience(response, max_len=max_length)
        for response in [*responses, *[shortest] * n_copies]
    ]
    return samples, len(responses)


class TreeExperienceMaker(PoolExperienceMaker):
    """Upstream's experience making, with the advantages of `credit`: one row of it per real rollout."""

    credit: Sequence[Row] = ()

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """Advantages as the trees say; no estimator, no normalisation over the batch."""
        real = []
        for experience in experiences:
            rows = [self.credit[i] if i < len(self.credit) else None for i in experience.index]
            chosen = [at for at, row in enumerate(rows) if row is not None]
            if chosen:
                real.append(rows_of(experience, chosen))
            place(experience, rows)
        batches = [(e.action_log_probs, e.rollout_log_probs, e.action_mask) for e in real]
        self.relative_ess, self.m2 = batch_relative_ess(batches), second_moment(batches)
        return experiences


def place(experience: Experience, rows: Sequence[Row | None]) -> None:
    """Gives every row its advantages and takes out of the mask what it does not train; None stands for a copy.

    A row that would train nothing keeps one token with advantage 0: means over a sequence divide by the mask.
    """
    advantages = torch.zeros(experience.action_mask.shape, dtype=torch.float32)
    for at, row in enumerate(rows):
        positions = experience.action_mask[at].nonzero().flatten()  # the generated tokens, as far as max_len lets them
        n = len(positions)
        values = torch.tensor(row.advantages[:n] if row else [0.0] * n, dtype=torch.float32)
        trained = torch.tensor(row.mask[:n] if row else [False] * n, dtype=torch.bool)
        if n and not trained.any():
            trained[0], values = True, torch.zeros_like(values)
        experience.action_mask[at, positions] = trained.to(experience.action_mask.dtype)
        advantages[at, positions] = values * trained
    experience.advantages = advantages.to(experience.action_log_probs.dtype)
    experience.returns = experience.advantages.clone()
    experience.info["return"] = experience.rewards.float().clone()
    experience.kl = None
