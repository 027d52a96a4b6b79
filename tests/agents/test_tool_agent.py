"""Episodes with tools: the chat around the turns, and token ids that are the engine's own."""

import asyncio
import copy
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from openrlhf.agents.chat import ChatFormat
from openrlhf.agents.tool_agent import Outcome, Start, ToolAgent, ToolAgentExecutor
from openrlhf.agents.tools import Tool, Toolbox

CHATML = """\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
NO_TOOLS = CHATML.replace("if tools", "if false")
STRICT = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
TEMPLATES = {"chatml": CHATML, "no tools": NO_TOOLS, "strict": STRICT + NO_TOOLS}


def tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Single characters, and pairs that merge whenever both are encoded together: `ab`, and a line's end and `a`."""
    characters = [chr(code) for code in range(32, 127)] + ["\n", "ab", "\na"]
    bpe = models.BPE(vocab={c: i for i, c in enumerate(characters)}, merges=[("a", "b"), ("\n", "a")])
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(bpe))
    fast.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = template
    return fast


def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: The number.
    """
    return 2 * n


class Doubling(ToolAgent):
    """Reward 1 for a last turn that ends with the label."""

    max_turns = 3
    log_names = ("right",)

    async def start(self, prompt: str, label: str) -> Start:
        self.label = label
        return Start([{"role": "user", "content": prompt}], Toolbox([Tool(double)]))

    async def finish(self, text: str) -> Outcome:
        right = float(text.endswith(self.label))
        return Outcome(done=True, reward=right, logs={"right": right})


class FakeEngine:
    """Says the given turns, one token per character: never as the tokenizer would encode them."""

    def __init__(self, *turns: str, tokenizer: Any) -> None:
        self.turns, self.tokenizer, self.asked = list(turns), tokenizer, []

    async def generate(self, prompt: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        self.asked.append(list(prompt))
        text = self.turns.pop(0)
        words = text.removesuffix("<|im_end|>")
        ids = self.tokenizer.convert_tokens_to_ids([*words, *(["<|im_end|>"] if text != words else [])])
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in ids]
        answer = SimpleNamespace(token_ids=ids, text=text, logprobs=logprobs, finish_reason="stop")
        return SimpleNamespace(outputs=[answer])

    def text(self, response: dict[str, Any]) -> str:
        return "".join(self.tokenizer.convert_ids_to_tokens(response["observation_tokens"]))


def play(*turns: str, template: str = CHATML) -> tuple[dict[str, Any], FakeEngine]:
    fast = tokenizer(template)
    engine = FakeEngine(*turns, tokenizer=fast)
    executor = ToolAgentExecutor(Doubling)
    sampling = SimpleNamespace(max_tokens=None, logprobs=1)
    episode = executor.execute("ab?", "4", sampling, 4000, fast, engine)
    return asyncio.run(episode), engine


CALL = '<tool_call>{"name": "double", "arguments": {"n": 2}}</tool_call>'


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_episode(template: str) -> None:
    response, engine = play(f"ab{CALL}<|im_end|>", "It is 4<|im_end|>", template=TEMPLATES[template])
    assert response["reward"] == 1.0
    assert response["extra_logs"] == {"right": 1.0, "turns": 2.0}
    text = engine.text(response)
    assert '"double"' in text.partition("ab?")[0] + text.partition("assistant")[0], "the model sees its tools"
    assert text.count("<|im_end|>\n<|im_start|>") == text.count("<|im_start|>") - 1, "each turn is closed once"
    assert text.endswith("<|im_start|>assistant\nIt is 4<|im_end|>")
    assert "\n4" in text.rpartition(CALL)[2].partition("assistant")[0]


def test_the_sequence_is_what_the_engine_saw_and_said() -> None:
    """`ab` was generated as two tokens, and the tool's text begins where the turn's ends: nothing merges."""
    response, engine = play(f"ab{CALL}<|im_end|>", "a", "")
    tokens, (first, second) = response["observation_tokens"], response["action_ranges"][:2]
    a, b, merged = engine.tokenizer.convert_tokens_to_ids(["a", "b", "ab"])
    assert tokens[first[0] : first[0] + 2] == [a, b] and merged in tokens[: first[0]]
    assert engine.asked == [tokens[: first[0]], tokens[: second[0]]]
    assert [p != 0 for p in response["rollout_log_probs"]] == [
        any(start <= i < end for start, end in response["action_ranges"]) for i in range(len(tokens))
    ]


def test_nothing_merges_across_the_boundary_of_a_turn() -> None:
    """The prompt and the tool's text end with a new line, both turns begin with `a`: encoded together they merge."""
    response, engine = play(f"a{CALL}<|im_end|>", "a4<|im_end|>")
    tokens, starts = response["observation_tokens"], [start for start, _ in response["action_ranges"]]
    newline, a, merged = engine.tokenizer.convert_tokens_to_ids(["\n", "a", "\na"])
    assert [tokens[start - 1 : start + 1] for start in starts] == [[newline, a]] * 2
    assert engine.asked == [tokens[:start] for start in starts]
    assert engine.tokenizer(engine.text(response))["input_ids"].count(merged) >= 2


def test_a_turn_that_was_cut_off_is_closed() -> None:
    response, engine = play(CALL, "4<|im_end|>")
    assert f"{CALL}<|im_end|>\n<|im_start|>tool\n4<|im_end|>" in engine.text(response)


@pytest.mark.parametrize("bad", ["<tool_call>{</tool_call>", '<tool_call>{"name": "halve"}</tool_call>'])
def test_a_bad_call_is_answered_and_costs_a_turn(bad: str) -> None:
    response, engine = play(*[f"{bad}<|im_end|>"] * 3)
    assert response["reward"] == 0.0 and response["extra_logs"]["turns"] == 3.0
    assert engine.text(response).count("tool\nError: ") == 2


def test_a_rendered_prompt_is_refused() -> None:
    fast = tokenizer()
    episode = ToolAgentExecutor(Doubling).execute(
        "<|im_start|>user\nhi<|im_end|>", "4", SimpleNamespace(max_tokens=None, logprobs=1), 4000, fast, None
    )
    with pytest.raises(ValueError, match="leave out --data.apply_chat_template"):
        asyncio.run(episode)


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        ChatFormat(tokenizer(None)).opening([{"role": "user", "content": "?"}], [])


def test_system_messages_are_merged_for_a_template_without_tools() -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "?"}]
    text = ChatFormat(tokenizer(NO_TOOLS)).opening(messages, Toolbox([Tool(double)]).schemas)
    assert text.count("<|im_start|>system") == 1 and "Be short." in text and "<tools>" in text


def test_a_copied_episode_goes_on_alone_and_shares_the_format() -> None:
    async def scenario() -> tuple[ToolAgent, ToolAgent]:
        agent = Doubling(ChatFormat(tokenizer()))
        await agent.reset({"observation": "?", "label": "4"})
        await agent.step({"action_text": f"{CALL}<|im_end|>"})
        other = copy.deepcopy(agent)
        await other.step({"action_text": f"{CALL}<|im_end|>"})
        return agent, other

    agent, other = asyncio.run(scenario())
    assert (agent.turns, other.turns) == (1, 2) and agent.chat is other.chat
