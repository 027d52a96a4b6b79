"""Keeps the engines busy: leases prompts from the pool, has groups rolled out, hands them back.

Invariants: every lease ends exactly once, as a ready, filtered or failed group (`put` and `close` may be repeated
after a lost reply); there is no batch barrier, and nothing here waits for a weight sync. The pool decides how many
groups are in flight; this actor remembers nothing that the pool does not know, so it may die and be started again.

In: leases, the prompt data set. Out: groups into the pool.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayActorError, RayError

from openrlhf.launch.problem import cause
from openrlhf.trainer.fully_async.engine_balancer import EngineBalancer
from openrlhf.trainer.fully_async.messages import POOL_PATIENCE_S, POOL_RETRY_S, GroupReport, Task
from pace.config import PaceConfig
from pace.prompts import Lease
from pace.types import RejectReason

logger = logging.getLogger(__name__)

LEASE_WAIT_S = 10.0
ENGINE_RETRY_S = 0.5
# A prompt at which engines die again and again must not take all of them down for ever.
ENGINE_DEATHS_PER_GROUP = 3
# When so many groups have failed and none was finished, the environment or the reward is broken, not a prompt.
FIRST_FAILURES = 16

TaskOf = Callable[[Lease], Task]
Keep = Callable[[tuple[float | None, ...]], bool]


class RolloutManager:
    """The loop, apart from Ray's actor: `engines` and `pool` are actor handles, `task_of` the data set.

    `keep` says whether a finished group with these scores is worth training (dynamic filtering).
    """

    def __init__(
        self, *, engines: list[Any], pool: Any, config: PaceConfig, task_of: TaskOf, tokenizer: Any, keep: Keep
    ) -> None:
        self._engines = engines
        self._pool = pool
        self._config = config
        self._task_of = task_of
        self._tokenizer = tokenizer  # or a reference to it, so that it is not sent with every group
        self._keep = keep
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
                reply = await self._pool.lease.remote(limit=1 << 30, timeout_s=LEASE_WAIT_S)
            except RayActorError:
                await self._take_up()
                continue
            for lease in reply.leases:
                self._start(lease)
            if self._failure is not None:
                raise self._failure
            if reply.finished:
                break
        await asyncio.gather(*self._running.values())

    async def _take_up(self) -> None:
        """Starts every lease in flight that is not being worked on: after a start of ours, or of the pool."""
        for lease in await self._ask_pool(lambda: self._pool.outstanding.remote()):
            if lease.group_id not in self._running:
                self._start(lease)

    def _start(self, lease: Lease) -> None:
        task = asyncio.create_task(self._roll_out(lease))
        self._running[lease.group_id] = task
        task.add_done_callback(lambda done: self._ended(lease, done))

    def _ended(self, lease: Lease, task: asyncio.Task[None]) -> None:
        self._running.pop(lease.group_id, None)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    async def _roll_out(self, lease: Lease) -> None:
        """One lease to its end."""
        try:
            report, payload = await self._generate(lease)
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
                await self._ask_pool(lambda: self._pool.put.remote(report.group, [payload]))
            except ObjectLostError as error:  # with the machine of its engine
                await self._fail(lease, f"its payload is lost: {error}", n_tokens=report.n_tokens)

    async def _generate(self, lease: Lease) -> tuple[GroupReport, Any]:
        """Has an engine roll the group out, another one when it dies. The second value is a reference to the payload.

        Waits for engines that are being started again. Raises the last RayError after ENGINE_DEATHS_PER_GROUP deaths.
        """
        deaths = 0
        while True:
            index = self._balancer.take()
            failed = False
            try:
                call = self._engines[index].generate_group.options(num_returns=2)
                report, payload = call.remote(lease, self._task_of(lease), self._tokenizer)
                return await report, payload
            except RayError as error:
                failed = True
                restarting = isinstance(error, ActorUnavailableError)
                deaths += not restarting
                if deaths == ENGINE_DEATHS_PER_GROUP:
                    raise
                if not restarting:
                    what = f"{error}".strip().splitlines()[-1]
                    logger.warning("engine %d failed, group %s goes to another: %s", index, lease.group_id, what)
            finally:
                self._balancer.give_back(index, failed=failed)
            await asyncio.sleep(ENGINE_RETRY_S)

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
        await self._ask_pool(
            lambda: self._pool.close.remote(lease.group_id, reason=reason, n_tokens=n_tokens, put_back=put_back)
        )

    async def _ask_pool(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """A call that may be repeated; waits for a pool that is being restarted. Raises RayActorError at last."""
        deadline = asyncio.get_running_loop().time() + POOL_PATIENCE_S
        while True:
            try:
                return await ask()
            except RayActorError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                logger.warning("the trajectory pool is away; waiting for its restart")
                await asyncio.sleep(POOL_RETRY_S)


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
        self, *, pool: Any, config: PaceConfig, engines: list[Any], tasks: list[Any], tokenizer: list[Any], keep: Keep
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
        )
        await manager.run()
