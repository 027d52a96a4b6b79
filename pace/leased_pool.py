"""The pool and the prompts it is filled from, as one: every lease ends exactly once.

Invariants, after every call: a leased group is in flight, in the pool, or in a batch that is not committed; then it is
released, or its prompt put back for the next attempt. The ledger holds the same groups in flight as the leases. What a
call does depends on the calls before it and on the clock alone, so that the same calls give the same state.

Calls about a group whose lease has ended, or is not handed out yet, change nothing and say so: a caller that lost the
reply may call again. A call that raises has changed nothing either.

In: calls of the rollout side and of the trainer. Out: leases, batches. Source: design (pipeline contract).
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pace.config import PaceConfig
from pace.ledger import Fate
from pace.pool import TrajectoryPool
from pace.prompts import Lease, PromptSource
from pace.state import State, StateError, check_keys
from pace.types import Decision, PoolDraw, RejectReason, TrajectoryGroup

_FATES = {
    RejectReason.FILTER: Fate.FILTERED,
    RejectReason.FAILURE: Fate.FAILED,
    RejectReason.SKIP: Fate.SKIPPED,
}


class LeasedPool:
    """Leases prompts, takes their groups, draws batches. Not thread-safe; no I/O.

    `pool`, `prompts`, `in_flight` and `owed` may be read, not called. `seed` shuffles the prompts and drives the
    random ranking, `version` is the trainer's policy version, `clock` gives seconds.
    """

    def __init__(
        self,
        config: PaceConfig,
        *,
        batch_groups: int,
        n_prompts: int,
        n_episodes: int,
        seed: int,
        clock: Callable[[], float],
        start_version: int = 0,
    ) -> None:
        self.pool = TrajectoryPool(
            config, batch_groups=batch_groups, clock=clock, rng=random.Random(seed), start_version=start_version
        )
        self.prompts = PromptSource(n_prompts=n_prompts, n_episodes=n_episodes, seed=seed)
        self.version = start_version
        self.in_flight: dict[str, Lease] = {}  # handed out, by group id
        self.owed: dict[str, Lease] = {}  # in flight when the state was saved; handed out again before all others

    @property
    def free_slots(self) -> int:
        """How many groups may start now, if there are prompts for them."""
        return self.pool.may_start(self.version)

    @property
    def held(self) -> set[str]:
        """The groups that are ready or in a batch that is not committed."""
        return self.prompts.outstanding.keys() - self.in_flight.keys() - self.owed.keys()

    @property
    def generated(self) -> bool:
        """Whether no group is in flight and none is left to start."""
        return self.prompts.exhausted and not self.in_flight and not self.owed

    @property
    def finished(self) -> bool:
        """Whether every prompt is trained or given up."""
        return self.generated and not self.prompts.outstanding

    def lease(self, limit: int, *, choice: int = 1, at_least: int = 1) -> tuple[Lease, ...]:
        """Up to `limit` prompts that may start now, which are in flight then; none while fewer than `at_least` may and
        others are in flight.

        With `choice` above 1 there are so many times as many, of which the caller starts the share that it finds best
        and closes the others as skipped. What was in flight when the state was saved comes first and alone.
        """
        if self.free_slots < at_least and self.in_flight and not self.owed:
            return ()
        leases = list(self.owed.values())[: max(0, limit)]
        for lease in leases:
            del self.owed[lease.group_id]
        for _ in range(0 if leases else min(limit, self.free_slots) * choice):
            fresh = self.prompts.lease()
            if fresh is None:
                break
            self.pool.ledger.start(fresh.group_id, version=self.version)
            leases.append(fresh)
        self.in_flight |= {lease.group_id: lease for lease in leases}
        return tuple(leases)

    def put(self, group: TrajectoryGroup) -> bool:
        """Takes a ready group; False if it isn't in flight. Raises ValueError if it doesn't fit its lease."""
        lease = self.in_flight.get(group.group_id)
        if lease is None:
            return False
        if (group.prompt_id, group.attempt) != (lease.prompt_id, lease.attempt):
            raise ValueError(f"group {group.group_id} is attempt {group.attempt} of prompt {group.prompt_id}: {lease}")
        self.pool.put(group)
        del self.in_flight[group.group_id]
        return True

    def close(self, group_id: str, *, reason: RejectReason, n_tokens: int, put_back: bool) -> bool:
        """Ends a group that never gets ready (`reason` FILTER, FAILURE or SKIP); False if it isn't in flight.

        `n_tokens` were generated for it; with `put_back` its prompt gets another attempt.
        """
        if reason not in _FATES or n_tokens < 0:
            raise ValueError(f"group {group_id} cannot be closed for {reason.value} with {n_tokens} tokens")
        if group_id not in self.in_flight:
            return False
        self.pool.ledger.close(group_id, _FATES[reason], n_tokens=n_tokens)
        del self.in_flight[group_id]
        (self.prompts.put_back if put_back else self.prompts.release)(group_id)
        return True

    def draw(self, version: int) -> PoolDraw | None:
        """The batch for step `version`, or None while it cannot be formed; see `TrajectoryPool.draw`.

        The last batch may be short. It is tried for only after what the hard cap forbids was evicted: an eviction that
        puts a prompt back makes another batch the last one.
        """
        if version < self.pool.next_step:
            return self.pool.draw(version)
        n_listed = len(self.pool.evicted_since)
        draw = self.pool.draw(version)
        self._settle(self.pool.evicted_since[n_listed:] if draw is None else draw.decisions)
        if draw is None and self.generated:
            draw = self.pool.draw(version, final=True)
            self._settle(draw.decisions if draw else ())
        return draw

    def commit(self, version: int) -> bool:
        """The batch of step `version` is trained; False if that was known. Raises ValueError if it never had one."""
        if version >= self.pool.next_step:
            raise ValueError(f"step {version} has had no batch; the next one is {self.pool.next_step}")
        for draw in self.pool.pending:
            if draw.version == version:
                self.pool.commit(version)
                for group in draw.groups:
                    self.prompts.release(group.group_id)
                return True
        return False

    def set_version(self, version: int) -> bool:
        """The trainer has reached policy version `version`; False if that was known."""
        if version <= self.version:
            return False
        self.version = version
        self.pool.may_start(version)  # tells the pool, so that its gauges and admission count from it
        return True

    def add_scores(self, scores: Sequence[float]) -> None:
        """Prefix scores measured at a weight sync. Raises ValueError for one that is negative or not finite."""
        if not all(0.0 <= score < math.inf for score in scores):
            raise ValueError(f"prefix scores must be finite numbers >= 0, got {scores}")
        self.pool.window.add(scores)

    def state_dict(self) -> State:
        """Everything but the settings, as plain data."""
        return {
            "version": self.version,
            "pool": self.pool.state_dict(),
            "prompts": self.prompts.state_dict(),
            "in_flight": list(self.in_flight),
            "owed": list(self.owed),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, restart_in_flight: bool = False) -> None:
        """Raises StateError on foreign state, or other data; it is then not to be used.

        With `restart_in_flight`, the rollouts in flight are gone with those who made them: their tokens are booked as
        failed and their leases handed out again.
        """
        check_keys(state, ("version", "pool", "prompts", "in_flight", "owed"), type(self).__name__)
        self.prompts.load_state_dict(state["prompts"])
        self.pool.load_state_dict(state["pool"])
        self.version = int(state["version"])
        leases = self.prompts.outstanding
        try:
            self.in_flight = {group_id: leases[group_id] for group_id in state["in_flight"]}
            self.owed = {group_id: leases[group_id] for group_id in state["owed"]}
        except KeyError as error:
            raise StateError(f"group {error} is in flight without a lease") from error
        if len(self.in_flight) + len(self.owed) != self.pool.ledger.n_in_flight:
            raise StateError("the saved leases and the saved ledger do not have the same groups in flight")
        if restart_in_flight:
            self.owed = {group_id: leases[group_id] for group_id in self.pool.ledger.restart_in_flight()}
            self.in_flight = {}

    def _settle(self, decisions: Sequence[Decision]) -> None:
        """Ends the leases of groups that left the pool without being trained."""
        for requeue in self.pool.take_requeues():
            self.prompts.put_back(requeue.group_id)
        for decision in decisions:
            if not decision.trained and not decision.requeued:
                self.prompts.release(decision.group_id)
