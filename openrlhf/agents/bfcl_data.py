"""The multi-turn tasks of BFCL v4, read from the package bfcl-eval: requests, functions, answers.

Four subsets of 200 tasks. The same number in every subset is the same scenario: as it is, with a long context, with
functions that are offered late, with parameters that the user tells late.

Invariant: everything comes from the package and is read once per process, when first needed; a `Task` is never changed
and its copies are itself. Only the package's data, its checker and its back ends are imported: they need nothing but
mpmath, while its model handlers would need dozens of vendors' packages.

In: a task's id. Out: its `Task`. Source: trace.md 12 ("Function Calling").
"""

import ast
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from openrlhf.agents.tools import Schema

PACKAGE = "bfcl-eval==2026.3.23"
SUBSETS = ("multi_turn_base", "multi_turn_long_context", "multi_turn_miss_func", "multi_turn_miss_param")
# The docs' own words for types, and JSON schema's.
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class MissingPackage(ImportError):
    """The benchmark's package can't be imported; the message says how to install it."""


def package(module: str) -> Any:
    """A module of the benchmark's package. Raises MissingPackage."""
    try:
        return importlib.import_module(f"bfcl_eval.{module}" if module else "bfcl_eval")
    except ImportError as error:
        hint = f"pip install --no-deps '{PACKAGE}' mpmath"
        raise MissingPackage(f"function calling needs the benchmark's package ({error}); {hint}") from error


@dataclass(frozen=True, eq=False)
class Task:
    """One task: what the user says, turn by turn, which functions there are, and what the checker needs.

    `entry` and `answer` are the package's own records.
    """

    entry: dict[str, Any]
    answer: list[list[str]]  # calls as Python expressions, for every user turn

    def __deepcopy__(self, memo: dict[int, Any]) -> "Task":
        return self

    @property
    def id(self) -> str:
        """As the package names it: `multi_turn_base_17`."""
        return str(self.entry["id"])

    @property
    def subset(self) -> str:
        """One of SUBSETS."""
        return self.id.rpartition("_")[0]

    @property
    def long_context(self) -> bool:
        """Whether the back ends are filled up with things that don't matter."""
        return self.subset == "multi_turn_long_context"

    @property
    def classes(self) -> list[str]:
        """The back ends that the task uses."""
        return list(self.entry["involved_classes"])

    @property
    def n_turns(self) -> int:
        """How often the user speaks."""
        return len(self.entry["question"])

    @cached_property
    def functions(self) -> dict[str, Schema]:
        """Every function of the task by name, in OpenAI's form, whether it is offered at once or later."""
        return {schema["function"]["name"]: schema for kind in self.classes for schema in _schemas(kind)}

    @cached_property
    def late(self) -> dict[str, int]:
        """The functions held out at first, and the user turn that brings each.

        One task's answer uses a function before its time; it is offered from the start, or nobody could solve that.
        """
        held = {name: int(turn) for turn, names in self.entry.get("missed_function", {}).items() for name in names}
        return {name: turn for name, turn in held.items() if name not in self._answered_before(turn)}

    def _answered_before(self, turn: int) -> set[str]:
        return {ast.parse(call, mode="eval").body.func.id for calls in self.answer[:turn] for call in calls}  # type: ignore[attr-defined]

    def offered(self, turn: int) -> list[Schema]:
        """The functions that may be called in a user turn, counted from 0."""
        return [schema for name, schema in self.functions.items() if self.late.get(name, 0) <= turn]

    def message(self, turn: int) -> str:
        """What the user says in a turn; new functions are listed there, in the package's words."""
        said = "\n".join(message["content"] for message in self.entry["question"][turn])
        added = self.entry.get("missed_function", {}).get(str(turn), [])
        if not added:
            return said
        words = package("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
        told = words.format(functions="\n".join(json.dumps(self.functions[name]) for name in added))
        return f"{said}\n{told}" if said else str(told)


def find(task_id: str) -> Task:
    """A task by its id. Raises ValueError for one that there isn't, and MissingPackage."""
    subset = task_id.rpartition("_")[0]
    if subset in SUBSETS and task_id in tasks(subset):
        return tasks(subset)[task_id]
    raise ValueError(
        f"there is no task {task_id[:100]!r} in {PACKAGE}; labels hold ids like multi_turn_base_17, "
        "write them with python -m examples.tasks.bfcl"
    )


@cache
def tasks(subset: str) -> dict[str, Task]:
    """A subset's tasks by id, in the package's order. Raises MissingPackage."""
    file = f"BFCL_v4_{subset}.json"
    answers = {answer["id"]: answer["ground_truth"] for answer in _records("possible_answer", file)}
    return {entry["id"]: Task(entry, answers[entry["id"]]) for entry in _records(file)}


@cache
def _schemas(kind: str) -> list[Schema]:
    """The functions of one back end."""
    config = package("constants.executable_backend_config")
    docs = _records("multi_turn_func_doc", config.MULTI_TURN_FUNC_DOC_FILE_MAPPING[kind])
    return [{"type": "function", "function": _function(doc)} for doc in docs]


def _function(doc: dict[str, Any]) -> dict[str, Any]:
    return {key: _json_schema(doc[key]) for key in ("name", "description", "parameters")}


def _json_schema(part: Any) -> Any:
    """The same with JSON schema's names of the types."""
    if isinstance(part, list):
        return [_json_schema(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _TYPES.get(value, value) if key == "type" and isinstance(value, str) else _json_schema(value)
        for key, value in part.items()
    }


def _records(*path: str) -> Iterator[dict[str, Any]]:
    file = Path(package("").__file__).parent.joinpath("data", *path)
    yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())
