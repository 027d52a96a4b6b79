"""An agent that uses tools, through upstream's `--train.agent_func_path` interface.

A turn with calls runs them, and the answers open the next turn; a turn without one ends the episode and is judged. A
malformed call is answered, too, and its turn counts. An agent file subclasses `ToolAgent` and offers

    class AgentExecutor(ToolAgentExecutor):
        def __init__(self) -> None:
            super().__init__(MyAgent)

Invariants: upstream's executor appends token ids, so the engine sees, and the trainer trains, exactly what was
generated; what tools and users say is masked there. An instance is one episode and can be deep-copied.

In: a dataset's plain prompt and label. Out: replies, and a reward at the end. Source: trace.md 12.
"""

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from openrlhf.agents.chat import ChatFormat, Message
from openrlhf.agents.tool_calls import BadCall, ToolCall, parse
from openrlhf.agents.tools import Toolbox
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

Call = ToolCall | BadCall
_signature = inspect.signature(MultiTurnAgentExecutor.execute)


@dataclass
class Start:
    """How an episode begins: system and user messages, and the tools."""

    messages: list[Message]
    toolbox: Toolbox


@dataclass
class Outcome:
    """What a turn leads to: messages for the model, or the end with a reward and with numbers to log."""

    messages: list[Message] = field(default_factory=list)
    done: bool = False
    reward: float = 0.0
    logs: dict[str, float] = field(default_factory=dict)


class ToolAgent(AgentInstanceBase):
    """One episode. Subclasses say how it starts and how it is judged."""

    max_turns = 8
    log_names: tuple[str, ...] = ()  # of the numbers in `Outcome.logs`: 0 until an episode has reached its end

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self.toolbox = Toolbox([])
        self.turns = 0  # taken by the model

    @abstractmethod
    async def start(self, prompt: str, label: str) -> Start:
        """The episode of a dataset's row."""

    @abstractmethod
    async def finish(self, text: str) -> Outcome:
        """Judges the model's last turn: one without a call, or the last one that it had."""

    async def act(self, text: str, calls: Sequence[Call]) -> Outcome:
        """What a turn leads to."""
        if not calls:
            return await self.finish(text)
        answers = [await self.toolbox.run(call) for call in calls]
        if self.turns >= self.max_turns:
            return await self.finish(text)
        return Outcome([{"role": "tool", "content": answer} for answer in answers])

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Upstream's interface: the rendered chat."""
        start = await self.start(states["observation"], states["label"])
        self.toolbox = start.toolbox
        return {"observation": self.chat.opening(start.messages, self.toolbox.schemas)}

    async def step(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Upstream's interface: one turn of the model, and what it leads to."""
        self.turns += 1
        text, closed = self.chat.without_end(states["action_text"])
        outcome = await self.act(text, parse(text))
        logs = dict.fromkeys(self.log_names, 0.0) | outcome.logs | {"turns": float(self.turns)}
        return {
            "rewards": torch.tensor(float(outcome.reward)),
            "scores": float(outcome.reward),
            "environment_feedback": "" if outcome.done else self.chat.reply(outcome.messages, closed=closed),
            "done": outcome.done,
            "extra_logs": logs,
        }


class ToolAgentExecutor(MultiTurnAgentExecutor):
    """Runs episodes of one agent class; hands it the tokenizer's chat format."""

    def __init__(self, agent: type[ToolAgent]) -> None:
        super().__init__(agent)
        self._chat = ChatFormat()
        self.agent_instance_cls = partial(agent, self._chat)

    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """As upstream's."""
        self._chat.tokenizer = _signature.bind(self, *args, **kwargs).arguments["hf_tokenizer"]
        return await super().execute(*args, **kwargs)
