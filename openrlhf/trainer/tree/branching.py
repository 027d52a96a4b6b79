"""Continuing a finished trajectory from a prefix, with any agent.

An executor is run again from the start; what the prefix holds is given to it as it was: the engine's answers by
`BranchRecorder`, the environment's by `RecordedAgent`, which then goes on from a snapshot of the environment. So a
continuation has the exact token ids, log-probs and policy versions of the prefix, and nothing is generated twice.

Invariant: an executor that asks for something else than was recorded can't be branched, and says so
(`CannotBranch`); a continuation never trains on a prefix that was not the trajectory's own.

In: answers and replies of a trajectory. Out: the same for a new one. Source: design (trace.md 8, "branching").
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openrlhf.trainer.fully_async.trajectory_recorder import RecordedEngine, TrajectoryRecorder, finished
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class CannotBranch(RuntimeError):
    """This agent does not do the same again when it is given the same; the message says what differs."""


@dataclass(frozen=True)
class Point:
    """Where to branch: after `turn` whole answers of the engine, and `offset` generated tokens of the next one."""

    turn: int
    offset: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer of the engine, vLLM's `RequestOutput`, and the prompt's token ids that it answers."""

    prompt: list[int]
    output: Any

    @property
    def tokens(self) -> list[int]:
        """What was generated."""
        return list(self.output.outputs[0].token_ids)


class BranchRecorder(TrajectoryRecorder):
    """A recorder that keeps the engine's answers, and gives those of another trajectory up to a point first.

    `n_given` counts the generated tokens that were given and not made for this trajectory.
    """

    def __init__(
        self,
        engine: RecordedEngine,
        *,
        name: str,
        start_version: int,
        given: Sequence[Answer] = (),
        point: Point = Point(0),
        decode: Callable[[list[int]], str] = str,
    ) -> None:
        super().__init__(engine, name=name, start_version=start_version)
        self.answers: list[Answer] = []
        self.n_cached = self.n_prompt = 0  # prompt tokens found in the engine's prefix cache, and asked for
        self._given, self._point, self._decode = given, point, decode
        self.n_given = n_given(given, point)

    @property
    def n_tokens(self) -> int:
        """Tokens generated so far for this trajectory itself."""
        return max(0, super().n_tokens - self.n_given)

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        """As the engine's own `generate`. Raises CannotBranch for another prompt than the recorded one."""
        turn = len(self.answers)
        recorded = self._given[turn] if turn <= self._point.turn and turn < len(self._given) else None
        if recorded is not None and recorded.prompt != list(prompt_token_ids):
            raise CannotBranch(f"turn {turn} has another prompt when it is played again; is the agent random?")
        if recorded is not None and turn < self._point.turn:
            self._note(recorded.prompt, recorded.output)
            output = copy.deepcopy(recorded.output)
        elif recorded is not None and self._point.offset:
            output = await self._continued(recorded, sampling_params, multi_modal_data)
        else:
            output = await super().generate(prompt_token_ids, sampling_params, multi_modal_data)
            self._count_cached(output)
        self.answers.append(Answer(list(prompt_token_ids), output))
        return output

    async def _continued(self, given: Answer, sampling_params: Any, multi_modal_data: Any) -> Any:
        """The answer that begins as the given one does, for `offset` tokens."""
        head = given.tokens[: self._point.offset]
        if getattr(sampling_params, "max_tokens", None):
            sampling_params.max_tokens = max(1, sampling_params.max_tokens - len(head))
        answer = await super().generate(given.prompt + head, sampling_params, multi_modal_data)
        self._count_cached(answer)
        del self.generations[-len(answer.outputs) :]
        merged = copy.copy(answer)
        merged.outputs = [joined(given.output.outputs[0], tail, len(head), self._decode) for tail in answer.outputs]
        merged.prompt_token_ids = given.prompt
        self._note(given.prompt, merged)
        return merged

    def _note(self, prompt: list[int], output: Any) -> None:
        self.generations += [finished(prompt, f"{self.name}#given", completion) for completion in output.outputs]

    def _count_cached(self, answer: Any) -> None:
        self.n_cached += getattr(answer, "num_cached_tokens", None) or 0
        self.n_prompt += len(getattr(answer, "prompt_token_ids", None) or ())


def joined(first: Any, second: Any, n: int, decode: Callable[[list[int]], str]) -> Any:
    """One completion (vLLM's `CompletionOutput`): `n` tokens of `first`, then all of `second`."""
    whole = copy.copy(second)
    whole.token_ids = [*list(first.token_ids)[:n], *second.token_ids]
    whole.text = decode(whole.token_ids)
    if second.logprobs is not None:
        whole.logprobs = [*list(first.logprobs or ())[:n], *second.logprobs]
    spans = [replace(span, end=min(span.end, n)) for span in first.weight_versions or () if span.start < n]
    spans += [replace(span, start=span.start + n, end=span.end + n) for span in second.weight_versions or ()]
    whole.weight_versions = spans
    return whole


@dataclass(frozen=True)
class Played:
    """The environment after a reset or a turn: what the agent was asked, its reply, a snapshot or None."""

    asked: dict[str, Any]
    reply: Any
    snapshot: Any


