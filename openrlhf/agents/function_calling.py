"""Multi-turn function calling, after BFCL v4: a user with several requests, and back ends that remember.

A turn of the model with calls is a round: they are run and answered. A turn without one ends the user's turn, and the
user speaks again. After the last request the benchmark's checker compares all calls' results and the back ends' states
with its answer: the reward is 1 or 0. A trajectory that has not come that far after `max_turns` turns has 0.

In: a row's prompt, the first request, and its label, `{"id": "multi_turn_base_17"}`. Out: as every `ToolAgent`.
Source: trace.md 12 ("Function Calling").
"""

import json
from collections.abc import Sequence

from openrlhf.agents.bfcl_checker import passes
from openrlhf.agents.bfcl_data import find
from openrlhf.agents.bfcl_world import World
from openrlhf.agents.tool_agent import Call, Outcome, Start, ToolAgent
from openrlhf.agents.tool_calls import BadCall
from openrlhf.agents.tools import Schema, Toolbox

SYSTEM = """\
You fulfil a user's requests by calling functions.
Call a function as soon as you know all its required arguments; one turn may hold several calls. You see the results \
and can go on calling. When the request is fulfilled, answer without a call, and the user will go on.
If no function can do what is asked, or the user has not said all that you need, say so without a call.
Functions may be added during the conversation: use only the latest list of tools, with what has been added to it."""


class Functions(Toolbox):
    """The functions that a world offers at the moment."""

    def __init__(self, world: World, *, max_output_chars: int) -> None:
        super().__init__([], max_output_chars=max_output_chars)
        self._world = world

    @property
    def schemas(self) -> list[Schema]:
        """For the chat template's `tools`."""
        return self._world.schemas

    async def run(self, call: Call) -> str:
        """The answer to one call. It is run at once and not in a thread: it takes microseconds."""
        world = self._world
        answer = world.refuse(call.reason) if isinstance(call, BadCall) else world.run(call)
        return self._cut(answer.encode("utf-8", "replace").decode())  # half of a surrogate pair can't be tokenized


class FunctionCallingAgent(ToolAgent):
    """One task."""

    max_turns = 40
    max_output_chars = 32_768  # of one result; none of the answers' has more
    log_names = ("correct", "user_turns", "refused_calls")
    world: World

    async def start(self, prompt: str, label: str) -> Start:
        self.world = World(find(task_id(label)))
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
        return Start(messages, Functions(self.world, max_output_chars=self.max_output_chars))

    async def act(self, text: str, calls: Sequence[Call]) -> Outcome:
        if not calls:
            return await self._answered(text)
        self.world.begin_round()
        answers = [await self.toolbox.run(call) for call in calls]
        if self.turns >= self.max_turns or self.world.is_broken:
            return self._end(0.0)
        return Outcome([{"role": "tool", "content": answer} for answer in answers])

    async def _answered(self, text: str) -> Outcome:
        message = self.world.next_turn()
        if message is None:
            return await self.finish(text)
        if self.turns >= self.max_turns:
            return self._end(0.0)
        return Outcome([{"role": "user", "content": message}])

    async def finish(self, text: str) -> Outcome:
        return self._end(float(passes(self.world.task, self.world.calls)))

    def _end(self, reward: float) -> Outcome:
        logs = {
            "correct": reward,
            "user_turns": float(self.world.turn + 1),
            "refused_calls": float(self.world.n_refused),
        }
        return Outcome(done=True, reward=reward, logs=logs)


def task_id(label: str) -> str:
    """The id in a row's label. Raises ValueError."""
    try:
        return str(json.loads(label)["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f'a label must be JSON like {{"id": "multi_turn_base_17"}}, not {str(label)[:100]!r}; '
            "write the data with python -m examples.tasks.bfcl and set --data.label_key label"
        ) from error
