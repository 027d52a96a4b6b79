"""What the rollout loop's tests play in: the real pool behind a handle that can be killed, and fake engines."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError

from openrlhf.trainer.fully_async.messages import GroupReport, Task
from openrlhf.trainer.fully_async.rollout_manager import (
    KeepBetween,
    RolloutManager,
)
from pace.actor import PoolService
from pace.config import PaceConfig
from pace.durable import DurablePool
from pace.prompts import Lease
from pace.types import Trajectory, TrajectoryGroup, VersionSpan

from ..virtual_time import run

PATIENCE_S = 30.0  # of virtual time, more than any of this takes: a run that hangs fails


class PoolHandle:
    """Ray's handle of the pool's actor: calls to a process that may be killed and comes back from its journal."""

    def __init__(self, make: Callable[..., PoolService]) -> None:
        self._make = make
        self.service = make(fresh=True)
        self.down = False
        self.lost_replies: Counter[str] = Counter()  # how many replies of a method are still to be lost
        self.ends: Counter[str] = Counter()  # by group id, `put` and `close` calls that changed something
        self._calls: set[Any] = set()

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *args, **kwargs: self._call(method, args, kwargs))

    async def _call(self, method: str, args: Any, kwargs: Any) -> Any:
        await asyncio.sleep(0)
        if self.down:
            raise RayActorError()
        call = asyncio.ensure_future(getattr(self.service, method)(*args, **kwargs))
        self._calls.add(call)
        try:
            reply = await call
        except asyncio.CancelledError:
            if call.cancelled() and self.down:
                raise RayActorError() from None
            raise
        finally:
            self._calls.discard(call)
        if method in ("put", "close") and reply:
            self.ends[args[0].group_id if method == "put" else args[0]] += 1
        if self.lost_replies[method]:
            self.lost_replies[method] -= 1
            raise ActorUnavailableError("the reply is lost", None)
        return reply

    def kill(self) -> None:
        self.down = True
        for call in self._calls:
            call.cancel()

    def restart(self) -> None:
        self.service, self.down = self._make(fresh=False), False

    @property
    def core(self) -> Any:
        return self.service._pool.core

    @property
    def fates(self) -> dict[str, int]:
        return {name: n for name, n in self.core.pool.ledger.columns()["groups"].items() if n}


class FakeEngine:
    """An engine actor without a model. `act` decides what becomes of a call: None for a group, else a report or an
    exception; `seconds` is how long it takes."""

    def __init__(self, world: Any, *, act: Callable[[Lease], Any] = lambda lease: None, seconds: float = 0.0) -> None:
        self._world = world
        self.act = act
        self.seconds = seconds
        self.calls: list[str] = []  # group ids
        self.generate_group = SimpleNamespace(options=self._options)

    def _options(self, *, num_returns: int) -> Any:
        assert num_returns == 2
        return SimpleNamespace(remote=self._remote)

    def _remote(self, lease: Lease, task: Any, tokenizer: Any) -> tuple[Any, Any]:
        assert task.prompt == f"task {lease.index}" and tokenizer == "tokenizer"
        self.calls.append(lease.group_id)
        running = asyncio.ensure_future(self._generate(lease))
        running.add_done_callback(lambda done: done.cancelled() or done.exception())  # a caller may be gone
        return running, _content(running, lease)

    async def _generate(self, lease: Lease) -> GroupReport:
        began = self._world.version
        await asyncio.sleep(self.seconds)
        outcome = self.act(lease)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome or report(lease, began=began, ready=self._world.version)


class _content:
    """Reference to the payload of a call."""

    def __init__(self, running: Any, lease: Lease) -> None:
        self._running, self._lease = running, lease

    def __await__(self) -> Any:
        yield from asyncio.wait([self._running]).__await__()
        return self._lease.group_id.encode()


class Kept:
    """Reference to bytes that the pool keeps."""

    def __init__(self, content: bytes) -> None:
        self.content = content


def report(lease: Lease, *, began: int = 0, ready: int = 0, scores: Any = (0.0, 1.0)) -> GroupReport:
    """A group of two trajectories, of which `began` versions ago the first token was made; three tokens each."""
    spans = (VersionSpan(began, 1), VersionSpan(ready, 2)) if began != ready else (VersionSpan(ready, 3),)
    trajectories = tuple(
        Trajectory(
            trajectory_id=f"{lease.group_id}/{i}",
            group_id=lease.group_id,
            prompt_id=lease.prompt_id,
            spans=spans,
            completed_version=ready,
        )
        for i in range(2)
    )
    group = TrajectoryGroup(
        group_id=lease.group_id,
        prompt_id=lease.prompt_id,
        trajectories=trajectories,
        ready_version=ready,
        attempt=lease.attempt,
    )
    return GroupReport(group=group, n_tokens=6, scores=scores)


def make_task(index: int) -> Task:
    return Task(prompt=f"task {index}", label="", images=None, sampling={}, max_length=64, n_samples=2)


def failure(n_tokens: int = 4) -> GroupReport:
    return GroupReport(group=None, n_tokens=n_tokens, failure="RuntimeError: the environment is broken")


class World:
    """Pool, engines, manager and a trainer that only counts versions."""

    def __init__(
        self, folder: Any, *, n_engines: int = 2, n_prompts: int = 12, batch: int = 4, episodes: int = 1, **knobs: Any
    ) -> None:
        self.version = 0
        self.config = PaceConfig(**{"max_reject_rate": 0.0, "k_max": -1, **knobs})
        self.keep: Any = KeepBetween()
        self.n_prompts = n_prompts * episodes
        self.draws: list[Any] = []

        def make(*, fresh: bool) -> PoolService:
            pool = DurablePool(
                self.config,
                batch_groups=batch,
                n_prompts=n_prompts,
                n_episodes=episodes,
                seed=0,
                folder=folder,
                fresh=fresh,
                clock=time.time,
            )
            return PoolService(pool, keep=Kept)

        self.pool = PoolHandle(make)
        self.engines = [FakeEngine(self) for _ in range(n_engines)]

    def manager(self) -> RolloutManager:
        return RolloutManager(
            engines=self.engines,
            pool=self.pool,
            config=self.config,
            task_of=lambda lease: make_task(lease.index),
            tokenizer="tokenizer",
            keep=self.keep,
        )

    async def train(self) -> None:
        step = 0
        while True:
            try:
                reply = await self.pool.draw.remote(step, timeout_s=0.2)
                if reply.draw is None:
                    if reply.finished:
                        return
                    continue
                contents = [payload.content.decode() for payload in reply.payloads]
                assert contents == [group.group_id for group in reply.draw.groups]
                await asyncio.sleep(0)
                self.version = step + 1
                await self.pool.set_version.remote(step + 1)
                await self.pool.commit.remote(step)
            except RayActorError:
                await asyncio.sleep(0.005)
                continue
            self.draws.append(reply.draw)
            step += 1

    def run(self, *others: Any) -> None:
        """Manager and trainer to the end of the data, beside whatever else happens."""

        async def scenario() -> None:
            parts = [self.manager().run(), self.train(), *(other() for other in others)]
            await asyncio.wait_for(asyncio.gather(*parts), PATIENCE_S)

        run(scenario())
        self.check()

    def check(self) -> None:
        """The ledger closes and every lease has ended once."""
        self.pool.core.pool.ledger.check()
        assert not {"in_pool", "in_flight"} & self.pool.fates.keys()
        assert set(self.pool.ends.values()) <= {1}, "a group that left twice"
        assert sum(self.pool.ends.values()) == self.pool.fates["generated"]

    @property
    def trained(self) -> Counter[str]:
        """How often each prompt was trained."""
        return Counter(group.prompt_id for draw in self.draws for group in draw.groups)

    @property
    def calls(self) -> Counter[str]:
        """How often each group was asked for."""
        return sum((Counter(engine.calls) for engine in self.engines), Counter())
