"""A toolbox answers any call with a bounded text."""

import asyncio
import copy
import json
import time
from typing import Any

import pytest

from openrlhf.agents.tool_calls import BadCall, ToolCall
from openrlhf.agents.tools import Tool, Toolbox


def add(a: int, b: int = 1, tags: list[str] | None = None) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
        tags: Not used.
    """
    return a + b


async def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"


def shout(n: int) -> str:
    """Says a lot.

    Args:
        n: How many characters.
    """
    return "x" * n


def fail(kind: str) -> str:
    """Fails.

    Args:
        kind: How.
    """
    raise {"value": ValueError("no good"), "exit": SystemError("gone")}[kind]


BOX = Toolbox([Tool(add), Tool(wait), Tool(shout), Tool(fail)], max_output_chars=100, timeout_s=0.2)


def run(name: str, arguments: dict[str, Any]) -> str:
    return asyncio.run(BOX.run(ToolCall(name, arguments)))


def test_the_schema_is_that_of_the_function() -> None:
    function = BOX.schemas[0]["function"]
    assert function["name"] == "add" and function["description"] == "Adds two numbers."
    assert function["parameters"]["required"] == ["a"]
    assert function["parameters"]["properties"]["b"] == {"type": "integer", "description": "The second."}
    json.dumps(BOX.schemas)


def test_plain_and_async_tools_answer() -> None:
    assert run("add", {"a": 3}) == "4"
    assert run("add", {"a": 3, "b": 4}) == "7"
    assert run("wait", {"seconds": 0.01}) == "waited"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("multiply", {}, "there is no tool 'multiply'; the tools are: add, wait, shout, fail"),
        ("x" * 10_000, {}, "there is no tool"),
        ("add", {}, "'a' is a required property"),
        ("add", {"a": "3"}, "a: '3' is not of type 'integer'"),
        ("add", {"a": 3, "c": 4}, "'c' was unexpected"),
        ("add", {"a": "3" * 10_000}, "wrong arguments for add"),
        ("fail", {"kind": "value"}, "ValueError: no good"),
        ("fail", {"kind": "exit"}, "SystemError: gone"),
        ("fail", {"kind": "other"}, "KeyError"),
        ("wait", {"seconds": 3600}, "took longer than 0.2 s"),
    ],
)
def test_a_failure_is_an_answer(name: str, arguments: dict[str, Any], said: str) -> None:
    began = time.monotonic()
    answer = run(name, arguments)
    assert answer.startswith("Error: ") and said in answer
    assert len(answer) < 200 and time.monotonic() - began < 2


def test_a_bad_call_is_answered_with_its_reason() -> None:
    assert asyncio.run(BOX.run(BadCall("no JSON"))) == "Error: no JSON"


def test_a_long_answer_is_cut_and_says_so() -> None:
    answer = run("shout", {"n": 10_000_000})
    assert answer == "x" * 100 + "\n[9999900 more characters]"


def test_a_cancelled_call_is_cancelled() -> None:
    async def cancel() -> None:
        task = asyncio.create_task(Toolbox([Tool(wait)]).run(ToolCall("wait", {"seconds": 60})))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_a_function_without_hints_is_refused() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(ValueError, match="bare.*type hint"):
        Tool(bare)


def test_a_schema_of_ones_own() -> None:
    schema = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {}}}}
    box = Toolbox([Tool(lambda: 5, schema=schema)])
    assert asyncio.run(box.run(ToolCall("sum"))) == "5"
    assert "unexpected" in asyncio.run(box.run(ToolCall("sum", {"a": 1})))


class Counter:
    """A tool with a state."""

    def __init__(self) -> None:
        self.n = 0
        self.box = Toolbox([Tool(self.count), Tool(add)])

    def count(self) -> int:
        """Counts its calls."""
        self.n += 1
        return self.n


def test_a_copied_toolbox_calls_the_copied_owner_s_method_and_shares_plain_functions() -> None:
    first = Counter()
    asyncio.run(first.box.run(ToolCall("count")))
    second = copy.deepcopy(first)
    assert [asyncio.run(second.box.run(ToolCall("count"))) for _ in range(2)] == ["2", "3"]
    assert (first.n, second.n) == (1, 3) and second.box.schemas == first.box.schemas
    assert second.box._tools["add"] is first.box._tools["add"]
