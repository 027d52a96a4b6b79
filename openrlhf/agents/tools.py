"""Tools for a model: typed Python functions whose JSON schema goes into the chat template.

    def search(query: str, k: int = 3) -> str:
        '''Finds passages.

        Args:
            query: What to look for.
            k: How many passages.
        '''

    toolbox = Toolbox([Tool(search)])

Invariant: `Toolbox.run` answers every call with a text of bounded length, whatever the call, the tool or the tool's
output is like; only cancelling it raises. The schema comes from transformers (`get_json_schema`), the check of the
arguments from jsonschema.
"""

import asyncio
import copy
import inspect
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

import jsonschema
from transformers.utils import get_json_schema

from openrlhf.agents.tool_calls import BadCall, ToolCall

logger = logging.getLogger(__name__)
Schema = dict[str, Any]


class Tool:
    """One function, plain or async, with its schema in OpenAI's form: `{"type": "function", "function": {...}}`.

    `schema` overrides what the function's type hints and docstring say. Raises ValueError for a function without them.
    """

    def __init__(self, function: Callable[..., Any], *, schema: Schema | None = None) -> None:
        try:
            self.schema: Schema = schema or get_json_schema(function)
        except Exception as error:
            hint = "give every argument a type hint and a line under 'Args:' in the docstring"
            raise ValueError(f"no schema for the tool {function.__name__}: {error}; {hint}") from error
        self.schema["function"].pop("return", None)
        self.function = function
        self._validator = jsonschema.Draft202012Validator({"additionalProperties": False, **self._parameters})

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tool":
        """Itself, as it never changes; but a function with a state, such as a method, is copied with it."""
        if inspect.isfunction(self.function):
            return self
        return Tool(copy.deepcopy(self.function, memo), schema=self.schema)

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])

    @property
    def _parameters(self) -> Schema:
        return dict(self.schema["function"].get("parameters") or {"type": "object", "properties": {}})

    def problem(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with these arguments, or None."""
        error = jsonschema.exceptions.best_match(self._validator.iter_errors(arguments))
        if error is None:
            return None
        where = "".join(f"{part}: " for part in error.absolute_path)
        return f"{where}{error.message[:300]}"


class Toolbox:
    """The tools that a model may call.

    `max_output_chars` bounds each answer, `timeout_s` each call. A plain function runs in a thread, which goes on
    after its time is over: a tool that may hang has to be async, or to bound itself.
    """

    def __init__(self, tools: Iterable[Tool], *, max_output_chars: int = 4096, timeout_s: float = 30.0) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._max_output_chars, self._timeout_s = max_output_chars, timeout_s

    @property
    def schemas(self) -> list[Schema]:
        """For the chat template's `tools`, in the order given."""
        return [tool.schema for tool in self._tools.values()]

    async def run(self, call: ToolCall | BadCall) -> str:
        """The answer to one call, for the model; a failure is an answer that begins with "Error:"."""
        if isinstance(call, BadCall):
            return self._cut(f"Error: {call.reason}")
        tool = self._tools.get(call.name)
        if tool is None:
            return self._cut(f"Error: there is no tool {call.name[:100]!r}; the tools are: {', '.join(self._tools)}")
        try:
            if problem := tool.problem(call.arguments):
                return self._cut(f"Error: wrong arguments for {tool.name}: {problem}")
            answer = await asyncio.wait_for(_call(tool.function, call.arguments), self._timeout_s)
            return self._cut(answer if isinstance(answer, str) else json.dumps(answer, default=str))
        except TimeoutError:
            return f"Error: {tool.name} took longer than {self._timeout_s:g} s"
        except Exception as error:  # the model's mistake or the tool's: the model reads it, the run goes on
            logger.debug("tool %s failed", tool.name, exc_info=True)
            return self._cut(f"Error: {type(error).__name__}: {error}")

    def _cut(self, text: str) -> str:
        if len(text) <= self._max_output_chars:
            return text
        return f"{text[: self._max_output_chars]}\n[{len(text) - self._max_output_chars} more characters]"


async def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return await asyncio.to_thread(function, **arguments)
