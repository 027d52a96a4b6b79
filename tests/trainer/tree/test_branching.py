"""Continuations hold their prefix as it was, and environments that can't go on from one are refused."""

import asyncio
import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle

from examples.python.agent_func_calculator import OPERATIONS, AgentInstance
from openrlhf.trainer.tree.branching import BranchRecorder, CannotBranch, Play, Point, n_given, play, points, prefix
from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

MAX_LENGTH = 2000
LABEL = json.dumps({"start": 3, "target": 40, "calls": 4})


class FakeTokenizer:
    """One token per character."""

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([list(map(ord, text))], dtype=torch.long)}

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(map(chr, tokens))


@dataclass(frozen=True)
class FakeSpan:
    """vLLM's `WeightVersionSpan`."""

    version: str
    start: int
    end: int


class FakeEngine:
    """Answers with what `speak` says; every call, and within it every few tokens, has weights of its own."""

    def __init__(self, speak: Callable[[random.Random], str], seed: int = 0) -> None:
        self._speak, self._rng = speak, random.Random(seed)
        self.calls: list[tuple[list[int], Any]] = []
        self.n_made = self._version = 0

    async def generate_outputs(self, generation: Any, sampling_params: Any, multi_modal_data: Any) -> Any:
        self.calls.append((list(generation.prompt), sampling_params))
        tokens = list(map(ord, self._speak(self._rng)))[: sampling_params.max_tokens]
        self.n_made += len(tokens)
        spans = []
        for start in range(0, len(tokens), 3):
            self._version += 1
            spans.append(FakeSpan(str(self._version), start, min(start + 3, len(tokens))))
        answer = SimpleNamespace(
            token_ids=tokens,
            text="".join(map(chr, tokens)),
            logprobs=[{token: SimpleNamespace(logprob=-self._rng.random())} for token in tokens],
            weight_versions=spans,
            finish_reason="stop",
        )
        prompt = generation.prompt
        return SimpleNamespace(outputs=[answer], prompt_token_ids=prompt, num_cached_tokens=len(prompt) - 1)

    def generated_so_far(self, request_id: str) -> tuple[list[int], list[float]]:
        return [], []


def call(rng: random.Random) -> str:
    return f"{'thinking '[: rng.randint(0, 9)]}<call>{rng.choice(OPERATIONS)}</call>"


def letters(rng: random.Random) -> str:
    return "".join(rng.choice("abcdef") for _ in range(rng.randint(4, 12)))


def run(one: Play, label: Any = LABEL) -> dict[str, Any]:
    return asyncio.run(
        one.executor.execute(
            prompt="start",
            label=label,
            sampling_params=SimpleNamespace(max_tokens=None, logprobs=0),
            max_length=MAX_LENGTH,
            hf_tokenizer=FakeTokenizer(),
            llm_engine=one.recorder,
        )
    )


def recorded(executor: Any, engine: Any) -> tuple[Play, dict[str, Any]]:
    one = play(executor, BranchRecorder(engine, name="g/0", start_version=0))
    return one, run(one)


def branch(executor: Any, engine: Any, source: Play, point: Point) -> Play:
    recorder = BranchRecorder(
        engine,
        name="g/1",
        start_version=0,
        given=source.recorder.answers,
        point=point,
        decode=FakeTokenizer().decode,
    )
    given = () if source.environment is None else source.environment.played[: point.turn + 1]
    return play(executor, recorder, given=given)


def check_continuation(executor: Any, engine: Any, source: Play, base: dict[str, Any], point: Point) -> Play:
    """Continues at the point; the response begins as the source does, and only what follows was made for it."""
    calls, made = len(engine.calls), engine.n_made
    one = branch(executor, engine, source, point)
    response = run(one)
    before = prefix(source.recorder.answers, point)
    n = len(before)
    old, new = (r.align(x["observation_tokens"], x["action_ranges"]) for r, x in ((source.recorder, base),
                                                                               (one.recorder, response)))  # fmt: skip
    assert response["observation_tokens"][:n] == base["observation_tokens"][:n] == before
    assert new.versions[:n] == old.versions[:n] and new.logprobs[:n] == old.logprobs[:n]
    assert response["rollout_log_probs"][:n] == base["rollout_log_probs"][:n]
    assert new.logprobs == pytest.approx(response["rollout_log_probs"])
    assert -2 not in new.versions, "no generated token is unknown"
    assert engine.calls[calls][0] == before, "the engine starts behind the prefix"
    n_actions = sum(end - start for start, end in response["action_ranges"])
    assert one.recorder.n_given == n_given(source.recorder.answers, point)
    assert one.recorder.n_tokens == engine.n_made - made == n_actions - one.recorder.n_given
    assert len(engine.calls) - calls == len(response["action_ranges"]) - point.turn
    own = set(v for v in new.versions[n:] if v >= 0)
    assert own and min(own) > max([v for v in old.versions if v >= 0])
    return one


