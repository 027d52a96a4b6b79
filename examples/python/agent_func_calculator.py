"""A calculator game over several turns, played through upstream's `--train.agent_func_path` interface.

The task: bring a number from `start` to `target` with a limited number of calculator calls. A turn is one call such as
`<call>+4</call>`; the calculator answers with the distance that is left. No call makes a number smaller, so a turn
can't be taken back: a prefix of an episode is either still winnable or already lost, and `winnable` says which. The
reward is 1 on the turn that reaches the target, else 0.

Invariant: the transition is the pure function `play`; an `AgentInstance` holds integers and nothing else, so a
deep copy of it is a complete, independent snapshot of the episode. Nothing here is random.
"""

import json
import re
from functools import cache
from typing import Any, NamedTuple

import torch

from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

OPERATIONS = ("+1", "+4", "+9")
LIMIT = 99  # the display has two digits: a larger result is refused, and the call is spent
_CALL = re.compile(r"<call>\s*(\+\d)\s*</call>")
TURN_END = "<|im_end|>"


class State(NamedTuple):
    """Where an episode stands. `left` counts the calls that may still be made."""

    value: int
    target: int
    left: int


def start_state(label: str) -> State:
    """The first state of the task in `label`, a JSON object with `start`, `target` and `calls`."""
    task = json.loads(label)
    return State(value=int(task["start"]), target=int(task["target"]), left=int(task["calls"]))


def parse_call(text: str) -> str | None:
    """The operation that a turn calls, or None unless the turn holds exactly one well-formed known call."""
    calls = _CALL.findall(text)
    return calls[0] if len(calls) == 1 and text.count("<call>") == 1 and calls[0] in OPERATIONS else None


def compute(value: int, operation: str) -> int:
    """What the calculator shows after `operation`."""
    return value + int(operation)


def play(state: State, operation: str | None) -> State:
    """The state after one call. A malformed call (None) and a result above the limit keep the number; both cost."""
    value = state.value if operation is None else compute(state.value, operation)
    return State(value if value <= LIMIT else state.value, state.target, state.left - 1)


def won(state: State) -> bool:
    return state.value == state.target


@cache
def winnable(state: State) -> bool:
    """Whether some sequence of the remaining calls still reaches the target. Exact: tries all of them."""
    if won(state):
        return True
    return state.left > 0 and any(winnable(play(state, operation)) for operation in OPERATIONS)


def winning_operations(state: State) -> list[str]:
    """The calls after which the episode is still winnable; empty in a lost state."""
    return [operation for operation in OPERATIONS if winnable(play(state, operation))] if state.left else []


def display(state: State) -> str:
    """What the calculator shows: the number, the distance to the target, the calls left."""
    return f"{state.target - state.value} to go, {state.left} left"


def instruction(state: State) -> str:
    """The user's message that opens an episode."""
    return f"From {state.value} to {state.target} in {state.left} calls: {' '.join(OPERATIONS)}"


def reply(before: State, operation: str | None) -> str:
    """The calculator's message after a turn."""
    after = play(before, operation)
    if operation is None:
        note = "Not a call. "
    elif compute(before.value, operation) > LIMIT:
        note = "Too large. "
    else:
        note = ""
    return f"{note}{display(after)}"


class AgentInstance(AgentInstanceBase):
    """One episode."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.value, self.target, self.left = 0, 0, 0
        self.malformed = 0

    @property
    def state(self) -> State:
        return State(self.value, self.target, self.left)

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        self.value, self.target, self.left = start_state(states["label"])
        return {"observation": states["observation"]}

    async def step(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        before, operation = self.state, parse_call(states["action_text"])
        self.value, self.target, self.left = after = play(before, operation)
        self.malformed += operation is None
        done = won(after) or after.left <= 0
        # The engine's text ends with the end-of-turn token; a turn that was cut off still has to be closed.
        opening = "" if states["action_text"].rstrip().endswith(TURN_END) else TURN_END
        feedback = f"{opening}\n<|im_start|>tool\n{reply(before, operation)}{TURN_END}\n"
        return {
            "rewards": torch.tensor(float(won(after))),
            "scores": float(won(after)),
            "environment_feedback": feedback if done else f"{feedback}<|im_start|>assistant\n",
            "done": done,
            "extra_logs": {"calculator_calls_left": after.left, "calculator_malformed": self.malformed},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """What `--train.agent_func_path` loads from this file."""

    def __init__(self) -> None:
        super().__init__(AgentInstance)
