"""The benchmark's own answers as turns of a model."""

import ast
import inspect
import json
from collections.abc import Iterator
from typing import Any

from openrlhf.agents.bfcl_data import SUBSETS, Task, tasks
from openrlhf.agents.bfcl_world import backends
from openrlhf.agents.tool_calls import MAX_CALLS

DONE = "That is done."
Call = dict[str, Any]


def every_task(*, step: int = 1) -> Iterator[Task]:
    """The tasks of all subsets, or every so many."""
    for subset in SUBSETS:
        yield from list(tasks(subset).values())[::step]


def label(task: Task) -> str:
    return json.dumps({"id": task.id})


def answer(task: Task) -> list[list[Call]]:
    """The calls that the benchmark wants, user turn by user turn; positional arguments get their names."""
    instances = backends(task).values()
    methods = {name: getattr(one, name) for one in instances for name in dir(one) if name in task.functions}
    return [[_call(text, methods) for text in turn] for turn in task.answer]


def _call(text: str, methods: dict[str, Any]) -> Call:
    read: Any = ast.parse(text, mode="eval").body
    names = inspect.signature(methods[read.func.id]).parameters
    given = [*zip(names, read.args, strict=False), *((one.arg, one.value) for one in read.keywords)]
    return {"name": read.func.id, "arguments": {name: ast.literal_eval(value) for name, value in given}}


def without_last(calls: list[list[Call]]) -> list[list[Call]]:
    """The same without the very last call."""
    last = max(number for number, turn in enumerate(calls) if turn)
    return [turn[:-1] if number == last else turn for number, turn in enumerate(calls)]


def spoken(calls: list[list[Call]], *, per_turn: int = MAX_CALLS) -> list[str]:
    """The model's turns: the calls, so many in one, and an answer that ends each of the user's turns."""
    turns = []
    for turn in calls:
        parts = [turn[at : at + per_turn] for at in range(0, len(turn), per_turn)]
        turns += ["\n".join(f"<tool_call>{json.dumps(one)}</tool_call>" for one in part) for part in parts]
        turns.append(DONE)
    return turns