def state(instance: Any) -> Any:
    return {k: v for k, v in vars(instance).items() if k not in ("lock", "steps")}


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_continuation_of_the_calculator_from_every_point(seed, segment):
    executor, engine = MultiTurnAgentExecutor(AgentInstance), FakeEngine(call, seed)
    source, base = recorded(executor, engine)
    found = points(source.recorder.answers, segment_tokens=segment)
    assert len(found) >= len(source.recorder.answers) - 1
    for point in found:
        check_continuation(executor, engine, source, base, point)


class Copyable(AgentInstanceBase):
    """Three turns; remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.said.append(states["observation"])
        return {"observation": states["observation"]}

    async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.said.append(states["action_text"])
        done = len(self.said) == 4
        return {"rewards": torch.tensor(1.0), "environment_feedback": f"[{self.note()}]", "done": done}

    def note(self) -> str:
        return str(len("".join(self.said)))


class Snapshots(Copyable):
    """Can't be copied, but knows how to save itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def snapshot(self) -> list[str]:
        return self.said

    def restore(self, snapshot: list[str]) -> None:
        self.said = snapshot


class Locked(Copyable):
    """Can't be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Generating(Copyable):
    """Can't be copied: its course is a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = iter(str(i) for i in range(9))

    def note(self) -> str:
        return next(self.steps) + super().note()


AGENTS = [Copyable, Snapshots, Locked, Generating]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("segment", [0, 2])
def test_every_kind_of_agent_goes_on_from_the_state_it_had(agent, segment):
    """The recorded instances are watched: their states after each turn, and those of the continuation."""
    made: list[Any] = []

    class Watched(agent):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__["steps_seen"] = 0
            made.append(self)

    executor, engine = MultiTurnAgentExecutor(Watched), FakeEngine(letters, 3)
    source, base = recorded(executor, engine)
    texts = [answer.output.outputs[0].text for answer in source.recorder.answers]
    for point in points(source.recorder.answers, segment_tokens=segment):
        one = branch(executor, engine, source, point)
        given = one.environment._given
        restored = asyncio.run(one.environment._restored())
        assert state(restored)["said"] == ["start", *texts[: point.turn]] and len(given) == point.turn + 1
        check_continuation(executor, engine, source, base, point)
    assert made[0].said == ["start", *texts], "continuations leave the recorded environment alone"


def test_only_agents_that_cannot_be_copied_are_played_again():
    kept = {}
    for agent in AGENTS:
        source, _ = recorded(MultiTurnAgentExecutor(agent), FakeEngine(letters))
        kept[agent] = [played.snapshot is not None for played in source.environment.played]
    assert kept[Copyable] == kept[Snapshots] == [True, True, True, False]
    assert not any(kept[Locked])


class RandomStart(Locked):
    """Begins differently each time."""

    n = 0

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        type(self).n += 1
        return {"observation": f"{states['observation']}{self.n}"}


class RandomReply(Locked):
    """Replies differently each time."""

    n = 0

    def note(self) -> str:
        type(self).n += 1
        return str(self.n)


@pytest.mark.parametrize("agent", [RandomStart, RandomReply])
def test_an_agent_that_does_not_do_the_same_again_cannot_be_branched(agent):
    executor, engine = MultiTurnAgentExecutor(agent), FakeEngine(letters)
    source, _ = recorded(executor, engine)
    made = engine.n_made
    one = branch(executor, engine, source, Point(1))
    with pytest.raises(CannotBranch, match="differently"):
        run(one)
    assert engine.n_made == made and one.recorder.n_tokens == 0


