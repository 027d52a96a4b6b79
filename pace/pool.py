"""The trajectory pool: holds ready groups, forms training batches, decides what is thrown away.

Invariants, after every call:
- Groups are whole and leave once: trained, rejected or evicted. The ledger closes.
- A batch, once drawn for a step, is that step's batch: the same draw is returned until it is committed, also after a
  restart, and never afterwards. So nothing is trained twice and nothing drawn is lost.
- Decisions are functions of recorded numbers; the clock only gives the ages in reports.

`draw` is Algorithm 1 (design, after the paper's section on PACE): read the occupancy and set the budget once per step,
take M candidates oldest ready first, evict above the hard cap, reject by rank, fill up or wait. It never blocks: it
returns None until a batch can be formed. Waiting, waking up and payloads belong to the caller.
"""

import random
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pace.admission import AdmissionKind, AdmissionView, StaleCap, make_admission
from pace.budget import ExcessLaw, RejectionBudget
from pace.config import PaceConfig
from pace.drift import ScoreWindow
from pace.entries import Entry, Look, OpenStep, decision_of, look, pack_entry, pack_step, unpack_entry, unpack_step
from pace.ledger import Fate, Ledger
from pace.ranking import GroupLag, GroupScore, LagMeter, RankBy, make_ranking
from pace.selection import select
from pace.staleness import WaitFrom
from pace.state import State, StateError, Stateful, check_keys, pack, pack_draw, unpack, unpack_decisions, unpack_draw
from pace.types import Decision, Outcome, PoolDraw, PoolGauges, RejectReason, Requeue, TrajectoryGroup

_FATES = {
    Outcome.KEPT: Fate.TRAINED,
    Outcome.REFILLED: Fate.TRAINED,
    Outcome.REJECTED: Fate.REJECTED,
    Outcome.EVICTED: Fate.EVICTED,
}
_STATE_KEYS = (
    "batch_groups",
    "entries",
    "arrivals",
    "version",
    "next_step",
    "open_step",
    "evicted_since",
    "pending",
    "requeues",
    "parts",
)


