"""Which calls of a model are safe to run, and how one is written down for the benchmark's checker.

The checker runs calls again from Python expressions, with `eval`. So an expression is never the model's text: it is
built here from a function's known name, known parameter names, and literals.

Invariants: reading an expression gives exactly the call's values; a call that passes `problem` is run in bounded time
and memory. Beyond that nothing is refused: a wrong type is the function's to complain about, as in the benchmark.

In: a function's schema and parsed arguments. Out: what is wrong with them, or an expression. Source: design.
"""

import copy
import json
import math
from collections.abc import Mapping
from typing import Any

MAX_CHARS = 10_000  # of a call's arguments as JSON; the answers' largest has 300
MAX_DEPTH = 6
MAX_INTEGER = 10**18
# Steps of a computation, not values: a large one runs for hours.
STEPS = {"precision": 1000, "decimal_places": 1000, "exponent": 1000}

Function = Mapping[str, Any]  # the part `function` of a schema


def problem(function: Function, arguments: Mapping[str, Any]) -> str | None:
    """Why a call must not be run, in words for the model, or None."""
    parameters = function["parameters"]
    known, required = parameters["properties"], parameters.get("required", [])
    if unknown := [name for name in arguments if name not in known]:
        return f"{function['name']} has no parameter {unknown[0][:100]!r}; it has: {', '.join(known) or 'none'}"
    if missing := [name for name in required if name not in arguments]:
        return f"{function['name']} needs {', '.join(missing)}, too"
    for name, value in arguments.items():
        wrong = _wrong_number(name, value) if known[name].get("type") == "number" or name in STEPS else _unfit(value)
        if wrong:
            return f"{name}: {wrong}"
    if len(json.dumps(arguments)) > MAX_CHARS:
        return f"the arguments have more than {MAX_CHARS} characters"
    return None


def _wrong_number(name: str, value: Any) -> str | None:
    """Texts are refused where a number is wanted: some functions read "1e99999999" digit by digit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if name in STEPS and abs(value) > STEPS[name]:
        return f"must be at most {STEPS[name]}"
    return _unfit(value)


def _unfit(value: Any, depth: int = 0) -> str | None:
    if depth > MAX_DEPTH:
        return f"nested more than {MAX_DEPTH} deep"
    if isinstance(value, float) and not math.isfinite(value):
        return "numbers must be finite"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return f"integers must be at most {MAX_INTEGER}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((wrong for part in inner if (wrong := _unfit(part, depth + 1))), None)


def completed(function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the lists that are left out.

    Otherwise Python would use the function's own default, one list for all calls of the process: what a trajectory
    appends to it would show up in all others.
    """
    lists = {
        name: copy.deepcopy(parameter["default"])
        for name, parameter in function["parameters"]["properties"].items()
        if isinstance(parameter.get("default"), list)
    }
    return lists | dict(arguments)


def expression(name: str, arguments: Mapping[str, Any]) -> str:
    """The call as a Python expression. The names must be known ones.

    Before it evaluates, the checker puts an instance in front of every function's name that a parenthesis follows,
    within texts as well. So there is no parenthesis in a literal.
    """
    values = (f"{key}={repr(value).replace('(', chr(92) + 'x28')}" for key, value in arguments.items())
    return f"{name}({', '.join(values)})"
