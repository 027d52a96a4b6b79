"""Keeps the engines busy: leases prompts from the pool, has groups rolled out, hands them back.

Invariants: every lease ends exactly once, as a ready, filtered or failed group (`put` and `close` may be repeated
after a lost reply); there is no batch barrier, and nothing here waits for a weight sync. The pool decides how many
groups are in flight; this actor remembers nothing that the pool does not know, so it may die and be started again.

In: leases, the prompt data set. Out: groups into the pool.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError

from openrlhf.launch.problem import cause
from openrlhf.trainer.fully_async import restarts
from openrlhf.trainer.fully_async.engine_balancer import EngineBalancer, Place, on_an_engine
from openrlhf.trainer.fully_async.messages import GroupReport, Task
from openrlhf.trainer.tree.root_allocator import RootAllocator
from pace.config import PaceConfig
from pace.prompts import Lease
from pace.types import RejectReason

logger = logging.getLogger(__name__)

LEASE_WAIT_S = 10.0
# When so many groups have failed and none was finished, the environment or the reward is broken, not a prompt.
FIRST_FAILURES = 16

TaskOf = Callable[[Lease], Task]
Keep = Callable[[tuple[float | None, ...]], bool]


class RolloutManager:
    """The loop, apart from Ray's actor: `engines` and `pool` are actor handles, `task_of` the data set.

    `keep` says whether a finished group with these scores is worth training (dynamic filtering). `allocator` decides
    which of the leased prompts get how many rollouts; without one all get the same. With it, `engines` grow trees.
    """

    def __init__(
        self,
        *,
        engines: list[Any],
        pool: Any,
        config: PaceConfig,
        task_of: TaskOf,
        tokenizer: Any,
        keep: Keep,
        allocator: RootAllocator | None = None,
    ) -> None:
        self._engines = engines
        self._pool = pool
        self._config = config
        self._task_of = task_of
        self._tokenizer = tokenizer  # or a reference to it, so that it is not sent with every group
        self._keep = keep
        self._allocator = allocator
        self._balancer = EngineBalancer(len(engines))
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        self._n_finished = 0
        self._n_failed = 0

    async def run(self) -> None:
        """Until every prompt is trained or given up. Raises what no retry helps against."""
        await self._take_up()
        while True:
            try:
                reply = await self._pool.lease.remote(limit=1 << 30, timeout_s=LEASE_WAIT_S, **self._round)
            except RayActorError:
                await self._take_up()
                continue
            await self._start(reply.leases, n_start=reply.n_start, version=reply.version)
            if self._failure is not None:
                raise self._failure
            if reply.finished:
                break
        await asyncio.gather(*self._running.values())

    async def _take_up(self) -> None:
        """Starts every lease in flight that is not being worked on: after a start of ours, or of the pool."""
        known = await restarts.ask_async(lambda: self._pool.outstanding.remote())
        leases = tuple(lease for lease in known if lease.group_id not in self._running)
        await self._start(leases, n_start=len(leases), version=0)

    @property
    def _round(self) -> dict[str, int]:
        """How leases are asked for: one for each that may start, or a choice of them."""
        return {} if self._allocator is None else self._allocator.round

    async def _start(self, leases: tuple[Lease, ...], *, n_start: int, version: int) -> None:
        """Starts all of them; with an allocator the ones that it chooses, and closes the others."""
        tasks = [self._task_of(lease) for lease in leases]
        if self._allocator is not None and leases:
            tasks = await self._allocator.shares(leases, tasks, n_start=n_start, version=version)
        for lease, task in zip(leases, tasks, strict=True):
            rolling = asyncio.create_task(self._roll_out(lease, task))
            self._running[lease.group_id] = rolling
            rolling.add_done_callback(lambda done, lease=lease: self._ended(lease, done))

    def _ended(self, lease: Lease, task: asyncio.Task[None]) -> None:
        self._running.pop(lease.group_id, None)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    async def _roll_out(self, lease: Lease, task: Task) -> None:
        """One lease to its end; no rollouts in its task mean that it is skipped."""
        if not task.n_samples:
            await self._close(lease, RejectReason.SKIP, 0, put_back=False)
            return
        try:
            report, payload = await self._generate(lease, task)
        except RayError as error:
            report, payload = GroupReport(group=None, n_tokens=0, failure=f"engines died: {cause(error)}"), None
        self._n_finished += report.group is not None
        if report.group is None:
            await self._fail(lease, report.failure, n_tokens=report.n_tokens)
            self._give_up_if_all_fail(report.failure)
        elif not self._keep(report.scores):
            await self._close(lease, RejectReason.FILTER, report.n_tokens, put_back=False)
        else:
            try:
                await restarts.ask_async(lambda: self._pool.put.remote(report.group, [payload]))
            except ObjectLostError as error:  # with the machine of its engine
                await self._fail(lease, f"its payload is lost: {error}", n_tokens=report.n_tokens)

    async def _generate(self, lease: Lease, task: Task) -> tuple[GroupReport, Any]:
        """Has an engine roll the group out. The second value is a reference to the payload."""

        async def call(place: Place) -> tuple[GroupReport, Any]:
            generate = self._engines[place.index].generate_group.options(num_returns=2)
            report, payload = generate.remote(lease, task, self._tokenizer)
            return await report, payload

        return await on_an_engine(self._balancer, lease.group_id, call)

    async def _fail(self, lease: Lease, failure: str, *, n_tokens: int) -> None:
        again = self._config.on_failure == "requeue" and lease.attempt < self._config.requeue_cap
        fate = "again later" if again else "dropped"
        logger.warning("group %s failed (%s): %s", lease.group_id, fate, failure)
        await self._close(lease, RejectReason.FAILURE, n_tokens, put_back=again)

    def _give_up_if_all_fail(self, failure: str) -> None:
        """Raises RuntimeError when the first FIRST_FAILURES groups have all failed."""
        self._n_failed += 1
        if not self._n_finished and self._n_failed >= FIRST_FAILURES:
            raise RuntimeError(f"the first {self._n_failed} groups all failed, the last one of: {failure}")

    async def _close(self, lease: Lease, reason: RejectReason, n_tokens: int, *, put_back: bool) -> None:
        await restarts.ask_async(
            lambda: self._pool.close.remote(lease.group_id, reason=reason, n_tokens=n_tokens, put_back=put_back)
        )


@dataclass(frozen=True)
class KeepBetween:
    """Dynamic filtering (DAPO): keeps groups whose mean score lies strictly between the two, and those without scores.

    With the default bounds every group is kept.
    """

    low: float = -math.inf
    high: float = math.inf

    def __call__(self, scores: tuple[float | None, ...]) -> bool:
        known = [score for score in scores if score is not None]
        return len(known) < len(scores) or not known or self.low < sum(known) / len(known) < self.high


@ray.remote(num_cpus=0, max_restarts=-1)
class RolloutManagerActor:
    """The manager in a process of its own.

    Made without arguments: one that lies in the object store may be gone when Ray restarts the actor.
    """

    async def run(
        self,
        *,
        pool: Any,
        config: PaceConfig,
        engines: list[Any],
        tasks: list[Any],
        tokenizer: list[Any],
        keep: Keep,
        allocator: RootAllocator | None,
    ) -> None:
        """See `RolloutManager.run`. `tasks` and `tokenizer` are references in lists: to one task per row, and to what
        the engines are given as it is."""
        rows = await tasks[0]
        manager = RolloutManager(
            engines=engines,
            pool=pool,
            config=config,
            task_of=lambda lease: rows[lease.index],
            tokenizer=tokenizer[0],
            keep=keep,
            allocator=allocator,
        )
        await manager.run()