class OwnLoop(AgentExecutorBase):
    """A user's executor, with an environment that nobody but itself knows; `tail` stands for its randomness."""

    def __init__(self, tail: Callable[[], str] = lambda: "") -> None:
        self.tail = tail

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        tokens, ranges, logprobs = list(map(ord, prompt)), [], [0.0] * len(prompt)
        for _ in range(3):
            sampling_params.max_tokens = max_length - len(tokens)
            answer = (await llm_engine.generate(list(tokens), sampling_params)).outputs[0]
            ranges.append((len(tokens), len(tokens) + len(answer.token_ids)))
            reply = f"<{len(answer.text)}{self.tail()}>"
            logprobs += [row[t].logprob for row, t in zip(answer.logprobs, answer.token_ids, strict=True)]
            logprobs += [0.0] * len(reply)
            tokens += [*answer.token_ids, *map(ord, reply)]
        return {"observation_tokens": tokens, "action_ranges": ranges, "rollout_log_probs": logprobs, "reward": 1.0}


@given(st.integers(0, 10**6), st.integers(0, 5))
def test_a_users_executor_is_replayed_through_its_answers(seed, segment):
    executor, engine = OwnLoop(), FakeEngine(letters, seed)
    source, base = recorded(executor, engine)
    assert source.environment is None
    for point in points(source.recorder.answers, segment_tokens=segment):
        check_continuation(executor, engine, source, base, point)


def test_a_users_executor_that_is_random_cannot_be_branched():
    count = iter(range(99))
    executor, engine = OwnLoop(lambda: str(next(count))), FakeEngine(letters)
    source, _ = recorded(executor, engine)
    with pytest.raises(CannotBranch, match="another prompt"):
        run(branch(executor, engine, source, Point(2)))


@given(st.integers(0, 10**6), st.integers(1, 11))
def test_a_single_turn_joins_head_and_tail(seed, offset):
    executor, engine = SingleTurnAgentExecutor(), FakeEngine(letters, seed)
    source, base = recorded(executor, engine)
    found = points(source.recorder.answers, segment_tokens=offset)
    for point in found:
        one = check_continuation(executor, engine, source, base, point)
        answer = one.recorder.answers[0]
        assert answer.output.outputs[0].text == FakeTokenizer().decode(answer.tokens)
        assert engine.calls[-1][1].max_tokens == engine.calls[0][1].max_tokens - point.offset
        spans = answer.output.outputs[0].weight_versions
        assert [s.start for s in spans] == [0, *[s.end for s in spans[:-1]]] and spans[-1].end == len(answer.tokens)
        assert len(one.recorder.generations) == 1


def test_what_the_environment_raises_in_a_branch_comes_through():
    class Fails(Copyable):
        armed = False

        async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
            if self.armed and len(self.said) == 3:
                raise ZeroDivisionError("the environment is broken")
            return await super().step(states)

    executor, engine = MultiTurnAgentExecutor(Fails), FakeEngine(letters)
    source, _ = recorded(executor, engine)
    Fails.armed = True
    with pytest.raises(ZeroDivisionError):
        run(branch(executor, engine, source, Point(1)))


@pytest.mark.parametrize("agent", [AgentInstance, Copyable, Snapshots, Locked])
def test_a_play_that_has_travelled_can_be_continued(agent):
    """What was recorded goes along; engine, executor and the running environment stay."""
    executor, engine = MultiTurnAgentExecutor(agent), FakeEngine(call)
    source, base = recorded(executor, engine)
    there = cloudpickle.loads(cloudpickle.dumps(source))
    assert there.executor is None and not hasattr(there.recorder, "_engine")
    assert there.recorder.n_tokens == source.recorder.n_tokens
    for point in points(there.recorder.answers):
        check_continuation(executor, engine, there, base, point)


def test_what_cannot_be_packed_says_so():
    """A snapshot may hold anything."""
    source, _ = recorded(MultiTurnAgentExecutor(Holding), FakeEngine(call))
    with pytest.raises(Exception, match="pickle"):
        cloudpickle.dumps(source)


class Holding(Copyable):
    """Its snapshot can be copied but not packed."""

    def snapshot(self) -> Any:
        return Unpackable()

    def restore(self, snapshot: Any) -> None:
        pass


class Unpackable:
    def __reduce__(self) -> Any:
        raise TypeError("can't pickle this")

    def __deepcopy__(self, memo: Any) -> Any:
        return self
