import inspect
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_alloc.serialisation import CHARS_PER_TOKEN, GAP, MAX_TOKENS, TOOLS_TOKENS, TurnText, both_ends, serialise

texts = st.text(alphabet="ab \nü漢", max_size=60)
histories = st.tuples(texts, st.lists(st.builds(TurnText, action=texts, observation=texts), max_size=5))


def words(text: str) -> int:
    """Tokens that are words, white space and marks, as a tokenizer's are."""
    return len(re.findall(r"\w+|\s+|[^\w\s]", text))


def characters(text: str) -> int:
    return len(text)


COUNTERS = [words, characters]


def turn(k: int, action: int = 3, observation: int = 3) -> TurnText:
    return TurnText(action=f" act{k}" * action, observation=f" obs{k}" * observation)


def test_the_form():
    turns = [TurnText(action="<a>2</a>", observation="<o>no</o>"), TurnText(action="<a>3</a>")]
    assert serialise("<u>1+1?</u>", turns, turns_left=3) == (
        "<u>1+1?</u><a>2</a><o>no</o><a>3</a>\n[turn 2, turns left: 3]"
    )
    assert serialise("p", tools="T:") == "T:p\n[turn 0, turns left: unknown]"


@given(histories, st.one_of(st.none(), st.integers(0, 9)))
def test_a_prefix_of_no_turns_is_the_root_and_pieces_are_one_text(history, left):
    prompt, turns = history
    assert serialise(prompt, turns[:0], turns_left=left) == serialise(prompt, turn=0, turns_left=left)
    whole = prompt + "".join(each.action + each.observation for each in turns)
    assert serialise(prompt, turns, turns_left=left) == serialise(whole, turn=len(turns), turns_left=left)


@given(histories, st.integers(32, 200), st.sampled_from(COUNTERS))
def test_a_budget_is_kept_and_leaves_alone_what_fits(history, budget, count):
    prompt, turns = history
    whole = serialise(prompt, turns)
    fitted = serialise(prompt, turns, count_tokens=count, max_tokens=budget)
    assert fitted == whole if count(whole) <= budget else count(fitted) <= budget
    assert fitted.endswith(f"\n[turn {len(turns)}, turns left: unknown]")
    assert fitted == serialise(prompt, turns, count_tokens=count, max_tokens=budget)


def test_the_outcome_has_no_way_in():
    assert set(inspect.signature(serialise).parameters) == {
        "prompt", "turns", "turn", "turns_left", "tools", "count_tokens", "max_tokens"
    }  # fmt: skip
    assert set(TurnText.__dataclass_fields__) == {"action", "observation"}


def test_the_oldest_observations_go_first():
    turns = [turn(k, action=4, observation=10) for k in range(1, 5)]
    prompt = "question " * 5
    whole = words(serialise(prompt, turns))
    for budget in range(whole - 1, 40, -1):
        text = serialise(prompt, turns, count_tokens=words, max_tokens=budget)
        left = {name: text.count(name) for k in range(1, 5) for name in (f"obs{k}", f"act{k}")}
        assert text.startswith(prompt)
        older = [left[f"obs{k}"] for k in (1, 2, 3)]
        assert older == sorted(older)
        if left["obs3"] > 0:  # no older action is touched while an older observation is left
            assert [left[f"act{k}"] for k in range(1, 5)] == [4] * 4
        if left["act3"] > 0:  # nor the newest turn while an older action is
            assert (left["act4"], left["obs4"]) == (4, 10)
    assert "obs1" not in serialise(prompt, turns, count_tokens=words, max_tokens=whole - 20)


def test_a_shortened_observation_keeps_both_ends():
    turns = [TurnText(action=" go", observation=" first" + " x" * 500 + " last"), turn(2)]
    text = serialise("question", turns, count_tokens=words, max_tokens=200)
    assert " first" in text and " last" in text and text.count(GAP) == 1
    assert 150 <= words(text) <= 200  # little is given away


def test_a_prompt_without_end_leaves_room_for_the_newest_turn():
    turns = [turn(1), turn(2, action=5, observation=5)]
    text = serialise("start " + "x " * 5000 + "end", turns, count_tokens=words, max_tokens=200)
    assert text.startswith("start") and "end" in text and words(text) <= 200
    assert text.count("act2") == text.count("obs2") == 5
    alone = serialise("start " + "x " * 5000 + "end", count_tokens=words, max_tokens=200)
    assert 170 <= words(alone) <= 200


def test_a_history_in_one_text_keeps_its_newest_end():
    whole = "question " + "".join(f" turn{k}" for k in range(1000))
    text = serialise(whole, turn=7, count_tokens=words, max_tokens=300)
    assert text.startswith("question") and "turn999\n[turn 7," in text and words(text) <= 300


def test_long_tool_schemas_are_left_out():
    short, long = "tool " * 100, "tool " * TOOLS_TOKENS
    assert serialise("p", tools=short, count_tokens=words) == serialise(short + "p", count_tokens=words)
    assert serialise("p", tools=long, count_tokens=words) == serialise("p", count_tokens=words)
    assert serialise("p", tools="x" * (TOOLS_TOKENS * CHARS_PER_TOKEN + 1)) == serialise("p")


@pytest.mark.parametrize(
    "arguments",
    [
        {"turn": -1},
        {"turns_left": -1},
        {"count_tokens": words, "max_tokens": 3},
        {"count_tokens": words, "max_tokens": 0},
    ],
)
def test_impossible_requests_are_refused(arguments):
    with pytest.raises(ValueError):
        serialise("prompt with some words", **arguments)


def test_an_empty_history():
    assert serialise("", count_tokens=words) == "\n[turn 0, turns left: unknown]"
    assert serialise("", [TurnText(action="")]) == "\n[turn 1, turns left: unknown]"


def test_huge_texts_are_not_read_whole():
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return words(text)

    began = time.process_time()
    huge = "some words, " * 900_000
    for prompt, turns in (
        (huge, []),
        ("question", [TurnText(action=" go", observation=huge)] * 3),
        ("question", [TurnText(action=huge)] * 3),
        (huge, [TurnText(action=huge, observation=huge)]),
        ("x" * 10_000_000, []),
        (" " * 10_000_000, [TurnText(action="\n" * 10_000_000)]),
        ("question", [turn(k) for k in range(20_000)]),
    ):
        assert words(serialise(prompt, turns, count_tokens=count)) <= MAX_TOKENS
    assert time.process_time() - began < 20
    assert counted < 7 * 20 * MAX_TOKENS * CHARS_PER_TOKEN


def test_a_counter_whose_tokens_do_not_add_up():
    def count(text: str) -> int:
        return 2 * len(text) if len(text) > 60 else len(text)

    text = serialise("p" * 100, [TurnText(action="a" * 30)], count_tokens=count, max_tokens=80)
    assert count(text) <= 80 and text.endswith("]")


def test_both_ends():
    assert both_ends("abcdefgh", 8) == "abcdefgh" == both_ends("abcdefgh", 9)
    assert both_ends("abcdefgh", 4, gap="-") == "a-fgh"
    assert both_ends("abcdefgh", 0, gap="-") == "-"
