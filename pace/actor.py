"""The trajectory pool as a Ray actor: awaiting, waking up, payloads. It decides nothing.

Invariants: a call changes the pool in one go, between two awaits, so calls never interleave; a waiting call looks
again only after something changed, and holds nothing while it waits, so that its caller may go away. Ray restarts a
killed actor, which then restores itself (`pace.durable`). The actor owns the objects it hands out: a payload outlives
the engine that made it, and after a restart of the pool `draw` gives the same batch with new references.

One rollout manager leases, one trainer draws. A manager that was restarted, or lost a reply of `lease`, asks for
`outstanding` first: that ends every `lease` which still waits, so that no lease goes to a caller that is gone.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from pace.config import PaceConfig
from pace.durable import DurablePool
from pace.prompts import Lease
from pace.types import Decision, PoolDraw, RejectReason, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReply:
    """Prompts to roll out, how many of them may start (the others are there to choose from), the trainer's policy
    version, and whether every prompt is trained or given up."""

    leases: tuple[Lease, ...]
    n_start: int
    version: int
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawReply:
    """A batch with a reference to each group's payload, aligned with `draw.groups`; or None.

    `finished`: no batch will come. `evicted` then lists the evictions that no batch has listed.
    """

    draw: PoolDraw | None
    payloads: list[Any]
    finished: bool
    evicted: tuple[Decision, ...] = ()


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Changes:
    """Wakes everyone who waits for the next change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, deadline: float) -> bool:
        """False if nothing changed until the deadline (seconds of the event loop's clock)."""
        try:
            await asyncio.wait_for(self._next.wait(), deadline - _now())
        except asyncio.TimeoutError:
            return False
        return True


