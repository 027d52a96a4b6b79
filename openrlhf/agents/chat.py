"""What a chat template writes around the model's turns.

Invariants: text the model generated is never rendered again, so its token ids stay what the engine produced; only what
stands between two of its turns is rendered, by putting a marker in the turn's place. A model without a template for
tools, or for tool messages, gets them in plain words instead.

In: messages and tools. Out: text. Source: design.
"""

import json
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]  # a schema in OpenAI's form
_MARKER = "\u2053answer\u2053"  # no template changes or holds it
_QUESTION: Message = {"role": "user", "content": "?"}
_TOOLS = """\
You may call these tools:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments: \
<tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>"""


class ChatFormat:
    """The template of one tokenizer, which may come later than the format itself (`tokenizer`)."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer

    def __deepcopy__(self, memo: dict[int, Any]) -> "ChatFormat":
        return self  # episodes are copied when they branch; their format is one and the same

    @property
    def turn_end(self) -> str:
        """What closes a turn of the model, without the white space behind it."""
        return self._behind([]).strip()

    def opening(self, messages: list[Message], tools: list[Tool]) -> str:
        """The prompt of an episode's first turn."""
        markers = self._special_tokens()
        if any(marker in message["content"] for message in messages for marker in markers):
            raise ValueError(
                "the prompt is already in the chat template's form; leave out --data.apply_chat_template: an agent "
                "with tools renders its own chat"
            )
        text = self._render(messages, tools=tools)
        if all(tool["function"]["name"] in text for tool in tools):
            return text
        said = {"role": "system", "content": _TOOLS.format(tools="\n".join(map(json.dumps, tools)))}
        return self._render(_merged([said, *messages]))

    def reply(self, messages: list[Message], *, closed: bool) -> str:
        """What stands between a turn of the model and its next one. `closed`: the turn ended by itself."""
        end = self.turn_end
        try:
            text = self._behind(messages)
            told = all(message["content"] in text for message in messages)
        except Exception:  # templates raise for roles and orders that they don't know
            told = False
        if not told:
            text = self._behind([_as_user(messages)])
        return text[text.index(end) + len(end) :] if closed else text

    def without_end(self, text: str) -> tuple[str, bool]:
        """A turn's text without what closes it, and whether it was closed."""
        end, text = self.turn_end, text.rstrip()
        return (text.removesuffix(end), True) if end and text.endswith(end) else (text, False)

    def _behind(self, messages: list[Message]) -> str:
        answer = {"role": "assistant", "content": _MARKER}
        text = self._render([_QUESTION, answer, *messages], opened=bool(messages))
        return text[text.index(_MARKER) + len(_MARKER) :]

    def _render(self, messages: list[Message], *, tools: list[Tool] | None = None, opened: bool = True) -> str:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError("the model's tokenizer has no chat template; use an instruction-tuned model")
        return str(
            self.tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=opened
            )
        )

    def _special_tokens(self) -> list[str]:
        return [token for token in self.tokenizer.all_special_tokens if len(token) > 3]


def _as_user(messages: list[Message]) -> Message:
    """The same as one message of the user."""
    parts = [
        f"<tool_response>\n{message['content']}\n</tool_response>" if message["role"] == "tool" else message["content"]
        for message in messages
    ]
    return {"role": "user", "content": "\n".join(parts)}


def _merged(messages: list[Message]) -> list[Message]:
    """Two system messages in front as one: most templates take one at most."""
    first, *rest = messages
    if rest and rest[0]["role"] == "system":
        return [{"role": "system", "content": f"{rest[0]['content']}\n\n{first['content']}"}, *rest[1:]]
    return messages
