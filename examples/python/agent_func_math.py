"""Mathematics with a Python tool, for `--train.agent_func_path examples/python/agent_func_math.py`.

The model may run programs, and gives its answer in \\boxed{}. The reward is 1 where math-verify says that the answer
equals the label, else 0. Programs run in a sandbox, each one afresh, so an episode has no state but its text.

    MATH_MAX_TURNS          turns of the model (default 8)
    MATH_TOOL_TIMEOUT_S     seconds of a program (default 12)
    MATH_TOOL_MEMORY_MIB    memory of each of a program's processes (default 512)
    MATH_TOOL_PACKAGES      what programs may import besides the standard library, as sympy,mpmath,numpy (default none)
    MATH_ALLOW_UNSANDBOXED  1: where there can be no sandbox, run programs without one; they can do what you can

Data: `python -m examples.tasks.math`, or any set with questions and answers; without `--data.apply_chat_template`.
"""

import asyncio
import os
from functools import cache

from examples.python.reward_func_math import is_correct
from openrlhf.agents.sandbox import Sandbox
from openrlhf.agents.settings import whole_number
from openrlhf.agents.tool_agent import Outcome, Start, ToolAgent, ToolAgentExecutor
from openrlhf.agents.tools import Tool, Toolbox

SYSTEM = (
    "Solve the problem. You may run Python programs with the tool `python`; print what you want to see. "
    "When you are sure, answer without calling a tool, and put the final answer in \\boxed{}."
)


def packages() -> list[str]:
    """The modules named in the environment, in that order."""
    return [name.strip() for name in os.environ.get("MATH_TOOL_PACKAGES", "").split(",") if name.strip()]


@cache
def sandbox() -> Sandbox:
    """One for all episodes of this process."""
    return Sandbox(
        timeout_s=whole_number("MATH_TOOL_TIMEOUT_S", 12),
        memory_mib=whole_number("MATH_TOOL_MEMORY_MIB", 512),
        packages=packages(),
        allow_unsandboxed=os.environ.get("MATH_ALLOW_UNSANDBOXED") == "1",
    )


async def python(code: str) -> str:
    """Runs a Python program and returns what it prints.

    Args:
        code: The program. Every call starts afresh.
    """
    return (await sandbox().run(code)).text


def python_tool() -> Tool:
    """`python`, whose description says what a program may import."""
    tool = Tool(python)
    there = ", ".join(["the standard library", *packages()])
    tool.schema["function"]["description"] += f" It may import: {there}."
    return tool


class MathAgent(ToolAgent):
    """One problem."""

    log_names = ("correct", "boxed")
    label = ""

    async def start(self, prompt: str, label: str) -> Start:
        await sandbox().ready()  # a run without one ends here, not with errors that the model reads
        self.label, self.max_turns = label, whole_number("MATH_MAX_TURNS", 8)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
        # The sandbox keeps the time itself; a program may have to wait until others have ended.
        return Start(messages, Toolbox([python_tool()], timeout_s=600.0))

    async def finish(self, text: str) -> Outcome:
        boxed = "\\boxed" in text
        correct = float(boxed and await asyncio.to_thread(is_correct, text, self.label))
        return Outcome(done=True, reward=correct, logs={"correct": correct, "boxed": float(boxed)})


class AgentExecutor(ToolAgentExecutor):
    """What `--train.agent_func_path` loads from this file."""

    def __init__(self) -> None:
        super().__init__(MathAgent)
