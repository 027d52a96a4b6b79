"""The data files: reproducible, right, free of leaks, and in the form that upstream's datasets read."""

import json
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.python import agent_func_calculator as calculator
from examples.python.reward_func_math import reward_func
from examples.tiny import tasks
from examples.tiny.model import CALL_MARKERS, PADDING, TURN_END, TURN_START, build_tokenizer
from examples.tiny.recipe import Recipe

SMALL = replace(Recipe(), draws=900, eval_problems=48, pairs=64, sft_sums=200, sft_games=120)
EXPRESSION = re.compile(r"\d+(?: [+-] \d+)+")
BOXED = re.compile(r"\\boxed\{(-?\d+)\}\Z")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tasks.write_all(SMALL, folder)
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return {name: tasks.read(folder / f"{name}.jsonl") for name in tasks.FILES}


@pytest.fixture(scope="module")
def tokenizer(data):
    return build_tokenizer(SMALL, tasks.texts(data["sft"]))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def expression(question):
    (found,) = EXPRESSION.findall(question)
    return found


def value(question):
    """The sum worked by Python, from the text of the question."""
    return eval(expression(question), {"__builtins__": {}})


def questions(rows):
    """The text that opens each row's conversation, whatever the file."""
    for row in rows:
        messages = row.get("prompt") or row.get("messages") or row["chosen"]
        assert messages[0]["role"] == "user"
        yield messages[0]["content"]


# Reproducible.


def test_the_same_recipe_gives_the_same_bytes(folder, tmp_path):
    tasks.write_all(SMALL, tmp_path)
    assert contents(tmp_path) == contents(folder)
    assert set(contents(folder)) == {f"{name}.jsonl" for name in tasks.FILES}


def test_another_seed_gives_other_bytes(folder, tmp_path):
    tasks.write_all(replace(SMALL, seed=SMALL.seed + 1), tmp_path)
    before, after = contents(folder), contents(tmp_path)
    assert [name for name in before if before[name] == after[name]] == []


def test_the_files_have_the_sizes_of_the_recipe(data):
    assert len(data["eval"]) == SMALL.eval_problems
    assert len(data["pairs_train"]) == SMALL.pairs
    assert len(data["pairs_eval"]) == SMALL.pairs // 4
    assert len(data["sft"]) == SMALL.sft_sums + SMALL.sft_games
    assert len(data["train"]) > SMALL.pairs
    assert len(data["calculator_train"]) > len(data["calculator_eval"]) > 0


# No leaks.


def test_evaluation_problems_are_in_no_training_file(data):
    evaluation = {text for name in ("eval", "calculator_eval", "pairs_eval") for text in questions(data[name])}
    for name in ("train", "calculator_train", "sft", "pairs_train"):
        assert evaluation.isdisjoint(questions(data[name])), name


@pytest.mark.parametrize("name", ["train", "eval", "calculator_train", "calculator_eval", "pairs_train", "pairs_eval"])
def test_no_problem_comes_twice(data, name):
    found = list(questions(data[name]))
    assert len(set(found)) == len(found)


# Right.


@pytest.mark.parametrize("name", ["train", "eval"])
def test_labels_of_sums_are_right(data, name):
    for row in data[name]:
        (message,) = row["prompt"]
        assert row["label"] == str(value(message["content"]))
        assert min(tasks.partial_sums(expression(message["content"]))) >= 0


@pytest.mark.parametrize("name", ["calculator_train", "calculator_eval"])
def test_labels_of_games_are_right(data, name):
    for row in data[name]:
        state = calculator.start_state(row["label"])
        assert row["prompt"] == [tasks.message("user", calculator.instruction(state))]
        assert calculator.winnable(state)
        assert not calculator.winnable(state._replace(left=state.left - 1))


@pytest.mark.parametrize("name", ["pairs_train", "pairs_eval"])
def test_the_chosen_answer_is_right_and_the_rejected_one_wrong(data, name):
    for row in data[name]:
        question, chosen = row["chosen"]
        same_question, rejected = row["rejected"]
        assert question == same_question
        answers = [int(BOXED.search(message["content"])[1]) for message in (chosen, rejected)]
        assert answers[0] == value(question["content"]) != answers[1]


def test_the_reward_of_a_pair_tells_the_answers_apart(data):
    rows = data["pairs_eval"]
    for key, expected in (("chosen", 1.0), ("rejected", 0.0)):
        prompts = [row[key][0]["content"] for row in rows]
        queries = [prompt + row[key][1]["content"] for prompt, row in zip(prompts, rows, strict=True)]
        labels = [str(value(prompt)) for prompt in prompts]
        assert reward_func(queries, prompts, labels)["rewards"].tolist() == [expected] * len(rows)


def is_game(row):
    return row["messages"][0]["content"].startswith("From ")


def test_demonstrated_games_follow_the_rules(data):
    games = [row["messages"] for row in data["sft"] if is_game(row)]
    assert len(games) == SMALL.sft_games
    by_instruction = {calculator.instruction(game): game for game in tasks.all_games(SMALL)}
    ends = set()
    for opening, *messages in games:
        state = by_instruction[opening["content"]]
        for index, message in enumerate(messages):
            if index % 2 == 0:
                assert message["role"] == "assistant"
                operation = calculator.parse_call(message["content"])
                before, state = state, calculator.play(state, operation)
            else:
                assert message == tasks.message("tool", calculator.reply(before, operation))
                assert not calculator.won(state)
        assert messages[-1]["role"] == "assistant"
        assert calculator.won(state) or state.left == 0
        ends.add(calculator.won(state))
    assert ends == {True, False}, "careless players win some and lose some"


