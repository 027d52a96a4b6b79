"""Reading calls out of a model's turn."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.agents.tool_calls import MAX_CALLS, MAX_CHARS, BadCall, ToolCall, parse


def block(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def test_calls_come_in_order_with_their_arguments() -> None:
    text = "First " + block('{"name": "a", "arguments": {"x": 1}}') + " then\n" + block(' {"name": "b"} ')
    assert parse(text) == [ToolCall("a", {"x": 1}), ToolCall("b", {})]


@pytest.mark.parametrize("text", ["", "The answer is 4.", "</tool_call>", '{"name": "a"}'])
def test_a_turn_without_a_call(text: str) -> None:
    assert parse(text) == []


def test_thoughts_are_no_calls() -> None:
    call = block('{"name": "a"}')
    assert parse(f"<think>perhaps {call}</think>{call}") == [ToolCall("a")]
    assert parse(f"<think>{call}</think> no") == []


def test_arguments_written_as_a_string() -> None:
    assert parse(block(json.dumps({"name": "a", "arguments": '{"x": 1}'}))) == [ToolCall("a", {"x": 1})]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not valid JSON"),
        ("{'name': 'a'}", "not valid JSON"),
        ('{"name": "a"', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('"a"', "with a name"),
        ('{"name": 3}', "with a name"),
        ('{"arguments": {}}', "with a name"),
        ('{"name": "a", "arguments": [1]}', "not a JSON object"),
        ('{"name": "a", "arguments": "{"}', "not a JSON object"),
        ('{"name": "a", "arguments": {"x": "' + "y" * MAX_CHARS + '"}}', "longer than"),
    ],
)
def test_a_call_that_cannot_be_read_says_why_and_leaves_the_others(body: str, reason: str) -> None:
    bad, good = parse(block(body) + block('{"name": "b"}'))
    assert isinstance(bad, BadCall) and reason in bad.reason and len(bad.reason) < 500
    assert good == ToolCall("b")


def test_a_missing_end_is_forgiven_when_the_json_is_whole() -> None:
    assert parse('<tool_call>{"name": "a"}') == [ToolCall("a")]
    assert parse('<tool_call>{"name": "a"}\n<tool_call>{"name": "b"}</tool_call>') == [ToolCall("a"), ToolCall("b")]
    (bad,) = parse('<tool_call>{"name": "a", "argum')
    assert isinstance(bad, BadCall) and "</tool_call> is missing" in bad.reason


def test_too_many_calls_end_with_one_note() -> None:
    calls = parse(block('{"name": "a"}') * 1000)
    assert calls[:MAX_CALLS] == [ToolCall("a")] * MAX_CALLS
    assert len(calls) == MAX_CALLS + 1 and isinstance(calls[-1], BadCall)


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "</think>", "{", "}", '"name"', ":", '"a"', "x"])))
def test_any_text_is_read(parts: list[str]) -> None:
    assert all(isinstance(call, ToolCall | BadCall) for call in parse("".join(parts)))


@given(st.text(max_size=40), st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=4))
def test_what_json_writes_is_read_back(name: str, arguments: dict[str, object]) -> None:
    body = json.dumps({"name": name, "arguments": arguments})
    if "tool_call>" not in body and "</think>" not in body:
        assert parse(block(body)) == [ToolCall(name, arguments)]