class RecordedAgent(AgentInstanceBase):
    """Stands in for the user's agent instance: keeps its replies and snapshots, and gives recorded ones first.

    A snapshot is what the instance's own `snapshot()` returns, for its `restore(snapshot)`; else a deep copy of the
    instance; else nothing, and the recorded turns are played again on a new instance, which must reply the same.
    """

    def __init__(self, make: Callable[[], Any], *, given: Sequence[Played] = ()) -> None:
        self.played: list[Played] = []  # the reset, then every turn
        self._make, self._given = make, given
        self._instance: Any = None if given else make()

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another engine: replies and snapshots. Enough to branch from, not to go on."""
        return {"played": self.played}

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> Any:
        """As the agent's own."""
        return await self._play("reset", states, kwargs)

    async def step(self, states: dict[str, Any], **kwargs: Any) -> Any:
        """As the agent's own. Raises CannotBranch when the recorded turns can't be played again."""
        return await self._play("step", states, kwargs)

    async def _play(self, method: str, states: dict[str, Any], kwargs: Any) -> Any:
        at = len(self.played)
        if at < len(self._given):
            recorded = self._given[at]
            self.played.append(recorded)
            if at + 1 == len(self._given):
                self._instance = await self._restored()
            return copy.deepcopy(recorded.reply)
        asked = dict(states)
        reply = await getattr(self._instance, method)(states, **kwargs)
        over = method == "step" and bool(reply.get("done"))
        self.played.append(Played(asked, copy.deepcopy(reply), None if over else _snapshot(self._instance)))
        return reply

    async def _restored(self) -> Any:
        """The environment as it was after the given turns."""
        last = self._given[-1]
        if last.snapshot is not None:
            return last.snapshot.restore(self._make)
        instance = self._make()
        for number, recorded in enumerate(self._given):
            method = instance.step if number else instance.reset
            reply = await method(dict(recorded.asked))
            if not same(reply, recorded.reply):
                raise CannotBranch(f"the agent replies differently when turn {number} is played again")
        return instance


@dataclass(frozen=True)
class _Own:
    """What the agent's `snapshot()` returned."""

    state: Any

    def restore(self, make: Callable[[], Any]) -> Any:
        instance = make()
        instance.restore(copy.deepcopy(self.state))
        return instance


@dataclass(frozen=True)
class _Copy:
    """A copy of the agent instance."""

    instance: Any

    def restore(self, make: Callable[[], Any]) -> Any:
        return copy.deepcopy(self.instance)


def _snapshot(instance: Any) -> _Own | _Copy | None:
    """None where the environment can't be copied."""
    if hasattr(instance, "snapshot") and hasattr(instance, "restore"):
        return _Own(copy.deepcopy(instance.snapshot()))
    try:
        return _Copy(copy.deepcopy(instance))
    except Exception:  # an agent's own state may be anything: sockets, locks, generators
        return None


def same(left: Any, right: Any) -> bool:
    """Whether two replies of an environment are equal, tensors by their values."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "tolist") or hasattr(right, "tolist"):
        return bool(getattr(left, "tolist", lambda: left)() == getattr(right, "tolist", lambda: right)())
    if type(left).__name__ == "SamplingParams":
        return True  # the engine's settings, changed on the way; not the environment's
    return bool(left == right)


@dataclass
class Play:
    """One execution of an agent: what runs it, the recorder it talks to, and its environment if it has one we know."""

    executor: Any
    recorder: BranchRecorder
    environment: RecordedAgent | None

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another engine, which has an executor of its own."""
        return {"executor": None, "recorder": self.recorder, "environment": self.environment}


def play(executor: Any, recorder: BranchRecorder, *, given: Sequence[Played] = ()) -> Play:
    """`executor`, set up for one execution: upstream's multi-turn executor gets a recorded environment.

    Any other is run as it is, and replays its environment from the answers that it is given.
    """
    if not isinstance(executor, MultiTurnAgentExecutor):
        return Play(executor, recorder, None)
    environment = RecordedAgent(executor.agent_instance_cls, given=given)
    one = copy.copy(executor)
    one.agent_instance_cls = lambda: environment
    return Play(one, recorder, environment)


def points(answers: Sequence[Answer], *, segment_tokens: int = 0) -> list[Point]:
    """Where a finished trajectory can be branched: between turns, and every `segment_tokens` tokens within one."""
    found = []
    for turn, answer in enumerate(answers):
        if turn:
            found.append(Point(turn))
        if segment_tokens:
            found += [Point(turn, offset) for offset in range(segment_tokens, len(answer.tokens), segment_tokens)]
    return found


def prefix(answers: Sequence[Answer], point: Point) -> list[int]:
    """The token ids of everything before a point: prompt, turns, observations."""
    answer = answers[point.turn]
    return answer.prompt + answer.tokens[: point.offset]


def n_given(answers: Sequence[Answer], point: Point) -> int:
    """How many generated tokens lie before a point."""
    return point.offset + sum(len(answer.tokens) for answer in answers[: point.turn])
