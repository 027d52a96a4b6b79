"""The leased pool, kept on disk: a process that is killed comes back with its last state.

Invariant: a call whose reply was seen is never lost. Each call that changes something is applied, then journaled, then
answered; since the pool is a function of its calls and their times, the last snapshot and the calls after it give the
same pool again. Payload files are written before the call that needs them is journaled and deleted after the one that
does not, so that a journaled group can always be read. The journal becomes a snapshot every `snapshot_every` calls.

A checkpoint is another thing: a folder of its own, from which another run starts with no rollout in flight.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pace.config import PaceConfig
from pace.journal import Journal, PayloadFiles, sync_folder, write_file
from pace.leased_pool import LeasedPool
from pace.metrics import gauge_metrics, part_metrics
from pace.prompts import Lease
from pace.state import pack_group, unpack_group
from pace.types import PoolDraw, RejectReason, TrajectoryGroup

STATE, _PAYLOADS = "state.json", "payloads"

# How a journaled call is made again from its plain arguments.
_CALLS: dict[str, Callable[..., Any]] = {
    "lease": LeasedPool.lease,
    "put": lambda core, group: core.put(unpack_group(group)),
    "close": lambda core, reason, **rest: core.close(reason=RejectReason(reason), **rest),
    "draw": LeasedPool.draw,
    "commit": LeasedPool.commit,
    "set_version": LeasedPool.set_version,
    "add_scores": LeasedPool.add_scores,
}


def saved_folder(folder: Path) -> Path:
    """Where the checkpoint of that name is: a save killed between its two renames left the former one beside it."""
    old = folder.with_name(f"{folder.name}.old")
    return old if old.is_dir() and not folder.exists() else folder


class DurablePool:
    """A `LeasedPool` whose calls survive the process. Not thread-safe.

    `folder` is its own, for journal and payloads; a `fresh` pool empties it, any other restores itself from it, given
    the same settings. `clock` gives seconds that go on across restarts. `core` may be read, not called.
    """

    def __init__(
        self,
        config: PaceConfig,
        *,
        batch_groups: int,
        n_prompts: int,
        n_episodes: int,
        seed: int,
        folder: Path,
        fresh: bool,
        clock: Callable[[], float],
        start_version: int = 0,
        snapshot_every: int = 1000,
    ) -> None:
        def make() -> LeasedPool:
            return LeasedPool(
                config,
                batch_groups=batch_groups,
                n_prompts=n_prompts,
                n_episodes=n_episodes,
                seed=seed,
                clock=lambda: self._now,
                start_version=start_version,
            )

        self._clock = clock
        self._now = 0.0  # of the call being made: recorded, so that a repeated call sees the same time
        self._snapshot_every = snapshot_every
        self._make = make
        self.core = make()
        self._journal = Journal(folder)
        self._payloads = PayloadFiles(folder / _PAYLOADS)
        if fresh:
            self._journal.clear()
        snapshot, events = self._journal.restore()
        if snapshot is not None:
            self._now = float(snapshot["at"])
            self.core.load_state_dict(snapshot["core"])
        for event in events:
            self._now = float(event["at"])
            _CALLS[event["call"]](self.core, **event["arguments"])
        self._payloads.keep_only(self.core.held)

    def lease(self, limit: int, *, choice: int = 1, at_least: int = 1) -> tuple[Lease, ...]:
        """See `LeasedPool.lease`."""
        self._tick()
        leases = self.core.lease(limit, choice=choice, at_least=at_least)
        if leases:
            self._record("lease", limit=limit, choice=choice, at_least=at_least)
        return leases

    def put(self, group: TrajectoryGroup, payload: bytes) -> bool:
        """Takes a ready group with its payload; False if it isn't in flight. See `LeasedPool.put`."""
        self._tick()
        if group.group_id in self.core.in_flight:
            self._payloads.write(group.group_id, payload)
        taken = self.core.put(group)
        if taken:
            self._record("put", group=pack_group(group))
        return taken

    def close(self, group_id: str, *, reason: RejectReason, n_tokens: int, put_back: bool) -> bool:
        """See `LeasedPool.close`."""
        self._tick()
        closed = self.core.close(group_id, reason=reason, n_tokens=n_tokens, put_back=put_back)
        if closed:
            self._record("close", group_id=group_id, reason=reason.value, n_tokens=n_tokens, put_back=put_back)
        return closed

    def draw(self, version: int) -> PoolDraw | None:
        """See `LeasedPool.draw`. A look that finds no batch is a call like any other: it sets the step's budget."""
        self._tick()
        known = version < self.core.pool.next_step
        draw = self.core.draw(version)
        if not known:
            self._record("draw", version=version)
            self._payloads.keep_only(self.core.held)
        return draw

    def payload(self, group_id: str) -> bytes:
        """The payload of a ready group, or of one in a batch that is not committed."""
        return self._payloads.read(group_id)

    def commit(self, version: int) -> bool:
        """See `LeasedPool.commit`."""
        self._tick()
        committed = self.core.commit(version)
        if committed:
            self._record("commit", version=version)
            self._payloads.keep_only(self.core.held)
        return committed

    def set_version(self, version: int) -> bool:
        """See `LeasedPool.set_version`."""
        self._tick()
        changed = self.core.set_version(version)
        if changed:
            self._record("set_version", version=version)
        return changed

    def add_scores(self, scores: Sequence[float]) -> None:
        """See `LeasedPool.add_scores`."""
        self._tick()
        self.core.add_scores(scores)
        self._record("add_scores", scores=list(scores))

    def report(self) -> dict[str, float]:
        """The pool as it stands, under the keys of `pace.metrics`."""
        self._tick()
        return gauge_metrics(self.core.pool.gauges()) | part_metrics(self.core.pool.metrics())

    def save(self, folder: Path) -> None:
        """Writes a checkpoint that is there as a whole or not at all; one of that name is replaced."""
        self._tick()
        partial, old = (folder.with_name(f"{folder.name}.{suffix}") for suffix in ("partial", "old"))
        shutil.rmtree(partial, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        (partial / _PAYLOADS).mkdir(parents=True)
        write_file(partial / STATE, json.dumps(self.core.state_dict(), allow_nan=False).encode())
        for group_id in sorted(self.core.held):
            self._payloads.copy_to(partial / _PAYLOADS, group_id)
        sync_folder(partial)
        if folder.exists():
            os.replace(folder, old)
        os.replace(partial, folder)
        sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, folder: Path) -> None:
        """Goes on from a checkpoint; what was in flight there is leased again before anything else.

        Raises StateError on foreign state, before anything has changed. A load that did not return must be repeated.
        """
        self._tick()
        folder = saved_folder(folder)
        core = self._make()
        core.load_state_dict(json.loads((folder / STATE).read_bytes()), restart_in_flight=True)
        saved = PayloadFiles(folder / _PAYLOADS)
        for group_id in sorted(core.held):
            self._payloads.write(group_id, saved.read(group_id))
        self.core = core
        self._snapshot()
        self._payloads.keep_only(core.held)

    def _record(self, call: str, **arguments: Any) -> None:
        """Journals a call that was just applied."""
        self._journal.append({"call": call, "at": self._now, "arguments": arguments})
        if self._journal.n_events >= self._snapshot_every:
            self._snapshot()

    def _snapshot(self) -> None:
        self._journal.snapshot({"at": self._now, "core": self.core.state_dict()})

    def _tick(self) -> None:
        self._now = max(self._now, self._clock())
