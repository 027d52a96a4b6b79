"""What a simulated run amounts to: idle times, lags, waste.

Invariant: everything is counted from `Tally.begin` on, so that a pool that is still filling up counts nowhere. In: the
batches as drawn, and the time as it passes. Out: `Result`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pace.metrics import summary
from pace.pool import TrajectoryPool
from pace.simulation_cluster import Cluster
from pace.staleness import mean
from pace.types import Decision, Outcome, PoolDraw

_WASTE = ("rejected", "evicted", "filtered", "failed")
PARTS = ("gen", "sib", "pool", "effective", "total", "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run, None where there was nothing to average.

    `lags` are in versions, `<part>/<mean|p50|p90|max>` over trained groups: generation, sibling, pool, their sum
    `total`, the effective one, and `start`: versions from a group's start to its training; `rejected/<part>/...` over
    the rejected ones. Idle shares: of the time,
    the trainer waiting for a batch; of the slots, empty while rollouts were not paused. `rejected` and `evicted` are
    shares of the groups that left the pool, `wasted` of the tokens made. Lengths are in tokens, of trained groups, all
    that left the pool, and those rejected. `pool_batches` is the pool at a draw, in batches. `ledger` is the whole
    run's account.
    """

    load: float
    steps: int
    step_s: float | None
    trainer_idle: float
    rollout_idle: float
    paused: float
    rejected: float
    evicted: float
    wasted: float
    trajectories_per_s: float
    pool_batches: float | None
    length_trained: float | None
    length_all: float | None
    length_rejected: float | None
    lags: Mapping[str, float]
    ledger: Mapping[str, Mapping[str, int]]

    def lag(self, part: str, stat: str = "mean") -> float | None:
        """One of `lags`; None if nothing was trained."""
        return self.lags.get(f"{part}/{stat}")

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return asdict(self)


class Tally:
    """Collects during a run."""

    def __init__(self) -> None:
        self._begun_at = 0.0
        self._waited_s = self._active_s = self._busy_slot_s = 0.0
        self._made = self._wasted = 0
        self._clear()

    def begin(self, pool: TrajectoryPool, now: float) -> None:
        """Forgets what came before `now`: the warm-up."""
        self._begun_at = now
        self._waited_s = self._active_s = self._busy_slot_s = 0.0
        self._made, self._wasted = _tokens(pool)
        self._clear()

    def pass_time(self, *, waited_s: float, active_s: float, busy_slot_s: float) -> None:
        """Seconds in which the trainer waited, in which rollouts were not paused, and slot-seconds of work."""
        self._waited_s += waited_s
        self._active_s += active_s
        self._busy_slot_s += busy_slot_s

    def add(self, draw: PoolDraw, starts: Mapping[str, int], now: float) -> None:
        """A batch, and the trainer's version at the start of each group it decided about."""
        self._drawn_at.append(now)
        self._occupancy.append(draw.plan.occupancy)
        for decision in draw.all_decisions:
            self._outcomes[decision.outcome.value] += 1
            self._lengths.append((decision.length, decision))
            if decision.outcome is not Outcome.EVICTED:
                within = "" if decision.trained else "rejected/"
                start = float(draw.version - starts[decision.group_id])
                for part in PARTS:
                    value = start if part == "start" else getattr(decision, part)
                    if value is not None:
                        self._lags[f"{within}{part}"].append((value, 1.0))

    def result(self, pool: TrajectoryPool, now: float, cluster: Cluster) -> Result:
        """The run so far."""
        seconds = now - self._begun_at
        made, wasted = _tokens(pool)
        left = self._outcomes.total()
        n_trained = self._outcomes["kept"] + self._outcomes["refilled"]
        steps = len(self._occupancy)
        occupancy = mean(self._occupancy)
        lags: dict[str, float] = {}
        for part, values in self._lags.items():
            lags |= summary(part, values)
        return Result(
            load=cluster.load,
            steps=steps,
            step_s=(self._drawn_at[-1] - self._drawn_at[0]) / (steps - 1) if steps > 1 else None,
            trainer_idle=_share(self._waited_s, seconds),
            rollout_idle=max(0.0, 1 - _share(self._busy_slot_s, self._active_s * cluster.slots)),
            paused=max(0.0, _share(seconds - self._active_s, seconds)),
            rejected=_share(self._outcomes["rejected"], left),
            evicted=_share(self._outcomes["evicted"], left),
            wasted=_share(wasted - self._wasted, made - self._made),
            trajectories_per_s=_share(n_trained * cluster.group_size, seconds),
            pool_batches=None if occupancy is None else occupancy / cluster.batch_groups,
            length_trained=mean(length for length, decision in self._lengths if decision.trained),
            length_all=mean(length for length, _ in self._lengths),
            length_rejected=mean(length for length, d in self._lengths if d.outcome.value == "rejected"),
            lags=lags,
            ledger=pool.ledger.columns(),
        )

    def _clear(self) -> None:
        self._lags: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._lengths: list[tuple[float, Decision]] = []
        self._outcomes: Counter[str] = Counter()
        self._occupancy: list[int] = []
        self._drawn_at: list[float] = []


def _tokens(pool: TrajectoryPool) -> tuple[int, int]:
    """Tokens made and tokens thrown away so far."""
    tokens = pool.ledger.columns()["tokens"]
    return tokens["generated"], sum(tokens[name] for name in _WASTE)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
