"""A run in virtual time: rollouts and a trainer, discrete events, around the pool that real runs use.

Invariants: every choice - what may start, what is rejected, what is trained - is made by `TrajectoryPool`; this module
only says when rollouts end and updates are done. The same arguments give the same run. The ledger closes at its end.

Model (design). The trainer draws a batch, trains `train_s` seconds and syncs; during a sync rollouts stand still, and
afterwards the next tokens come from the new version, inside running responses, too. Trainer and engines are always at
the same version. In: `Cluster`, `PaceConfig`. Out: `Result`.
"""

import heapq
import math
import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pace.budget import RejectionBudget
from pace.config import PaceConfig
from pace.ledger import Fate
from pace.pool import TrajectoryPool
from pace.simulation_cluster import Cluster, Work, Workload
from pace.simulation_result import Result, Tally
from pace.types import BudgetPlan, Requeue, Trajectory, TrajectoryGroup, VersionSpan

SCORES_PER_SYNC = 64  # prefixes scored for the window at a sync: evenly spread over those in flight, for speed


class Stalled(RuntimeError):
    """Nothing can happen any more: the trainer waits and no rollout may start."""


class DropOldest(RejectionBudget):
    """The budget of a queue of `queue_batches` batches that drops its oldest group when a new one finds it full.

    With ranking `oldest`. The pool lets everything in and takes the surplus out at the next draw: the same groups are
    left.
    """

    def plan_from(self, occupancy: int, *, rate: float, carry: float) -> BudgetPlan:
        """All that is above the target."""
        surplus = max(0, occupancy - math.floor(self.target))
        share = surplus / (self.batch_groups + surplus)
        plan = super().plan_from(occupancy, rate=rate, carry=carry)
        candidates = min(occupancy, self.batch_groups + surplus)
        return replace(plan, rate=share, rate_after=0.0, carry_after=0.0, candidates=candidates, rejections=surplus)


class RolloutClock:
    """Time as rollouts see it, which stands still during weight syncs, and the versions that were live in it."""

    def __init__(self, tokens_per_s: float) -> None:
        self._speed = tokens_per_s
        self._paused = 0.0
        self._live = [0.0]  # when each version came live

    def at(self, now: float) -> float:
        """Rollout time at the real time `now`."""
        return max(self._live[-1], now - self._paused)

    def real(self, time: float) -> float:
        """The real time at which rollouts see `time`, if no further sync comes between."""
        return time + self._paused

    def sync(self, now: float, pause: float) -> None:
        """The next version comes live, `pause` seconds after `now`."""
        self._live.append(self.at(now))
        self._paused += pause

    def spans(self, work: Work, start: float, end: float, n_tokens: int) -> tuple[list[tuple[int, int]], int]:
        """(version, tokens) of the `n_tokens` that `work` wrote from `start` to `end`, and the version live at `end`.

        What ends in the moment of a sync ends before it, what starts then starts behind it.
        """
        first = bisect_right(self._live, start) - 1
        last = max(first, bisect_left(self._live, end) - 1)
        if first == last:
            return [(first, n_tokens)] if n_tokens else [], last
        marks = [work.tokens_by(time - start, self._speed) for time in self._live[first + 1 : last + 1]]
        edges = [0, *marks, n_tokens]
        counts = (after - before for before, after in zip(edges, edges[1:], strict=False))
        return [(first + i, n) for i, n in enumerate(counts) if n], last


class Stage(Enum):
    """What the trainer does."""

    WAITING = "waiting"
    TRAINING = "training"
    SYNCING = "syncing"


@dataclass(slots=True)
class Rollout:
    """A group in flight. Its pieces hold one slot each: the whole group, or every trajectory."""

    group_id: str
    prompt: int
    attempt: int
    version: int
    works: list[Work]
    durations: list[float]  # per piece
    starts: list[float] = field(default_factory=list)  # of the pieces started so far
    n_left: int = 0  # pieces that have not ended

    def running(self) -> list[tuple[Work, float]]:
        """The trajectories started so far, and when."""
        starts = self.starts * len(self.works) if len(self.durations) == 1 else self.starts
        return list(zip(self.works, starts, strict=False))


