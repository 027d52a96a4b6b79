"""Multi-turn function calling, for `--train.agent_func_path examples/python/agent_func_bfcl.py`.

The model fulfils the requests of BFCL v4's multi-turn tasks, one after the other, by calling functions of simulated
services: a file system, a car, a trading bot, a travel agency and others. The reward is 1 where the benchmark's own
checker accepts all results and the services' final state, else 0.

    BFCL_MAX_TURNS         turns of the model in all (default 40); who needs more gets 0
    BFCL_MAX_OUTPUT_CHARS  of one result that the model sees (default 32768); less for a short context

Data: `python -m examples.tasks.bfcl`; without `--data.apply_chat_template`. The tasks and the services are the package
bfcl-eval's. A prompt with its functions has 16,000 to 21,000 characters; a whole answer 18,000 to 24,000, and up to
84,000 in `multi_turn_long_context`, most of them results: --data.max_len must leave room for them.
"""

import os

from openrlhf.agents.function_calling import FunctionCallingAgent
from openrlhf.agents.tool_agent import Start, ToolAgentExecutor


def setting(name: str, default: int) -> int:
    """A number from the environment. Raises ValueError."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {text!r}")
    return int(text)


class BfclAgent(FunctionCallingAgent):
    """One task, with the settings from the environment."""

    async def start(self, prompt: str, label: str) -> Start:
        self.max_turns = setting("BFCL_MAX_TURNS", 40)
        self.max_output_chars = setting("BFCL_MAX_OUTPUT_CHARS", 32_768)
        return await super().start(prompt, label)


class AgentExecutor(ToolAgentExecutor):
    """What `--train.agent_func_path` loads from this file."""

    def __init__(self) -> None:
        super().__init__(BfclAgent)