def test_demonstrated_sums_slip_as_often_as_the_recipe_says():
    steps = slips = 0
    rng = random.Random(1)
    for _ in range(400):
        worked = tasks.worked_answer("8 + 7 - 3", rng, slip=0.25)
        for left, sign, right, result in re.findall(r"(-?\d+) ([+-]) (\d+) = (-?\d+)", worked):
            steps += 1
            slips += int(left) + int(f"{sign}{right}") != int(result)
    assert steps == 800
    assert 0.2 < slips / steps < 0.3
    assert tasks.worked_answer("8 + 7 - 3", rng, slip=0.0) == "8 + 7 = 15, 15 - 3 = 12. \\boxed{12}"


# Upstream's datasets.


def strategy(**fields):
    data = SimpleNamespace(apply_chat_template=True, **fields)
    return SimpleNamespace(args=SimpleNamespace(data=data), is_rank_0=lambda: False)


@pytest.mark.parametrize("name", ["train", "eval", "calculator_train", "calculator_eval"])
def test_upstream_reads_prompts(data, tokenizer, name):
    from openrlhf.datasets import PromptDataset

    rows = data[name][:20]
    dataset = PromptDataset(rows, tokenizer, strategy(input_key="prompt", label_key="label"))
    for index, row in enumerate(rows):
        source, prompt, label, images = dataset[index]
        assert prompt == f"<|im_start|>user\n{row['prompt'][0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        assert (source, label, images) == (row["datasource"], row["label"], None)
        assert isinstance(label, str)
    assert {row["datasource"] for row in data[name]} == {tasks.GAMES if "calculator" in name else tasks.SUMS}


def test_upstream_reads_demonstrations(data, tokenizer):
    """The token ranges that it trains on are the assistant's turns, with the end-of-turn token."""
    from datasets import Dataset

    from openrlhf.datasets import SFTDataset

    rows = data["sft"][:24]
    assert {is_game(row) for row in rows} == {True, False}
    dataset = SFTDataset(
        Dataset.from_list(rows),
        tokenizer,
        SMALL.context,
        strategy(input_key="messages"),
        num_processors=None,
        multiturn=True,
    )
    assert len(dataset) == len(rows)
    for index, row in enumerate(rows):
        tokens = tokenizer.encode(dataset.prompts[index] + dataset.responses[index], add_special_tokens=False)
        trained = [
            tokenizer.decode(tokens[begin : end + 1]).rstrip("\n") for begin, end in dataset.response_ranges[index]
        ]
        turns = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert trained == [f"{turn}{TURN_END}" for turn in turns]


@pytest.mark.parametrize("is_dpo", [False, True])
def test_upstream_reads_pairs(data, tokenizer, is_dpo):
    from datasets import Dataset

    from openrlhf.datasets import RewardDataset

    rows = data["pairs_eval"]
    dataset = RewardDataset(
        Dataset.from_list(rows),
        tokenizer,
        SMALL.context,
        strategy(prompt_key=None, chosen_key="chosen", rejected_key="rejected"),
        is_dpo=is_dpo,
        num_processors=None,
    )
    assert len(dataset) == len(rows)
    for index, row in enumerate(rows):
        prompt, chosen, rejected = dataset.prompts[index], dataset.chosens[index], dataset.rejects[index]
        assert bool(prompt) == is_dpo
        assert chosen.endswith(f"{row['chosen'][1]['content']}{TURN_END}\n")
        assert rejected.endswith(f"{row['rejected'][1]['content']}{TURN_END}\n")


def test_every_conversation_fits_the_context(data, tokenizer):
    for row in data["sft"]:
        assert len(tokenizer.apply_chat_template(row["messages"], return_dict=False)) < SMALL.context // 2


# The tokenizer.


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text",
    ["", " ", "a  b\n\n\tc ", "12345", "<call>+9</call>", f"{TURN_START}x{TURN_END}", "a , b ! don 't", "\x00\r\n"],
)
def test_awkward_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def test_digits_and_markers_are_tokens(tokenizer):
    assert tokenizer.tokenize("907") == ["9", "0", "7"]
    assert tokenizer.eos_token == TURN_END
    assert tokenizer.pad_token == PADDING
    assert 256 < len(tokenizer) <= SMALL.vocabulary + len(CALL_MARKERS)
    for marker in (TURN_START, TURN_END, PADDING, *CALL_MARKERS):
        assert len(tokenizer.encode(marker, add_special_tokens=False)) == 1
    text = f"<call>+9</call>{TURN_END}"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=True) == text[:15]


def test_the_tokenizer_is_the_same_every_time(data, tokenizer):
    again = build_tokenizer(SMALL, tasks.texts(data["sft"]))
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


MESSAGES = [tasks.message("user", "q"), tasks.message("assistant", "a")]
RENDERED = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"


def test_the_chat_template(tokenizer):
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == RENDERED
    opened = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert opened == f"{RENDERED}<|im_start|>assistant\n"


def test_the_chat_template_with_tools(tokenizer):
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "halve")]
    text = tokenizer.apply_chat_template(MESSAGES, tools=tools, tokenize=False, add_generation_prompt=True)
    head, tail = text.split("<|im_end|>\n", 1)
    assert tail == f"{RENDERED}<|im_start|>assistant\n"
    opening, title, *lines = head.splitlines()
    assert (opening, title) == ("<|im_start|>system", "Tools:")
    assert [json.loads(line) for line in lines] == tools
    assert tokenizer.apply_chat_template(MESSAGES, tools=[], tokenize=False) == RENDERED
