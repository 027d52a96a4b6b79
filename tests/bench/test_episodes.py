"""The counting of bench/episodes.py, on a named fake of an agent, and its report."""

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from bench.episodes import TASKS, math_episodes, measured, report


class FakeAgent:
    """Ends with its second turn; right for one label only."""

    def __init__(self, chat: Any) -> None:
        self.turns = 0

    async def reset(self, states: dict[str, Any]) -> dict[str, Any]:
        self.label = states["label"]
        return {"observation": states["observation"]}

    async def step(self, states: dict[str, Any]) -> dict[str, Any]:
        self.turns += 1
        await asyncio.sleep(0.01)
        reward = torch.tensor(float(self.label == "right"))
        return {"rewards": reward, "scores": reward, "done": self.turns == 2}


def test_episodes_of_all_kinds_are_counted_in_turn():
    episodes = [(FakeAgent, "?", label, ["one", "two", "three"]) for label in ("right", "wrong")]
    found = asyncio.run(measured(episodes, seconds=0.3, concurrent=4))
    assert found["turns"] == 2 and 0.3 < found["right"] < 0.7
    assert 20 < found["a second"] < 4 / 0.02 + 1


def test_the_report_names_what_was_left_out():
    cells = {"a second": 12.34, "turns": 2.0, "right": 1.0}
    result = {"arguments": {"concurrent": 4, "seconds": 3.0}, "cores": 2, "tasks": {"math": cells}}
    lines = report(result | {"left out": ["search: left out"]}).splitlines()
    assert "12.3" in lines[2] and lines[-1] == "search: left out" and set(TASKS) == {"math", "bfcl", "search"}


def test_a_scripted_answer_is_the_label():
    _, _, label, turns = math_episodes(Namespace(), Path())[0]
    assert turns[-1] == f"\\boxed{{{label}}}" and "tool_call" in turns[0]
