"""Boxed answers and their scores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.agents.answers import boxed, exact_match, f1, normalised, reward

WORDS = st.lists(st.sampled_from(["the", "Paris", "paris", "no", "yes", "in", "France.", "1990", ""])).map(" ".join)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{Paris}.", "Paris"),
        ("\\boxed{a} then \\boxed{b}", "b"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<think>\\boxed{a}</think> it is b", None),
        ("<think>\\boxed{a}</think>\\boxed{ b }", "b"),
        ("\\boxed{a} and \\boxed{cut of", "a"),
        ("\\boxed{}", ""),
        ("\\boxed", None),
        ("", None),
    ],
)
def test_the_last_whole_box_counts(text: str, answer: str | None) -> None:
    assert boxed(text) == answer


def test_a_text_of_open_boxes_is_read_in_time() -> None:
    assert boxed("\\boxed{" * 100_000) is None
    assert boxed("\\boxed{" * 100_000 + "}") == ""


@pytest.mark.parametrize(
    ("answer", "golds", "em", "score"),
    [
        ("The Paris!", ["paris"], 1.0, 1.0),
        ("Paris, France", ["Paris"], 0.0, 2 / 3),
        ("Berlin", ["Paris", "berlin"], 1.0, 1.0),
        ("yes", ["yes it is"], 0.0, 0.0),
        ("yes", ["Yes."], 1.0, 1.0),
        ("no", ["noanswer"], 0.0, 0.0),
        ("", ["Paris"], 0.0, 0.0),
        ("Paris", [], 0.0, 0.0),
        ("", ["The The"], 1.0, 1.0),
        ("\\text{Paris}", ["Paris"], 1.0, 1.0),
        ("\\textbf{The  Eiffel} \\mathrm {Tower}", ["Eiffel Tower"], 1.0, 1.0),
        ("\\texture", ["texture"], 1.0, 1.0),
    ],
)
def test_scores(answer: str, golds: list[str], em: float, score: float) -> None:
    assert exact_match(answer, golds) == em and f1(answer, golds) == pytest.approx(score)


def test_the_reward_needs_a_third_of_f1() -> None:
    assert reward("Paris", ["paris"]) == 1.0
    assert reward("Paris France", ["Paris"]) == pytest.approx(2 / 3)
    assert reward("Paris one two three four five six seven", ["Paris"]) == 0.0
    assert reward(None, ["Paris"]) == 0.0
    for empty in ("", "\\text{}", "{ }"):
        assert reward(empty, ["The The"]) == 0.0, "an empty box is no answer"


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_bounded_and_one_for_a_match(left: str, right: str) -> None:
    assert 0.0 <= f1(left, [right]) <= 1.0
    assert f1(left, [right]) == pytest.approx(f1(right, [left]))
    assert not exact_match(left, [right]) or f1(left, [right]) == 1.0


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_has_a_score(answer: str, gold: str) -> None:
    assert 0.0 <= reward(boxed(answer), [gold]) <= 1.0
    assert normalised(normalised(answer)) == normalised(answer)