class PoolService:
    """The actor without Ray. `keep` puts bytes where others can get them and returns the reference."""

    def __init__(self, pool: DurablePool, *, keep: Callable[[bytes], Any]) -> None:
        self._pool = pool
        self._keep = keep
        self._references: dict[str, Any] = {}  # payloads by group id
        self._changes = _Changes()
        self._lease_era = 0
        self._lease_since: float | None = None  # since when the manager or the trainer asks in vain
        self._draw_since: tuple[int, float] | None = None

    async def lease(self, *, limit: int, timeout_s: float, choice: int = 1, at_least: int = 1) -> LeaseReply:
        """Up to `limit` prompts as soon as any may start (with others in flight: `at_least` so many), or `choice`
        times as many to choose from; none after `timeout_s` seconds, or when finished."""
        era, deadline = self._lease_era, _now() + timeout_s
        choice = 1 if self._pool.core.owed else choice
        leases = self._pool.lease(limit, choice=choice, at_least=at_least)
        while not leases and not self._pool.core.finished:
            self._lease_since = _now() if self._lease_since is None else self._lease_since
            if not await self._changes.wait(deadline) or era != self._lease_era:
                break
            leases = self._pool.lease(limit, choice=choice, at_least=at_least)
        else:
            self._lease_since = None
        core = self._pool.core
        n_start = math.ceil(len(leases) / choice)
        return LeaseReply(leases=leases, n_start=n_start, version=core.version, finished=core.finished)

    async def outstanding(self) -> tuple[Lease, ...]:
        """The leases in flight, for a manager that does not know; ends earlier calls of `lease` that still wait."""
        self._lease_era += 1
        self._changes.wake()
        return tuple(self._pool.core.in_flight.values())

    async def put(self, group: TrajectoryGroup, payload: list[Any]) -> bool:
        """Takes a ready group; False if it isn't in flight.

        `payload` is one reference to bytes, in a list so that Ray doesn't fetch it for a group that isn't wanted.
        """
        (reference,) = payload
        if group.group_id not in self._pool.core.in_flight:
            return False
        content = await reference
        taken = self._pool.put(group, content)
        if taken:
            self._changes.wake()
            self._references[group.group_id] = self._keep(content)
        return taken

    async def close(self, group_id: str, *, reason: RejectReason, n_tokens: int, put_back: bool) -> bool:
        """See `LeasedPool.close`."""
        closed = self._pool.close(group_id, reason=reason, n_tokens=n_tokens, put_back=put_back)
        self._changes.wake()
        return closed

    async def draw(self, version: int, *, timeout_s: float) -> DrawReply:
        """The batch for step `version` as soon as it can be formed; none after `timeout_s`, or when finished."""
        deadline = _now() + timeout_s
        while True:
            core = self._pool.core
            before = core.held
            draw = self._pool.draw(version)
            if draw or core.held != before:  # groups left the pool, perhaps only by eviction
                self._forget()
                self._changes.wake()
            if draw or core.finished:
                self._draw_since = None
                break
            if self._draw_since is None or self._draw_since[0] != version:
                self._draw_since = (version, _now())
            if not await self._changes.wait(deadline):
                break
        return DrawReply(
            draw=draw,
            payloads=[self._reference(group.group_id) for group in draw.groups] if draw else [],
            finished=core.finished,
            evicted=tuple(core.pool.evicted_since) if core.finished else (),
        )

    async def commit(self, version: int) -> bool:
        """The batch of step `version` is trained and its payloads may go; False if that was known."""
        committed = self._pool.commit(version)
        self._forget()
        self._changes.wake()
        return committed

    async def set_version(self, version: int) -> bool:
        """The trainer has reached policy version `version`; False if that was known."""
        changed = self._pool.set_version(version)
        self._changes.wake()
        return changed

    async def add_scores(self, scores: list[float]) -> None:
        """Prefix scores measured at a weight sync, in nats per token."""
        self._pool.add_scores(scores)

    async def report(self) -> dict[str, float]:
        """The pool as it stands, under the keys of `pace.metrics`."""
        return self._pool.report()

    async def waiting_for(self) -> str:
        """One line for a heartbeat: who waits for what, and what the pool holds."""
        now, core = _now(), self._pool.core
        waits = []
        if self._draw_since:
            waits.append(f"trainer waits {now - self._draw_since[1]:.0f} s for step {self._draw_since[0]}")
        if self._lease_since is not None:
            what = "the last groups" if core.prompts.exhausted else "a free slot"
            waits.append(f"rollout manager waits {now - self._lease_since:.0f} s for {what}")
        gauges = core.pool.gauges()
        return (
            f"{', '.join(waits) or 'nobody waits'}: {gauges.groups} of {core.pool.batch_groups} groups ready "
            f"(capacity {gauges.capacity}), {gauges.in_flight} in flight, {core.free_slots} may start"
        )

    async def save(self, folder: str) -> None:
        """See `DurablePool.save`."""
        self._pool.save(Path(folder))

    async def load(self, folder: str) -> None:
        """See `DurablePool.load`."""
        self._pool.load(Path(folder))
        self._references = {}
        self._lease_era += 1
        self._changes.wake()

    def _reference(self, group_id: str) -> Any:
        """The payload's reference, made from the file if this process has none yet."""
        if group_id not in self._references:
            self._references[group_id] = self._keep(self._pool.payload(group_id))
        return self._references[group_id]

    def _forget(self) -> None:
        held = self._pool.core.held
        self._references = {group_id: ref for group_id, ref in self._references.items() if group_id in held}


@ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=1000)
class TrajectoryPoolActor(PoolService):
    """`PoolService` with its pool in `folder`, which is emptied first unless Ray restarted the actor."""

    def __init__(
        self,
        *,
        config: PaceConfig,
        batch_groups: int,
        n_prompts: int,
        n_episodes: int,
        seed: int,
        folder: str,
        start_version: int = 0,
    ) -> None:
        pool = DurablePool(
            config,
            batch_groups=batch_groups,
            n_prompts=n_prompts,
            n_episodes=n_episodes,
            seed=seed,
            folder=Path(folder),
            fresh=not ray.get_runtime_context().was_current_actor_reconstructed,
            clock=time.time,  # the only one that goes on across a restart
            start_version=start_version,
        )
        super().__init__(pool, keep=ray.put)
