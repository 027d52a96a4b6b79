"""Episodes of an agent class with a scripted policy, without an engine."""

import asyncio
import copy
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from openrlhf.agents.chat import ChatFormat
from openrlhf.agents.tool_agent import ToolAgent
from openrlhf.trainer.tree.branching import RecordedAgent

TURN_END = "<|im_end|>"


class FakeTokenizer:
    """Renders chats as ChatML."""

    chat_template = "chatml"
    all_special_tokens = ["<|im_start|>", TURN_END]

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], *, tools: Any, add_generation_prompt: bool, **_: Any
    ) -> str:
        text = f"<|im_start|>system\n{json.dumps(tools)}{TURN_END}\n" if tools else ""
        text += "".join(f"<|im_start|>{m['role']}\n{m['content']}{TURN_END}\n" for m in messages)
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")


CHAT = ChatFormat(FakeTokenizer())


def call(name: str, **arguments: Any) -> str:
    """A turn's text with one call."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def play(agent: Any, prompt: str, label: str, turns: Sequence[str]) -> list[dict[str, Any]]:
    """The replies to a reset and to these turns, up to the end of the episode."""
    replies = [await agent.reset({"observation": prompt, "label": label})]
    for turn in turns:
        replies.append(await agent.step({"action_text": turn + TURN_END}))
        if replies[-1]["done"]:
            break
    return replies


def episode(kind: type[ToolAgent], prompt: str, label: str, *turns: str) -> list[dict[str, Any]]:
    """As `play`, of a new instance."""
    return asyncio.run(play(kind(CHAT), prompt, label, turns))


def check_branching(kind: type[ToolAgent], prompt: str, label: str, turns: Sequence[str]) -> None:
    """After every turn: a copy, and a recorded episode that goes on, reply as the episode itself does."""
    asyncio.run(_check_branching(kind, prompt, label, turns))


async def _check_branching(kind: type[ToolAgent], prompt: str, label: str, turns: Sequence[str]) -> None:
    make = partial(kind, CHAT)
    recorded = RecordedAgent(make)
    wanted = await play(recorded, prompt, label, turns)
    for at in range(1, len(wanted)):
        branch = RecordedAgent(make, given=recorded.played[:at])
        assert shown(await play(branch, prompt, label, turns)) == shown(wanted)
        agent = make()
        await play(agent, prompt, label, turns[: at - 1])
        copied = copy.deepcopy(agent)
        rest = [
            [await one.step({"action_text": t + TURN_END}) for t in turns[at - 1 : len(wanted) - 1]]
            for one in (copied, agent)
        ]
        assert shown(rest[0]) == shown(rest[1]) == shown(wanted[at:])


def shown(replies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replies that can be compared: a reward is a tensor."""
    return [reply | {"rewards": float(reply["rewards"])} if "rewards" in reply else reply for reply in replies]