class TrajectoryPool:
    """Ready groups, and the policies that decide about them. Not thread-safe; no I/O.

    `batch_groups` is B, `start_version` the trainer's version when the pool is made, `clock` gives seconds
    (monotonic), `rng` drives the random ranking only. Public parts, to be used directly: `ledger` (start, progress and
    end of groups in flight), `window` (prefix scores measured at weight syncs), `budget` and `cap` (settings a replay
    needs), `evicted_since` (evictions no draw has listed yet; at the end of a run they belong into the log, too),
    `pending` (draws not committed yet), `next_step` (the first step that has had no batch).
    Raises ValueError, naming the flag, for a capacity below one batch.
    """

    def __init__(
        self,
        config: PaceConfig,
        *,
        batch_groups: int,
        clock: Callable[[], float],
        rng: random.Random,
        start_version: int = 0,
    ) -> None:
        self._config = config = config.resolve()
        self.batch_groups = batch_groups
        self.capacity = config.capacity(batch_groups)
        self.ledger = Ledger()
        self.window = ScoreWindow(capacity=config.pfs_window, minimum=config.pfs_window_min)
        self.budget = RejectionBudget(
            batch_groups=batch_groups,
            target_batches=config.target_batches,
            law=ExcessLaw(config.excess_law),
            smoothing=config.rate_smoothing,
            max_rate=config.max_reject_rate,
            scarce_margin=config.scarce_margin_groups,
        )
        self.cap = StaleCap(None if config.k_max < 0 else config.k_max, config.evict_unknown)
        self._meter = LagMeter(
            self.window,
            gamma=config.gamma,
            wait_from=WaitFrom(config.wait_from),
            group_score=GroupScore(config.group_score),
        )
        self._ranking = make_ranking(RankBy(config.rank), rng=rng)
        self._admission = make_admission(
            AdmissionKind(config.admission), eta=config.admission_eta, window=config.admission_window
        )
        self._parts: dict[str, Stateful] = {
            "ledger": self.ledger,
            "window": self.window,
            "budget": self.budget,
            "ranking": self._ranking,
            "admission": self._admission,
        }
        self._clock = clock
        self._entries: list[Entry] = []  # sorted by Entry.key
        self._arrivals = 0
        self._version = start_version
        self.next_step = start_version
        self._open_step: OpenStep | None = None
        self.evicted_since: list[Decision] = []
        self.pending: list[PoolDraw] = []
        self._requeues: list[Requeue] = []

    def may_start(self, version: int) -> int:
        """How many groups may start now, at trainer version `version`: back-pressure, in-flight limit and admission.

        A full pool (ready groups >= capacity) lets nothing start; groups already in flight still enter, so the pool
        never holds more than its capacity plus the in-flight limit.
        """
        self._version = max(self._version, version)
        if len(self._entries) >= self.capacity:
            return 0
        in_flight = self.ledger.n_in_flight
        view = AdmissionView(
            version=self._version,
            next_step=max(self.next_step, self._version),
            batch_groups=self.batch_groups,
            in_pool=len(self._entries),
            in_flight=in_flight,
            oldest_open=self.ledger.oldest_open,
        )
        return max(0, min(self._config.inflight_limit(self.batch_groups) - in_flight, self._admission.slots(view)))

    def put(self, group: TrajectoryGroup) -> None:
        """Takes a ready group that was in flight. Raises LedgerError if it was not, or is here already."""
        self.ledger.ready(group.group_id, n_tokens=group.n_tokens)
        insort(
            self._entries, Entry(group, self._meter.prepare(group), self._clock(), self._arrivals), key=lambda e: e.key
        )
        self._arrivals += 1

    def draw(self, version: int, *, final: bool = False) -> PoolDraw | None:
        """The batch for step `version` (the update from theta_version), or None while it cannot be formed yet.

        A trainer that prefetches asks for the step the batch will be trained at, so that lags and the cap hold there.
        Asking again for a step that is not committed returns the same draw. With `final`, no more groups will come:
        the last batch may be short, and None means there is nothing left.
        Raises ValueError for a step that has had its batch, or that lies before a group's ready version.
        """
        for pending in self.pending:
            if pending.version == version:
                return pending
        if version < self.next_step:
            raise ValueError(f"step {version} has had its batch; the next one is {self.next_step}")
        newest = self._entries[-1].group.ready_version if self._entries else 0
        if newest > version:
            raise ValueError(f"a group is ready at version {newest}, so step {version} is in the past")
        self._version = max(self._version, version)
        if self._open_step is None or self._open_step.version != version:
            self._open_step = OpenStep(version, self.budget.plan(len(self._entries)))
        draw = self._form_batch(self._open_step, final=final)
        if draw is None:
            self._open_step = replace(self._open_step, looked=True)
            return None
        self.pending.append(draw)
        self.next_step = version + 1
        self._open_step, self.evicted_since = None, []
        return draw

    def commit(self, version: int) -> None:
        """The batch of step `version` is trained: it is never returned again. Raises ValueError if none is pending."""
        others = [draw for draw in self.pending if draw.version != version]
        if len(others) == len(self.pending):
            raise ValueError(f"no batch of step {version} is pending")
        self.pending = others

    def evict(self, version: int) -> list[Decision]:
        """Evicts every group that the hard cap forbids at step `version`; the next draw lists them as well."""
        self._version = max(self._version, version)
        looks = look(self._entries, self.cap, step=version)
        return self._evict(looks, rest=(), step=version)

    def take_requeues(self) -> list[Requeue]:
        """Prompts to roll out again, handed over once: the caller owns them afterwards."""
        taken, self._requeues = self._requeues, []
        return taken

    def gauges(self) -> PoolGauges:
        """The pool as it stands."""
        now = self._clock()
        return PoolGauges(
            groups=len(self._entries),
            capacity=self.capacity,
            target=self.budget.target,
            in_flight=self.ledger.n_in_flight,
            pending_draws=len(self.pending),
            oldest_lag=max(0, self._version - self._entries[0].group.ready_version) if self._entries else 0,
            oldest_age_s=max((now - entry.arrived_at for entry in self._entries), default=0.0),
            accepting=len(self._entries) < self.capacity,
        )

    def state_dict(self) -> State:
        """Everything but the settings, as plain data."""
        now = self._clock()
        return {
            "batch_groups": self.batch_groups,
            "entries": [pack_entry(entry, now) for entry in self._entries],
            "arrivals": self._arrivals,
            "version": self._version,
            "next_step": self.next_step,
            "open_step": pack_step(self._open_step),
            "evicted_since": [pack(decision) for decision in self.evicted_since],
            "pending": [pack_draw(draw) for draw in self.pending],
            "requeues": [pack(requeue) for requeue in self._requeues],
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a saved pool; draws that were pending are returned again by `draw`.

        Groups in flight are still owed: `ledger.restart_in_flight` lists them. Raises StateError on foreign state, a
        different batch size or other policies; the pool is then not to be used.
        """
        check_keys(state, _STATE_KEYS, type(self).__name__)
        check_keys(state["parts"], self._parts, f"{type(self).__name__}.parts")
        if state["batch_groups"] != self.batch_groups:
            raise StateError(
                f"the pool was saved for batches of {state['batch_groups']} groups, not {self.batch_groups}"
            )
        for name, part in self._parts.items():
            part.load_state_dict(state["parts"][name])
        now = self._clock()
        self._entries = [unpack_entry(entry, now, self._meter.prepare) for entry in state["entries"]]
        self._entries.sort(key=lambda e: e.key)
        if self.ledger.columns()["groups"]["in_pool"] != len(self._entries):
            raise StateError("the saved ledger and the saved pool do not hold the same groups")
        self._arrivals = int(state["arrivals"])
        self._version = int(state["version"])
        self.next_step = int(state["next_step"])
        self._open_step = unpack_step(state["open_step"])
        self.evicted_since = list(unpack_decisions(state["evicted_since"]))
        self.pending = [unpack_draw(draw) for draw in state["pending"]]
        self._requeues = [unpack(Requeue, requeue) for requeue in state["requeues"]]

    def metrics(self) -> dict[str, float]:
        """The parts' own numbers as `<part>/<name>`."""
        return {f"{name}/{key}": n for name, part in self._parts.items() for key, n in part.metrics().items()}

    def _form_batch(self, step: OpenStep, *, final: bool) -> PoolDraw | None:
        """One look at the pool: a batch if enough of it may be trained, else only the evictions."""
        limit = self.batch_groups if step.looked else step.plan.candidates
        window = look(self._entries[:limit], self.cap, step=step.version)
        lost = sum(seen.reason is not None for seen in window)
        behind = look(self._entries[limit:], self.cap, step=step.version, enough=lost)
        n_ready = sum(seen.reason is None for seen in (*window, *behind))
        if n_ready == 0 or (n_ready < self.batch_groups and not final):
            self._evict([*window, *behind], rest=self._entries[len(window) + len(behind) :], step=step.version)
            return None
        self._entries = self._entries[len(window) + len(behind) :]
        looks = [*window, *behind]
        lags = [self._measure(seen.entry, step.version) for seen in looks]
        scores = [None if seen.reason else self._ranking.score(lag) for seen, lag in zip(window, lags, strict=False)]
        outcomes = select(
            [seen.candidate(score) for seen, score in zip(window, scores, strict=True)],
            rejections=0 if step.looked else step.plan.rejections,
            batch_groups=self.batch_groups,
            spare=sum(seen.reason is None for seen in behind),
        )
        outcomes += [Outcome.EVICTED if seen.reason else Outcome.REFILLED for seen in behind]
        scores += [None] * len(behind)
        return PoolDraw(
            version=step.version,
            batch_groups=self.batch_groups,
            groups=tuple(k.entry.group for k, o in zip(looks, outcomes, strict=True) if _FATES[o] is Fate.TRAINED),
            plan=step.plan,
            n_window=len(window),
            decisions=tuple(map(self._decide, looks, lags, outcomes, scores)),
            evicted_before=tuple(self.evicted_since),
        )

    def _evict(self, looks: Sequence[Look], *, rest: Sequence[Entry], step: int) -> list[Decision]:
        """Evicts what was seen above the cap; the others stay, before the `rest` that was not looked at."""
        above = [seen for seen in looks if seen.reason]
        self._entries = [seen.entry for seen in looks if not seen.reason] + list(rest)
        evicted = [self._decide(seen, self._measure(seen.entry, step), Outcome.EVICTED, None) for seen in above]
        self.evicted_since += evicted
        return evicted

    def _measure(self, entry: Entry, step: int) -> GroupLag:
        return self._meter.measure(entry.standing, step=step, arrivals_since=self._arrivals - 1 - entry.arrival)

    def _decide(self, seen: Look, lag: GroupLag, outcome: Outcome, score: float | None) -> Decision:
        """Books one group's way out: ledger, requeue, record."""
        group = seen.entry.group
        trained = _FATES[outcome] is Fate.TRAINED
        again = not trained and self._config.on_reject == "requeue" and group.attempt < self._config.requeue_cap
        if again:
            self._requeues.append(
                Requeue(prompt_id=group.prompt_id, group_id=group.group_id, attempt=group.attempt + 1)
            )
        self.ledger.close(group.group_id, _FATES[outcome])
        reason = RejectReason.BUDGET if outcome is Outcome.REJECTED else seen.reason
        return decision_of(seen.entry, lag, outcome, reason=reason, score=score, requeued=again, now=self._clock())
