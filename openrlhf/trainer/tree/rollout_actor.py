"""Grows rollout trees: bare rollouts on an engine, scores of their prefixes, continuations where they may turn out
otherwise.

Invariants: a prompt's continuations start as soon as its own bare rollouts are back, whatever others do; a tree stays
on the engine that holds its prefixes and environments unless that one is overloaded and the environments can travel.
The actor remembers nothing between calls, so that it may die: its callers have the tree grown again.

In: leases whose tasks say how many bare rollouts. Out: as an engine's `generate_group`. Source: trace.md 3, 8.
"""

import logging
import random
from typing import Any

import ray

from openrlhf.trainer.fully_async.engine_balancer import EngineBalancer, Place, on_an_engine
from openrlhf.trainer.fully_async.messages import BareReport, GroupReport, Task
from openrlhf.trainer.tree.root_allocator import predicted
from pace.prompts import Lease
from trace_alloc.allocator import plan_prefixes
from trace_alloc.config import TraceConfig
from trace_alloc.predictor import Anchor
from trace_alloc.serialisation import serialise

logger = logging.getLogger(__name__)


class TreeRollouts:
    """The work of a `TreeRolloutActor`, apart from Ray: `engines` and `predictor` are actor handles.

    `seed` settles ties and draws.
    """

    def __init__(self, *, engines: list[Any], predictor: Any, config: TraceConfig, seed: int) -> None:
        self._engines = engines
        self._predictor = predictor
        self._config = config
        self._seed = seed
        self._balancer = EngineBalancer(len(engines))

    async def generate_group(self, lease: Lease, task: Task, tokenizer: list[Any]) -> tuple[GroupReport, bytes]:
        """A tree for the prompt. `tokenizer` is a reference in a list, handed on unread.

        Raises RayError when engines keep dying.
        """

        async def grow(place: Place) -> tuple[GroupReport, bytes]:
            bare: BareReport = await self._engines[place.index].roll_out_bare.remote(lease, task, tokenizer[0])
            if bare.failure is not None:
                return bare.failure, b""
            counts, notes = await self._allocated(lease, task, bare)
            moved = await self._moved(place, lease) if any(map(any, counts)) else None
            call = self._engines[place.index].expand.options(num_returns=2)
            report, content = call.remote(lease, task, tokenizer[0], counts, notes, moved)
            return await report, await content

        return await on_an_engine(self._balancer, lease.group_id, grow)

    async def _moved(self, place: Place, lease: Lease) -> Any:
        """A reference to the tree as the engine that it leaves packed it; None where it stays."""
        other = self._balancer.lighter(place.index)
        if other == place.index:
            return None
        holder = self._engines[place.index]
        packs, content = holder.hand_over.options(num_returns=2).remote(lease.group_id)
        if not await packs:
            return None
        self._balancer.move(place.index, other)
        place.index = other
        return content

    async def _allocated(self, lease: Lease, task: Task, bare: BareReport) -> tuple[list[list[int]], dict[str, Any]]:
        """Continuations per prefix of each bare rollout, and what the trainer learns about the choice."""
        anchors = [
            Anchor(key=str(lease.index), turn=prefix.turn, text=serialise(prefix.text, turn=prefix.turn))
            for rollout in bare.rollouts
            for prefix in rollout.prefixes
        ]
        rewards = [rollout.reward for rollout in bare.rollouts for _ in rollout.prefixes]
        wanted = anchors and self._config.continuations and not self._config.flat
        scores = await predicted(self._predictor, anchors) if wanted else [0.5] * len(anchors)
        plan = plan_prefixes(
            self._config,
            scores,
            rewards,
            n_bare=len(bare.rollouts),
            warm=not task.uniform,
            seed=random.Random(f"{self._seed}:{lease.group_id}").getrandbits(32),
        )
        spread, rest = iter(plan.counts), iter(scores)
        counts = [[next(spread) for _ in rollout.prefixes] for rollout in bare.rollouts]
        chosen = [
            [j, prefix.n_given, score]
            for j, (rollout, row) in enumerate(zip(bare.rollouts, counts, strict=True))
            for prefix, count, score in zip(rollout.prefixes, row, rest, strict=False)
            if count
        ]
        return counts, {"predicted": task.predicted, "anchors": chosen, "unspent": plan.unspent}


TreeRolloutActor = ray.remote(num_cpus=0, max_restarts=-1)(TreeRollouts)
