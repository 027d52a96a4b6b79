"""Stage 1 of TRACE for the rollout manager: the shares of a round's candidates in the budget.

Invariant: a round that may start k of the P trees of a batch has the budget M k / P and chooses among n k / P prompts,
so a batch costs the same however its trees come in.

In: leased prompts. Out: their tasks, with the number of bare rollouts (0: skipped). Source: trace.md 2; rounds are
design.
"""

import logging
import random
from dataclasses import dataclass, replace
from typing import Any

from ray.exceptions import RayError

from openrlhf.trainer.fully_async.messages import Task
from pace.prompts import Lease
from trace_alloc.allocator import plan_roots
from trace_alloc.config import TraceConfig
from trace_alloc.predictor import Anchor
from trace_alloc.serialisation import serialise

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RootAllocator:
    """`predictor` is an actor handle, `batch_groups` is P, `flat_rollouts` P times the flat group's size."""

    config: TraceConfig
    predictor: Any
    batch_groups: int
    flat_rollouts: int
    seed: int

    @property
    def round(self) -> dict[str, int]:
        """How a round is leased: prompts to choose from per tree, and trees that are worth a round."""
        choice = self.config.n_candidates(self.batch_groups, self.flat_rollouts) // self.batch_groups
        return {"choice": choice, "at_least": max(1, self.batch_groups // 2)}

    async def shares(self, leases: tuple[Lease, ...], tasks: list[Task], *, n_start: int, version: int) -> list[Task]:
        """The tasks with the bare rollouts that each is given."""
        warm = version >= self.config.warmup_steps
        scores = await predicted(
            self.predictor, [root(lease, task) for lease, task in zip(leases, tasks, strict=True)]
        )
        budget = round(self.config.bare_budget(self.flat_rollouts) * n_start / self.batch_groups)
        seed = random.Random(f"{self.seed}:{leases[0].group_id}").getrandbits(32)
        plan = plan_roots(self.config, scores, n_start=n_start, budget=budget, warm=warm, seed=seed)
        if plan.unspent:
            logger.info("%d of %d bare rollouts fit on none of %d prompts", plan.unspent, budget, len(leases))
        return [
            replace(task, n_samples=count, predicted=score, uniform=not warm)
            for task, count, score in zip(tasks, plan.counts, scores, strict=True)
        ]


def root(lease: Lease, task: Task) -> Anchor:
    """The prompt as the predictor knows it."""
    return Anchor(key=str(lease.index), turn=0, text=serialise(task.prompt, turn=0))


async def predicted(predictor: Any, anchors: list[Anchor]) -> list[float]:
    """Scores in [0, 1]; 0.5 for all while the predictor is away."""
    try:
        scores: list[float] = await predictor.score.remote(anchors)
        return scores
    except RayError as error:
        logger.warning("the predictor is away, every prompt counts as even: %s", f"{error}".splitlines()[-1])
        return [0.5] * len(anchors)
