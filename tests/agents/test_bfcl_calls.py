"""What is refused, and expressions that are exactly the call."""

import ast
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("bfcl_eval")

from openrlhf.agents.bfcl_calls import MAX_CHARS, MAX_INTEGER, completed, expression, problem  # noqa: E402
from openrlhf.agents.bfcl_checker import passes  # noqa: E402
from openrlhf.agents.bfcl_data import Task, find, package  # noqa: E402
from openrlhf.agents.bfcl_world import World  # noqa: E402
from openrlhf.agents.tool_calls import ToolCall  # noqa: E402

from .bfcl_answers import every_task  # noqa: E402

FILES = find("multi_turn_base_0")
MATHS = find("multi_turn_base_49")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def function(task: Task, name: str) -> dict[str, Any]:
    return task.functions[name]["function"]


@given(st.dictionaries(st.sampled_from(["content", "file_name", "a"]), JSON))
def test_an_expression_has_the_call_s_values_and_no_parenthesis_but_its_own(arguments: dict[str, Any]) -> None:
    text = expression("echo", arguments)
    read: Any = ast.parse(text, mode="eval").body
    assert read.func.id == "echo" and not read.args
    assert {one.arg: ast.literal_eval(one.value) for one in read.keywords} == arguments
    assert text.count("(") == 1


@given(JSON)
def test_the_checker_sees_the_value_that_the_trajectory_saw(value: Any) -> None:
    """The package's own evaluation of an expression leaves the same in a file, whatever is written there."""
    if problem(function(FILES, "echo"), {"content": value, "file_name": "x"}):
        return
    world = World(FILES)
    world.begin_round()
    calls = [ToolCall("touch", {"file_name": "x"}), ToolCall("echo", {"content": value, "file_name": "x"})]
    results = [world.run(call) for call in calls]
    utils = package("eval_checker.multi_turn_eval.multi_turn_utils")
    theirs, instances = utils.execute_multi_turn_func_call(
        world.calls[0][0], FILES.entry["initial_config"], FILES.classes, "seen", FILES.id
    )
    for kind in FILES.classes:
        del vars(utils)[f"seen_{FILES.id}_{kind}_instance"]
    assert results == theirs
    assert instances["GorillaFileSystem"] == world.backends["GorillaFileSystem"]


@pytest.mark.parametrize(
    "text", ["ls(a=True)", "__import__('os').system('x')", "cat (", "\\(", "'); exit(", "\ud800", "\x00\n", '"""']
)
def test_code_in_a_text_stays_text(text: str) -> None:
    world = World(FILES)
    world.begin_round()
    assert json.loads(world.run(ToolCall("echo", {"content": text}))) == {"terminal_output": text}
    assert not passes(FILES, [world.calls[0], *[[] for _ in FILES.answer[1:]]])
    assert ast.literal_eval(world.calls[0][0][0].removeprefix("echo(content=").removesuffix(")")) == text


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("task", "name", "arguments", "reason"),
    [
        (FILES, "cat", {}, "needs file_name"),
        (FILES, "cat", {"file_name": "a", "x); ls(": 1}, "has no parameter 'x); ls('"),
        (FILES, "cat", {"file_name": "a", "self": 1}, "has no parameter 'self'"),
        (FILES, "pwd", {"x": 1}, "it has: none"),
        (FILES, "echo", {"content": "x" * (1 << 20)}, f"more than {MAX_CHARS} characters"),
        (FILES, "echo", {"content": nested(7)}, "nested more than"),
        (FILES, "echo", {"content": nested(900)}, "nested more than"),
        (FILES, "echo", {"content": [{"a": float("nan")}]}, "must be finite"),
        (FILES, "tail", {"file_name": "a", "lines": MAX_INTEGER + 1}, "integers must be at most"),
        (MATHS, "logarithm", {"value": "1e99999999", "base": 10, "precision": 5}, "value: must be a number"),
        (MATHS, "logarithm", {"value": 2, "base": 10, "precision": 10**9}, "precision: must be at most"),
        (MATHS, "logarithm", {"value": 2, "base": 10, "precision": "99999"}, "precision: must be a number"),
        (MATHS, "square_root", {"number": 2, "precision": 10**9}, "precision: must be at most"),
        (MATHS, "round_number", {"number": 5, "decimal_places": -(10**9)}, "decimal_places: must be at most"),
        (MATHS, "power", {"base": 9, "exponent": 10**9}, "exponent: must be at most"),
        (MATHS, "add", {"a": True, "b": 1}, "a: must be a number"),
        (MATHS, "add", {"a": float("inf"), "b": 1}, "must be finite"),
        (MATHS, "mean", {"numbers": [1, 10**5000]}, "integers must be at most"),
    ],
)
def test_what_is_refused(task: Task, name: str, arguments: dict[str, Any], reason: str) -> None:
    told = problem(function(task, name), arguments)
    assert told is not None and reason in told and len(told) < 400


def test_the_largest_that_is_allowed_is_quick() -> None:
    world, start = World(MATHS), time.perf_counter()
    world.begin_round()
    for name, arguments in [
        ("power", {"base": MAX_INTEGER, "exponent": 1000}),
        ("power", {"base": 1e300, "exponent": 1000.0}),
        ("logarithm", {"value": 3, "base": 7, "precision": 1000}),
        ("square_root", {"number": 1e300, "precision": 1000}),
        ("round_number", {"number": MAX_INTEGER, "decimal_places": -1000}),
    ]:
        world.run(ToolCall(name, arguments))
    assert world.n_refused == 0 and time.perf_counter() - start < 1.0


def test_every_argument_of_the_answers_is_allowed() -> None:
    for task in every_task(step=10):
        for call in (call for turn in task.answer for call in turn):
            read: Any = ast.parse(call, mode="eval").body
            arguments = {one.arg: ast.literal_eval(one.value) for one in read.keywords}
            if not read.args:
                assert problem(function(task, read.func.id), arguments) is None, call


def test_lists_that_are_left_out_are_new_ones() -> None:
    post = function(FILES, "post_tweet")
    first, second = (completed(post, {"content": "a", "tags": ["#b"]}) for _ in range(2))
    assert first == second == {"content": "a", "tags": ["#b"], "mentions": []}
    first["mentions"].append("@c")
    assert second["mentions"] == [] == completed(post, {"content": "a"})["mentions"]
