"""A task in progress: the benchmark's back ends, what was called so far, and whose turn it is.

Invariants: a model's text reaches a back end only as a parsed call of a function that is offered at that moment.
Trajectories share nothing, and a copy of a world goes on as the world itself does.

In: calls. Out: their results, as the benchmark words them. Source: trace.md 12.
"""

import copy
import importlib
import json
from typing import Any

from openrlhf.agents.bfcl_calls import completed, expression, problem
from openrlhf.agents.bfcl_data import Task, package
from openrlhf.agents.tool_calls import ToolCall
from openrlhf.agents.tools import Schema

# Of the simulated file system. Copies of a folder share what is inside, so a few calls can build a tree that takes
# forever to walk. The tasks' own have 127 and 5 at most.
MAX_FILES = 2000
MAX_FOLDERS_DEEP = 40


def backends(task: Task) -> dict[str, Any]:
    """New instances of the task's classes in its initial state, by class name.

    They are copied once more when loaded: in a long context they hold objects of the package's that all instances
    would share.
    """
    config = package("constants.executable_backend_config")
    made = {}
    for name in task.classes:
        instance = getattr(importlib.import_module(config.CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in config.STATELESS_CLASSES:
            scenario = copy.deepcopy(task.entry["initial_config"].get(name, {}))
            instance._load_scenario(scenario, long_context=task.long_context)
        made[name] = copy.deepcopy(instance)
    return made


class World:
    """One trajectory through a task. Can be deep-copied."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.turn = 0  # of the user
        self.backends = backends(task)
        self.calls: list[list[list[str]]] = [[]]  # what was run, as expressions: user turn, round, call
        self.n_refused = 0

    @property
    def schemas(self) -> list[Schema]:
        """The functions that may be called now."""
        return self.task.offered(self.turn)

    @property
    def is_broken(self) -> bool:
        """Whether the file system has become too large to go on with."""
        files = self.backends.get("GorillaFileSystem")
        return files is not None and _size(files.root, MAX_FILES, MAX_FOLDERS_DEEP) > MAX_FILES

    def next_turn(self) -> str | None:
        """Ends the user's turn; what the user says next, or None after the last one."""
        if self.turn + 1 == self.task.n_turns:
            return None
        self.turn += 1
        self.calls.append([])
        return self.task.message(self.turn)

    def begin_round(self) -> None:
        """What is called from now on belongs to a new turn of the model."""
        self.calls[-1].append([])

    def run(self, call: ToolCall) -> str:
        """The result of a call, or why it was refused. A refused call does not count for the checker."""
        offered = {schema["function"]["name"]: schema["function"] for schema in self.schemas}
        if call.name not in offered:
            return self.refuse(f"there is no function {call.name[:100]!r}; the functions are: {', '.join(offered)}")
        if wrong := problem(offered[call.name], call.arguments):
            return self.refuse(wrong)
        arguments = completed(offered[call.name], call.arguments)
        self.calls[-1][-1].append(expression(call.name, arguments))
        return self._result(call.name, arguments)

    def refuse(self, reason: str) -> str:
        """What the model is told about a call that was not run."""
        self.n_refused += 1
        return f"Error: {reason}"

    def _result(self, name: str, arguments: dict[str, Any]) -> str:
        backend = next(instance for instance in self.backends.values() if hasattr(type(instance), name))
        try:
            result = getattr(backend, name)(**arguments)
            return result if isinstance(result, str) else _text(result)
        except Exception as error:  # whatever a back end makes of the model's values, the model reads it
            return f"Error during execution: {error}"


def _text(result: Any) -> str:
    """As the package shows a result to a model and to its checker."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except Exception:  # the package shows Python's form of what JSON can't hold: decimals, complex numbers
            return str(result)
    return str(result)


def _size(folder: Any, most: int, depth: int) -> int:
    """How many files and folders there are; not counted on when there are too many, or too deep."""
    count = 1
    for item in folder.contents.values():
        if count > most or not depth:
            return most + 1
        count += _size(item, most - count, depth - 1) if hasattr(item, "contents") else 1
    return count