class Simulation:
    """One run; see the module. `queue_batches` puts a queue that drops its oldest in place of PACE's budget."""

    def __init__(
        self, cluster: Cluster, config: PaceConfig, *, seed: int = 0, queue_batches: float | None = None
    ) -> None:
        config = replace(config, max_inflight_groups=config.max_inflight_groups or cluster.slots)
        self._cluster = cluster
        self.pool = TrajectoryPool(
            config, batch_groups=cluster.batch_groups, clock=lambda: self._now, rng=random.Random(seed)
        )
        if queue_batches is not None:
            self.pool.budget = DropOldest(batch_groups=cluster.batch_groups, target_batches=queue_batches)
        self._pause = cluster.sync_s + (cluster.rescore_s if config.needs_prefix_scores else 0.0)
        self._workload = Workload(cluster, seed=seed)
        self._ids = random.Random(f"{seed} ids")
        self._clock = RolloutClock(cluster.tokens_per_s)
        self._now = 0.0
        self._version = 0
        self._stage = Stage.WAITING
        self._stage_ends = math.inf
        self._busy = 0
        self._ends: list[tuple[float, str, Rollout]] = []  # heap of pieces by the rollout time of their end
        self._flying: dict[str, Rollout] = {}
        self._start_versions: dict[str, int] = {}
        self._opening: Rollout | None = None
        self._requeued: deque[Requeue] = deque()
        self._n_started = self._n_prompts = 0
        self._tally = Tally()

    def run(self, hours: float, *, warmup: float = 0.2) -> Result:
        """Simulates so many hours; the first share `warmup` of them counts nowhere. Raises Stalled."""
        end, counted = hours * 3600.0, hours * 3600.0 * warmup
        while self._now < end:
            if self._stage is Stage.WAITING:
                self._draw()
            self._fill_slots()
            piece_ends = self._clock.real(self._ends[0][0]) if self._ends else math.inf
            event = min(piece_ends, self._stage_ends)
            if event == math.inf:
                raise Stalled(f"at {self._now:.0f} s the trainer waits and no rollout may start: widen the bounds")
            if self._now < counted <= event:
                self._advance(counted)
                self._tally.begin(self.pool, self._now)
            self._advance(min(event, end))
            if event >= end:
                break
            if piece_ends <= self._stage_ends:
                self._end_piece()
            else:
                self._end_stage()
        self.pool.ledger.check()
        return self._tally.result(self.pool, self._now, self._cluster)

    def _advance(self, now: float) -> None:
        """Lets time pass and books who was idle."""
        active = self._clock.at(now) - self._clock.at(self._now)
        waited = now - self._now if self._stage is Stage.WAITING else 0.0
        self._tally.pass_time(waited_s=waited, active_s=active, busy_slot_s=active * self._busy)
        self._now = now

    def _draw(self) -> None:
        draw = self.pool.draw(self._version)
        if draw is None:
            return
        self._requeued += self.pool.take_requeues()
        starts = {d.group_id: self._start_versions.pop(d.group_id) for d in draw.all_decisions}
        self._tally.add(draw, starts, self._now)
        self._stage, self._stage_ends = Stage.TRAINING, self._now + self._cluster.train_s

    def _end_stage(self) -> None:
        """Training goes over into the sync, the sync into the wait for a batch."""
        if self._stage is Stage.SYNCING:
            self._stage, self._stage_ends = Stage.WAITING, math.inf
            return
        self.pool.commit(self._version)
        self._version += 1
        self._clock.sync(self._now, self._pause)
        self._score_prefixes()
        self._stage, self._stage_ends = Stage.SYNCING, self._now + self._pause

    def _fill_slots(self) -> None:
        """Starts pieces while a slot is free and the pool lets groups start."""
        while self._busy < self._cluster.slots:
            rollout = self._opening or self._open()
            if rollout is None:
                return
            start = self._clock.at(self._now)
            duration = rollout.durations[len(rollout.starts)]
            rollout.starts.append(start)
            heapq.heappush(self._ends, (start + duration, f"{rollout.group_id}/{len(rollout.starts):06d}", rollout))
            self._busy += 1
            self._opening = rollout if len(rollout.starts) < len(rollout.durations) else None

    def _open(self) -> Rollout | None:
        """The next group in flight: a prompt put back, else a new one; None if none may start."""
        if self.pool.may_start(self._version) < 1:
            return None
        if self._requeued:
            again = self._requeued.popleft()
            prompt, attempt = int(again.prompt_id), again.attempt
        else:
            prompt, attempt = self._n_prompts, 0
            self._n_prompts += 1
        # As in real runs, the ids, which settle ties, say nothing about the order of the starts.
        group_id = f"{self._ids.getrandbits(32):08x}-{self._n_started}"
        self._n_started += 1
        works = self._workload.group(prompt=prompt, attempt=attempt)
        durations = [work.duration(self._cluster.tokens_per_s) for work in works]
        if self._cluster.slot_unit == "group":
            durations = [max(durations)]
        rollout = Rollout(group_id, prompt, attempt, self._version, works, durations, n_left=len(durations))
        self.pool.ledger.start(group_id, version=self._version)
        self._flying[group_id] = rollout
        return rollout

    def _end_piece(self) -> None:
        """A slot gets free; with its last piece the group is ready."""
        _, _, rollout = heapq.heappop(self._ends)
        self._busy -= 1
        rollout.n_left -= 1
        if rollout.n_left:
            return
        del self._flying[rollout.group_id]
        if self._workload.filtered(prompt=rollout.prompt, attempt=rollout.attempt):
            n_tokens = sum(work.n_tokens for work in rollout.works)
            self.pool.ledger.close(rollout.group_id, Fate.FILTERED, n_tokens=n_tokens)
            return
        self._start_versions[rollout.group_id] = rollout.version
        self.pool.put(self._group(rollout))

    def _group(self, rollout: Rollout) -> TrajectoryGroup:
        trajectories = tuple(
            self._trajectory(rollout, i, work, start) for i, (work, start) in enumerate(rollout.running())
        )
        return TrajectoryGroup(
            group_id=rollout.group_id,
            prompt_id=f"{rollout.prompt}",
            trajectories=trajectories,
            ready_version=self._version,
            attempt=rollout.attempt,
        )

    def _trajectory(self, rollout: Rollout, i: int, work: Work, start: float) -> Trajectory:
        end = start + work.duration(self._cluster.tokens_per_s)
        spans, completed = self._clock.spans(work, start, end, work.n_tokens)
        return Trajectory(
            trajectory_id=f"{rollout.group_id}/{i}",
            group_id=rollout.group_id,
            prompt_id=f"{rollout.prompt}",
            spans=tuple(VersionSpan(version, n) for version, n in spans),
            completed_version=completed,
            prefix_score=self._score(work, spans, completed),
        )

    def _score(self, work: Work, spans: Sequence[tuple[int, int]], version: int) -> float | None:
        """F at the sync to `version`, of the tokens written before; None if there were none."""
        prefix = [(version - v, n) for v, n in spans if v < version]
        if not prefix:
            return None
        lag = sum(d * n for d, n in prefix) / sum(n for _, n in prefix)
        return self._cluster.drift_nats * work.drift * lag

    def _score_prefixes(self) -> None:
        """Scores unfinished prefixes under the new version, for the window that scores are compared with."""
        now, speed = self._clock.at(self._now), self._cluster.tokens_per_s
        running = [pair for rollout in self._flying.values() for pair in rollout.running()]
        for work, start in running[:: max(1, len(running) // SCORES_PER_SYNC)]:
            if start + work.duration(speed) > now:
                spans, _ = self._clock.spans(work, start, now, work.tokens_by(now - start, speed))
                score = self._score(work, spans, self._version)
                if score is not None:
                    self.pool.window.add([score])
