"""The calculator agent of examples/python, whose calculator takes its time: the `tool` setting of bench/step_time.py.

Every call waits for a Pareto time (shape SHAPE, smallest SMALLEST_S seconds, cut at LARGEST_S): most are short, a few
hold up their whole group. The waits of the n-th episode of a process follow from (BENCH_SEED, n) alone.
"""

import asyncio
import itertools
import os
import random
from typing import Any

from examples.python import agent_func_calculator as calculator
from openrlhf.utils.agent import MultiTurnAgentExecutor

SHAPE = 1.2
SMALLEST_S = 0.05
LARGEST_S = 30.0

_episodes = itertools.count()


def waits(seed: str, episode: int) -> random.Random:
    """The source of an episode's waits."""
    return random.Random(f"{seed}/{episode}")


def wait_s(source: random.Random) -> float:
    """Seconds that the next call takes."""
    return min(LARGEST_S, SMALLEST_S * source.paretovariate(SHAPE))


class AgentInstance(calculator.AgentInstance):
    """One episode with a slow calculator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waits = waits(os.environ.get("BENCH_SEED", "0"), next(_episodes))

    async def step(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        await asyncio.sleep(wait_s(self._waits))
        return await super().step(states, **kwargs)


class AgentExecutor(MultiTurnAgentExecutor):
    """What `--train.agent_func_path` loads from this file."""

    def __init__(self) -> None:
        super().__init__(AgentInstance)
