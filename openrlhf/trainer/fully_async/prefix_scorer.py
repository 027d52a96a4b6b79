"""Rescores what interrupted trajectories have written so far under the engine's new weights.

Invariants: both log-probs of a token come from the same engine; a score is attributed to a policy version only if the
engine labels it so; scoring is bounded by tokens and by a deadline, and what does not fit is missing, not late.

In: recorders of unfinished trajectories at a weight sync. Out: prefix forgetting scores F (pace.drift), kept on the
recorders and returned for the score window. Source: pace.drift; batching and bounds are design.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from openrlhf.trainer.fully_async.trajectory_recorder import Prefix, TrajectoryRecorder
from pace.config import PaceConfig
from pace.drift import Phi, PrefixScore, noise_floor, prefix_score

logger = logging.getLogger(__name__)

# Trajectories rescored under unchanged weights: their largest score is what the engine's arithmetic does by itself.
CALIBRATIONS = 8

# Log-probs of all tokens but the first under the current weights, and the version label of these weights.
Rescore = Callable[[list[int]], Awaitable[tuple[list[float], int]]]


class PrefixScorer:
    """Scores prefixes of one engine. `max_sequence` is the longest sequence that it can rescore, in tokens."""

    def __init__(self, rescore: Rescore, config: PaceConfig, *, max_sequence: int) -> None:
        self._rescore = rescore
        self._phi = Phi(config.pfs_phi)
        self._max_tokens = config.pfs_max_tokens
        self._deadline_s = config.pfs_deadline_s
        self._max_sequence = max_sequence
        self._calibrations: list[PrefixScore] = []
        self._interrupted: list[tuple[TrajectoryRecorder, Prefix]] = []
        self.seconds = 0.0  # that the last scoring took

    @property
    def floor(self) -> float:
        """The engine's own noise in nats per token; 0 until it is calibrated."""
        return noise_floor(self._calibrations) if self.calibrated else 0.0

    @property
    def calibrated(self) -> bool:
        """Whether enough trajectories were rescored under unchanged weights."""
        return len(self._calibrations) >= CALIBRATIONS

    def interrupt(self, recorders: Sequence[TrajectoryRecorder]) -> int:
        """Notes the prefixes at a weight sync, oldest trajectory first; how many there are.

        Their old scores end here: a score says how far the policy moved at the last sync.
        """
        self._interrupted = []
        for recorder in sorted(recorders, key=lambda r: r.start_version):
            prefix = recorder.prefix()
            if prefix is not None:
                recorder.score = None
                self._interrupted.append((recorder, prefix))
        return len(self._interrupted)

    async def score(self, version: int) -> list[float]:
        """Scores the noted prefixes under the weights of `version`; the scores that were ready in time."""
        chosen = self._within_bounds()
        scored: list[float] = []

        async def one(recorder: TrajectoryRecorder, prefix: Prefix) -> None:
            result = await self._measure(prefix, version, floor=self.floor)
            if result.value is not None:
                recorder.score = result.value
                scored.append(result.value)

        tasks = [asyncio.create_task(one(recorder, prefix)) for recorder, prefix in chosen]
        if not tasks:
            return []
        began = time.monotonic()
        done, late = await asyncio.wait(tasks, timeout=self._deadline_s)
        self.seconds = time.monotonic() - began
        for task in late:
            task.cancel()
        failures = [task.exception() for task in done if task.exception() is not None]
        if late or failures:
            logger.warning("prefix scores: %d of %d, %d late, %s", len(scored), len(tasks), len(late), failures[:1])
        return scored

    async def calibrate(self, recorder: TrajectoryRecorder, version: int) -> None:
        """Rescores a trajectory that was generated wholly by `version`, while these weights are still loaded."""
        prefix = recorder.prefix()
        if self.calibrated or prefix is None or not self._can_score(recorder, prefix):
            return
        try:
            result = await self._measure(prefix, version, floor=0.0)
        except Exception as error:  # nobody awaits this; other trajectories will do
            logger.warning("the engine's noise could not be measured on %s: %s", recorder.name, error)
            return
        if result.value is not None and not self.calibrated:
            self._calibrations.append(result)

    def _within_bounds(self) -> list[tuple[TrajectoryRecorder, Prefix]]:
        chosen, tokens = [], 0
        for recorder, prefix in self._interrupted:
            size = len(prefix.tokens)
            if self._can_score(recorder, prefix) and tokens + size <= self._max_tokens:
                tokens += size
                chosen.append((recorder, prefix))
        return chosen

    def _can_score(self, recorder: TrajectoryRecorder, prefix: Prefix) -> bool:
        """Only text, and no more than the engine takes: images are not kept, and without them log-probs differ."""
        return len(prefix.tokens) <= self._max_sequence and not recorder.multi_modal

    async def _measure(self, prefix: Prefix, version: int, *, floor: float) -> PrefixScore:
        """The score of one prefix; without a value when other weights arrived meanwhile."""
        logprobs, label = await self._rescore(prefix.tokens)
        if label != version:
            return PrefixScore(None, 0, len(prefix.positions))
        # A sequence that begins with a generated token has no log-prob there: there is nothing before it.
        pairs = [(old, logprobs[at - 1]) for at, old in zip(prefix.positions, prefix.logprobs, strict=True) if at]
        return prefix_score([old for old, _ in pairs], [new for _, new in pairs], phi=self._phi, floor=floor)
