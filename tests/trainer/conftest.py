"""An engine without a model whose answers are vLLM's own records, a tokenizer of characters, and recorders.

Whatever loads vLLM is imported where it is used: the tests that do without it shouldn't wait for it.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings

from pace.types import spans_of

# No deadline: the machines that run these are shared, and a slow example is not a failure.
settings.register_profile("trainer", max_examples=50, deadline=None)
settings.load_profile("trainer")


class CharTokenizer:
    """One token per character."""

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[ord(character) for character in text]], dtype=torch.long)}

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, tokens))


def completion(text: str, versions: Sequence[Any], *, finish_reason: str = "stop", index: int = 0) -> Any:
    """vLLM's record of a text: token i is `text[i]`, made by the weights labelled `versions[i]` with log-prob
    -(its position + 1) / 100."""
    import openrlhf  # noqa: F401, I001  (before vLLM)
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, WeightVersionSpan

    spans, start = [], 0
    for span in spans_of(int(version) for version in versions):
        spans.append(WeightVersionSpan(str(span.version), start, start + span.n_tokens))
        start += span.n_tokens
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=[ord(character) for character in text],
        cumulative_logprob=None,
        logprobs=[{ord(character): Logprob(-(i + 1) / 100)} for i, character in enumerate(text)],
        finish_reason=finish_reason,
        weight_versions=spans,
    )


class ScriptedEngine:
    """Gives one answer after the other: a completion, a list of them, or an exception to raise.

    `hold()` keeps the next requests running; `so_far` is then what they have generated, by request id.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []  # the recorder's notes
        self.so_far: dict[str, tuple[list[int], list[float]]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self.model_name = "scripted"  # an executor may ask the engine for anything

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def generate_outputs(self, generation: Any, sampling_params: Any, multi_modal_data: Any) -> Any:
        self.requests.append(generation)
        answer = self.answers.pop(0)
        await self._open.wait()
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(outputs=answer if isinstance(answer, list) else [answer])

    def generated_so_far(self, request_id: str) -> tuple[list[int], list[float]]:
        return self.so_far.get(request_id, ([], []))


def recorded(*generations: tuple[str, str, Sequence[int]], start_version: int = 0) -> Any:
    """A recorder that has seen these (prompt, text, versions)."""
    from openrlhf.trainer.fully_async.trajectory_recorder import TrajectoryRecorder

    engine = ScriptedEngine(*(completion(text, versions) for _, text, versions in generations))
    recorder = TrajectoryRecorder(engine, name="g0/0.0", start_version=start_version)

    async def run() -> None:
        for prompt, _, _ in generations:
            await recorder.generate(codes(prompt), None)

    asyncio.run(run())
    return recorder


def codes(text: str) -> list[int]:
    """The tokens of a text."""
    return [ord(character) for character in text]


@pytest.fixture(scope="session")
def fake() -> SimpleNamespace:
    """The builders as one object: test modules cannot import each other."""
    return SimpleNamespace(
        tokenizer=CharTokenizer(),
        completion=completion,
        Engine=ScriptedEngine,
        recorded=recorded,
        codes=codes,
    )
