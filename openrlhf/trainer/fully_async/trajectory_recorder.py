"""What the engine saw of one trajectory: tokens, behaviour log-probs and policy versions, for any agent.

An executor is handed a `TrajectoryRecorder` where it expects the engine. Everything it asks for reaches the engine;
each generation is noted on the way. Invariant: a token of the finished response is given a version only if the engine
made exactly these tokens for this trajectory, in this order; all others are unknown, never version 0.

In: calls of an executor (upstream's or a user's). Out: per-token versions and log-probs aligned with the response, and
at any time the prefix generated so far. Source: v_t and l_t of the paper's section 2; the alignment is design.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

NOT_GENERATED = -1  # prompt, tool and observation tokens
UNKNOWN = -2  # in an action range, but not as the engine made it


@dataclass
class Generation:
    """One completion. `tokens`, `logprobs` and `versions` have equal lengths; empty while the engine works on it."""

    prompt: list[int]
    request_id: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Prefix:
    """What a trajectory consists of so far: all token ids, and where the generated ones lie with their log-probs."""

    tokens: list[int]
    positions: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Aligned:
    """Per token of a response: policy version (or NOT_GENERATED, UNKNOWN) and behaviour log-prob (0 elsewhere)."""

    versions: list[int]
    logprobs: list[float]


class RecordedEngine(Protocol):
    """What a recorder needs of the engine."""

    async def generate_outputs(self, generation: Generation, sampling_params: Any, multi_modal_data: Any) -> Any:
        """The engine's final output for the prompt, under the generation's request id."""

    def generated_so_far(self, request_id: str) -> tuple[list[int], list[float]]:
        """Tokens and log-probs of a running request."""


class TrajectoryRecorder:
    """Stands in for the engine during one execution of an agent.

    `score` is F at the last weight sync that interrupted the trajectory (None: not measured); `start_version` the
    trainer's version when it began; `n_given` the generated tokens that another trajectory made before (in a tree).
    """

    n_given: int = 0

    def __init__(self, engine: RecordedEngine, *, name: str, start_version: int) -> None:
        self._engine = engine
        self.name = name
        self.start_version = start_version
        self.generations: list[Generation] = []
        self.score: float | None = None
        self.multi_modal = False
        self._n_requests = 0

    def __getattr__(self, name: str) -> Any:
        if name == "_engine":  # of a recorder that was unpacked elsewhere
            raise AttributeError("this recorder has no engine")
        return getattr(self._engine, name)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another engine: what was recorded."""
        return {name: value for name, value in vars(self).items() if name != "_engine"}

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        """As the engine's own `generate`; notes every completion of the answer."""
        self.multi_modal |= bool(multi_modal_data)
        request_id = f"{self.name}#{self._n_requests}"
        self._n_requests += 1
        running = Generation(list(prompt_token_ids), request_id)
        self.generations.append(running)
        try:
            answer = await self._engine.generate_outputs(running, sampling_params, multi_modal_data)
        finally:
            self.generations.remove(running)
        self.generations += [finished(running.prompt, request_id, output) for output in answer.outputs]
        return answer

    @property
    def n_tokens(self) -> int:
        """Tokens generated so far, those of running requests included."""
        return sum(len(self._known(generation)[0]) for generation in self.generations)

    def prefix(self) -> Prefix | None:
        """Everything up to now, as one sequence; None before the first generated token.

        Earlier turns count where the latest prompt still begins with all that they read and made: behind an altered
        history a log-prob changes for another reason than the policy.
        """
        if not self.generations:
            return None
        latest = self.generations[-1]
        tokens = latest.prompt + self._known(latest)[0]
        positions: list[int] = []
        logprobs: list[float] = []
        for generation in reversed(self.generations):
            made, made_logprobs = self._known(generation)
            start = len(generation.prompt)
            end = start + len(made)
            if end <= (positions[0] if positions else len(tokens)) and tokens[:end] == generation.prompt + made:
                positions = [*range(start, end), *positions]
                logprobs = made_logprobs + logprobs
        return Prefix(tokens, positions, logprobs) if positions else None

    def align(self, tokens: Sequence[int], action_ranges: Sequence[tuple[int, int]]) -> Aligned:
        """Versions and log-probs of a finished response.

        `tokens` is the whole sequence, `action_ranges` the half-open ranges that the executor says were generated. A
        range is matched to the next generation that made its tokens, if possible one that read what stands before the
        range; it may be cut at the end, not otherwise changed.
        """
        versions = [NOT_GENERATED] * len(tokens)
        logprobs = [0.0] * len(tokens)
        candidates = list(self.generations)
        for start, end in action_ranges:
            length = min(end, len(tokens)) - start
            wanted = list(tokens[start : start + length])
            if length <= 0:
                continue
            versions[start : start + length] = [UNKNOWN] * length
            makers = [i for i, g in enumerate(candidates) if g.tokens[:length] == wanted]
            if makers:
                before = list(tokens[:start])
                match = next((i for i in makers if candidates[i].prompt == before), makers[0])
                versions[start : start + length] = candidates[match].versions[:length]
                logprobs[start : start + length] = candidates[match].logprobs[:length]
                del candidates[: match + 1]
        return Aligned(versions, logprobs)

    def _known(self, generation: Generation) -> tuple[list[int], list[float]]:
        if generation.tokens or "_engine" not in vars(self):
            return generation.tokens, generation.logprobs
        return self._engine.generated_so_far(generation.request_id)


def finished(prompt: list[int], request_id: str, output: Any) -> Generation:
    """The note about one completion of vLLM's answer (`CompletionOutput`) to a prompt."""
    tokens = list(output.token_ids)
    versions = [UNKNOWN] * len(tokens)
    for span in output.weight_versions or ():
        versions[span.start : span.end] = [_version(span.version)] * (min(span.end, len(tokens)) - span.start)
    logprobs = [float(row[token].logprob) for row, token in zip(output.logprobs or (), tokens, strict=False)]
    logprobs += [0.0] * (len(tokens) - len(logprobs))
    return Generation(prompt, request_id, tokens, logprobs, versions)


def _version(label: str) -> int:
    """vLLM's label as a policy version; the label of an engine that nobody gave one is unknown."""
    return int(label) if label.isdigit() else UNKNOWN
