"""The calls in a model's turn: JSON objects with `name` and `arguments`, each inside `<tool_call></tool_call>`.

Invariant: any text gives an answer, in time linear in its length. What can't be read becomes a `BadCall` in its place,
whose reason the model is told; nothing is guessed. What stands before the last `</think>` is no call.

In: a turn's text. Out: its calls, in order. Source: trace.md 12 ("tool format").
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

MAX_CALLS = 16  # of one turn; what comes after is answered by one note
MAX_CHARS = 1 << 20  # of one call
_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FORM = '{"name": ..., "arguments": {...}}'


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call. Whether there is such a tool, and whether it takes these arguments, is another question."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadCall:
    """A call that can't be read, and why; written for the model."""

    reason: str


def parse(text: str) -> list[ToolCall | BadCall]:
    """The calls of a turn; empty for a turn without one."""
    blocks = _BLOCK.finditer(text.rpartition("</think>")[2])
    calls: list[ToolCall | BadCall] = []
    for number, block in enumerate(blocks):
        if number == MAX_CALLS:
            calls.append(BadCall(f"more than {MAX_CALLS} calls in one turn; the rest was ignored"))
            break
        calls.append(_read(block[1].strip(), closed=block[2] == "</tool_call>"))
    return calls


def _read(body: str, *, closed: bool) -> ToolCall | BadCall:
    """One call. A missing `</tool_call>` is forgiven when the JSON is whole."""
    if len(body) > MAX_CHARS:
        return BadCall(f"the call is longer than {MAX_CHARS} characters")
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        cut = "" if closed else "; </tool_call> is missing, too"
        return BadCall(f"this is not valid JSON ({error}){cut}; write {_FORM}")
    if not isinstance(read, dict) or not isinstance(read.get("name"), str):
        return BadCall(f"a call is a JSON object with a name; write {_FORM}")
    arguments = read.get("arguments", {})
    if isinstance(arguments, str):  # some models write the arguments' JSON into a string
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return BadCall(f"the arguments are not a JSON object; write {_FORM}")
    return ToolCall(read["name"], arguments)
