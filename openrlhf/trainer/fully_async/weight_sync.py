"""Brings the trainer's weights into every engine, and the policy version with them.

Invariants: the version goes up after all engines that are left hold the new weights, and before any of them generates
again, so no token is newer than the trainer. Engines are resumed whatever happens. An engine that fails is ended, Ray
starts it anew, and it gets the current weights before it serves (`revive`). Every wait has a time limit.

    stage (engines still generate) -> pause, load -> version + 1 -> resume -> score prefixes beside the generation

In: the policy's actor group, engine handles, the pool. Out: seconds per phase.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from openrlhf.trainer.fully_async import restarts
from openrlhf.trainer.fully_async.messages import EngineStatus, LoadReport
from openrlhf.trainer.ray import policy_side
from pace.config import PaceConfig

logger = logging.getLogger(__name__)

LOAD_ATTEMPTS = 2
# While Ray starts an actor again, calls say that it is unavailable; one that is gone for good has died at every call.
FAILURES_OF_THE_GONE = 3


class NoEngineLeft(RuntimeError):
    """Every engine is gone for good; the message has the last cause."""


class WeightSync:
    """`version` is the version that the engines serve."""

    def __init__(
        self,
        *,
        engines: Sequence[Any],
        actor_group: Any,
        pool: Any,
        config: PaceConfig,
        engine_size: int,
        version: int,
    ) -> None:
        self._engines = list(engines)
        self._actor_group = actor_group
        self._pool = pool
        self._config = config
        self._engine_size = engine_size
        self.version = version
        self._staged: list[dict[str, Any]] | None = None  # None: the engines' own weights are the current ones
        self._serving: dict[int, str] = {}  # incarnation by engine, as far as it serves `version`
        self._seen: dict[int, str] = {}  # the last incarnation by engine, serving or not
        self._asked: dict[int, Any] = {}  # pending status calls
        self._failures = dict.fromkeys(range(len(self._engines)), 0)  # status calls failed in a row
        self._gone: dict[int, Exception] = {}

    def start(self, *, own_weights: bool) -> None:
        """Lets the engines serve `version`: with the weights they started with, or after sending the trainer's."""
        self._on_ranks(policy_side.prepare, self._config)
        self._connect()
        if own_weights:
            self._resume({i: "own" for i in range(len(self._engines))})
        else:
            self.push(self.version)

    def push(self, version: int) -> dict[str, float]:
        """One weight sync. Raises NoEngineLeft. Returns seconds per phase, `sync/interrupted` (trajectories), engines
        left, and about the prefix scores the largest of all engines."""
        began = time.monotonic()
        self._staged = self._on_ranks(policy_side.stage_weights)
        staged = time.monotonic()
        loaded: dict[int, LoadReport] = {}
        try:
            loaded = self._load(range(len(self._engines)), version)
            self.version = version
            restarts.ask(lambda: self._pool.set_version.remote(version))
        finally:
            self._resume(dict.fromkeys(loaded, "loaded"))
        self._check_any_left()
        resumed = time.monotonic()
        self._score(loaded)
        return {
            "time/sync": resumed - began,
            "time/stage": staged - began,
            "time/rollout_paused": resumed - staged,
            "sync/interrupted": float(sum(report.interrupted for report in loaded.values())),
            "sync/engines": float(len(self._serving)),
            "time/rescore": max((report.rescore_s for report in loaded.values()), default=0.0),
            "pace/prefix_score/noise_floor": max((report.noise_floor for report in loaded.values()), default=0.0),
        }

    def revive(self) -> None:
        """Gives engines that were started again the current weights; asks every engine how it is. Doesn't wait for
        an engine that is still starting. Raises NoEngineLeft."""
        for index, engine in enumerate(self._engines):
            if index not in self._asked and index not in self._gone:
                self._asked[index] = engine.status.remote()
        answered, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked), timeout=0)
        for index in [i for i, ref in self._asked.items() if ref in answered]:
            try:
                status: EngineStatus = ray.get(self._asked.pop(index))
            except RayActorError as error:
                self._lost(index, error)
                continue
            except Exception as error:  # the engine is dead, its actor about to end
                logger.warning("engine %d: %s", index, error)
                continue
            self._failures[index] = 0
            if status.version is None or status.incarnation != self._serving.get(index):
                self._bring_up(index, status)

    def close(self) -> None:
        """Removes staged weights."""
        self._on_ranks(policy_side.close_weights)

    def _bring_up(self, index: int, status: EngineStatus) -> None:
        if status.version == self.version:
            self._serving[index] = status.incarnation  # it serves already: this is only news to us
            return
        if self._staged is None:
            self._resume({index: "own"})
        elif self._on_ranks(policy_side.weights_are_staged):
            self._resume(dict.fromkeys(self._load([index], self.version), "loaded"))
        else:
            self._connect()  # a communicator spans all engines: all are loaded again
            self.push(self.version)

    def _connect(self) -> None:
        sizes = {"n_engines": len(self._engines), "engine_size": self._engine_size}
        infos = self._on_ranks(policy_side.connect_weights, **sizes)
        refs = {
            i: e.connect_weights.remote(info) for i, (e, info) in enumerate(zip(self._engines, infos, strict=True))
        }
        self._gather(refs, self._config.sync_timeout_s, "connect_weights")

    def _load(self, indices: Sequence[int], version: int) -> dict[int, LoadReport]:
        """Loads the staged weights; once more where loading failed and the engine lives. Others are ended."""
        loaded: dict[int, LoadReport] = {}
        wanted = [i for i in indices if i not in self._gone]
        for _ in range(LOAD_ATTEMPTS):
            refs = {i: self._engines[i].load_weights.remote(version, self._staged) for i in wanted}
            sent = policy_side.on_ranks(self._actor_group, policy_side.send_weights)
            done, failed = self._gather(refs, self._config.sync_timeout_s, f"load_weights of version {version}")
            ray.get(sent, timeout=self._config.sync_timeout_s)
            loaded |= done
            wanted = [i for i, error in failed.items() if not isinstance(error, RayActorError | TimeoutError)]
            for i in failed.keys() - set(wanted):
                self._end(i, failed[i])
            if not wanted:
                break
        for i in wanted:
            self._end(i, failed[i])
        return loaded

    def _resume(self, weights: Mapping[int, str]) -> None:
        """Lets engines serve the current version, with the weights that are `loaded` or their `own`."""
        refs = {i: self._engines[i].serve.remote(self.version, weights=kind) for i, kind in weights.items()}
        served, failed = self._gather(refs, self._config.sync_timeout_s, "serve")
        for i, incarnation in served.items():
            if self._seen.setdefault(i, incarnation) != incarnation:
                self._seen[i] = incarnation
                logger.warning("engine %d was started again and serves policy version %d", i, self.version)
        self._serving = {i: inc for i, inc in self._serving.items() if i not in failed} | served
        for i, error in failed.items():
            self._end(i, error)

    def _score(self, indices: Mapping[int, LoadReport]) -> None:
        """Has interrupted prefixes scored beside the generation; nobody waits for the scores."""
        if not self._config.needs_prefix_scores:
            return
        for i, report in indices.items():
            if report.interrupted and i in self._serving:
                self._pool.add_scores.remote(self._engines[i].score_prefixes.remote())

    def _end(self, index: int, error: Exception) -> None:
        """Ends an engine's actor, so that Ray starts it anew; its groups go to the others meanwhile."""
        self._serving.pop(index, None)
        if isinstance(error, RayActorError):
            logger.warning("engine %d has died: %s", index, f"{error}".strip().splitlines()[0])
        elif index not in self._gone:
            logger.error("engine %d is ended and started again: %s", index, error)
            ray.kill(self._engines[index], no_restart=False)

    def _lost(self, index: int, error: RayActorError) -> None:
        """A status call failed: the actor has died and is being started again, or is gone for good."""
        self._serving.pop(index, None)
        self._failures[index] += not isinstance(error, ActorUnavailableError)
        cause = f"{error}".strip().splitlines()[0]
        if self._failures[index] < FAILURES_OF_THE_GONE:
            logger.warning("engine %d has died and is started again: %s", index, cause)
            return
        self._gone[index] = error
        logger.error("engine %d is gone for good: %s", index, cause)
        self._check_any_left()

    def _check_any_left(self) -> None:
        if len(self._gone) == len(self._engines):
            raise NoEngineLeft(f"no vLLM engine is left: {next(iter(self._gone.values()))}")

    def _gather(
        self, refs: Mapping[int, Any], timeout: float, what: str
    ) -> tuple[dict[int, Any], dict[int, Exception]]:
        """Answers and errors by engine; a TimeoutError for one that did not answer within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        done: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        for i, ref in refs.items():
            try:
                done[i] = ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))
            except ray.exceptions.GetTimeoutError:
                failed[i] = TimeoutError(f"no answer to {what} within {timeout:g} s (--pace.sync_timeout_s)")
            except Exception as error:
                failed[i] = error
        return done, failed

    def _on_ranks(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a function on every rank of the policy; rank 0's answer."""
        refs = policy_side.on_ranks(self._actor_group, function, *args, **kwargs)
        return ray.get(refs, timeout=self._config.sync_timeout_s)[0]
