"""The reward file for mathematical answers: what it accepts, and that no text can stop it or make it raise."""

import asyncio
import subprocess
import time

import pytest
import torch

from examples.python import reward_func_math
from examples.python.reward_func_math import Checker, is_correct, response_part, reward_func

pytestmark = pytest.mark.slow

CHATML = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
HOSTILE = "\\boxed{9^{9^{9^{9}}}}"
PATIENT_S = 60.0  # a busy machine mustn't turn a right answer into a wrong one


@pytest.fixture(scope="module", autouse=True)
def patient_checker():
    """One child for the whole file, with a limit that only a hang exceeds."""
    patch = pytest.MonkeyPatch()
    checker = Checker(PATIENT_S)
    patch.setattr(reward_func_math, "_CHECKER", checker)
    yield checker
    checker.close()
    patch.undo()


@pytest.fixture
def no_child(monkeypatch):
    """Fails the test if an answer goes to math-verify."""

    def refuse(self, label, response):
        raise AssertionError(f"asked math-verify about {response!r}")

    monkeypatch.setattr(Checker, "check", refuse)


def rewards(responses, label, prompt="What is it?"):
    count = len(responses)
    return reward_func([prompt + text for text in responses], [prompt] * count, [label] * count)["rewards"].tolist()


@pytest.mark.parametrize(
    ("response", "label", "right"),
    [
        ("12", "12", True),
        ("+12", "12", True),
        ("-3", "-3", True),
        ("3", "-3", False),
        ("13", "12", False),
        ("012", "12", True),
        ("5 + 7 = 12, so \\boxed{12}", "12", True),
        ("5 + 7 = 12, so \\boxed{ 12 }.", " 12\n", True),
        ("5 + 7 = 12, so \\boxed{13}", "12", False),
        ("\\boxed{13}, no: \\boxed{12}", "12", True),  # the last box is the answer
        ("\\boxed{12}, no: \\boxed{13}", "12", False),
        ("", "12", False),
        ("12", "", False),
        ("12", "  ", False),
    ],
)
def test_integers_are_compared_without_math_verify(no_child, response, label, right):
    assert is_correct(response, label) is right


HALVES = ("0.5", "1/2", "\\frac{1}{2}", "\\frac12", "\\dfrac{2}{4}")


@pytest.mark.parametrize("label", ["0.5", "1/2", "\\frac{1}{2}"])
def test_equal_forms_of_a_number_are_one_answer(label):
    forms = [f"The answer is $\\boxed{{{form}}}$." for form in HALVES]
    assert rewards(forms, label) == [1.0] * len(forms)
    assert rewards(["\\boxed{0.25}", "\\boxed{\\frac{1}{3}}", "\\boxed{2}"], label) == [0.0] * 3


def test_an_earlier_box_is_not_the_answer():
    """Not even when the last one is no plain integer."""
    assert rewards(["\\boxed{5}, no: \\boxed{\\frac{1}{2}}"], "5") == [0.0]


def test_garbage_is_wrong():
    texts = ["no idea", "\\boxed{", "\\boxed{}", "}{$$\\frac{1}{", "\x00\ud800\U0001f600", "<|im_end|>", " \n "]
    assert rewards(texts, "12") == [0.0] * len(texts)


def test_a_megabyte_is_judged_by_its_end():
    begin = time.monotonic()
    filler = "so we add 1 and get 2. " * 45_000
    assert len(filler) > 1_000_000
    assert rewards([f"{filler}\\boxed{{12}}", f"\\boxed{{12}}{filler}"], "12") == [1.0, 0.0]
    assert rewards(["<|" * 500_000, "\\boxed{" * 150_000], "12") == [0.0, 0.0]
    assert time.monotonic() - begin < PATIENT_S


def test_the_prompt_is_not_an_answer():
    prompt = CHATML.format(question="Say \\boxed{12}. Is it 12?")
    assert rewards(["", "\\boxed{13}<|im_end|>"], "12", prompt) == [0.0, 0.0]
    assert rewards(["\\boxed{12}<|im_end|>"], "12", prompt) == [1.0]


def test_the_prompt_is_found_by_its_marker_where_decoding_changed_it():
    query = CHATML.format(question="Say \\boxed{12}.  Or not?") + "\\boxed{13}<|im_end|>"
    assert response_part(query, "Say \\boxed{12}. Or not?") == "\\boxed{13}"
    assert response_part(query, "") == "\\boxed{13}"


@pytest.mark.parametrize("marker", reward_func_math.ASSISTANT_MARKERS)
def test_every_chat_format_has_its_marker(marker):
    assert response_part(f"question \\boxed{{1}}{marker}answer", "other") == "answer"


class Unprintable:
    def __str__(self):
        raise ValueError("no text")


def test_odd_types_are_wrong_answers_not_errors():
    odd = [None, 12, 1.5, [], {}, object(), b"12", Unprintable(), float("nan"), True]
    count = len(odd)
    for queries, prompts, labels in (
        (odd, ["What?"] * count, ["7"] * count),
        (["What? seven"] * count, odd, ["7"] * count),
    ):
        assert reward_func(queries, prompts, labels)["rewards"].tolist() == [0.0] * count
    result = reward_func(["What? \\boxed{8}"] * count, ["What?"] * count, odd)
    assert result["rewards"].shape == (count,)
    assert reward_func(["What? 7"], ["What?"], [7])["rewards"].tolist() == [1.0]  # a label that JSON made a number


def test_an_error_in_the_check_is_a_wrong_answer(monkeypatch):
    def fail(self, label, response):
        raise RuntimeError("broken")

    monkeypatch.setattr(Checker, "check", fail)
    assert rewards(["one half", "\\boxed{3}"], "3") == [0.0, 1.0]


def test_the_shape_that_upstream_expects():
    result = reward_func(["p 1", "p 2", "p 1"], ["p "] * 3, ["1", "1", "1"], extra="ignored")
    assert set(result) == {"rewards", "scores", "extra_logs"}
    for tensor in (result["rewards"], result["scores"], *result["extra_logs"].values()):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == torch.float32
        assert tensor.tolist() == [1.0, 0.0, 1.0]
    assert reward_func([], [], [])["rewards"].shape == (0,)


def test_upstream_executor_loads_the_file_and_takes_its_answer():
    """Upstream loads the file by its path and calls it in a thread, one query a call."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor = SingleTurnAgentExecutor(reward_func_math.__file__)
    (result,) = asyncio.run(executor._fetch_rewards_via_func(["p \\boxed{4}"], ["p "], ["4"]))
    assert result["rewards"].item() == result["scores"].item() == 1.0


def test_many_threads_at_once():
    """Right and wrong answers alternate, so a verdict that reaches the wrong thread shows."""
    answers = ["\\boxed{\\frac{1}{2}}", "\\boxed{\\frac{1}{3}}"] * 6

    async def ask_all():
        calls = [asyncio.to_thread(reward_func, [f"p {text}"], ["p "], ["0.5"]) for text in answers]
        return await asyncio.gather(*calls)

    assert [result["rewards"].item() for result in asyncio.run(ask_all())] == [1.0, 0.0] * 6


def test_a_hostile_answer_is_stopped_and_the_next_is_checked(monkeypatch):
    checker = Checker(time_limit_s=1.0)
    monkeypatch.setattr(reward_func_math, "_CHECKER", checker)
    try:
        child = checker._running()  # its start doesn't count against the limit
        begin = time.monotonic()
        assert asyncio.run(asyncio.to_thread(is_correct, HOSTILE, "12")) is False
        assert time.monotonic() - begin < 10.0
        assert child.poll() is not None, "the hanging child is still there"
        checker.time_limit_s = PATIENT_S
        assert is_correct("\\boxed{0.5}", "\\frac{1}{2}")
    finally:
        checker.close()


def test_a_killed_child_is_replaced(patient_checker):
    assert patient_checker.check("1/2", "\\boxed{0.5}")
    child = patient_checker._child
    child.kill()
    child.wait()
    assert rewards(["\\boxed{0.5}"], "1/2") == [0.0]  # no verdict counts as wrong
    assert rewards(["\\boxed{0.5}"], "1/2") == [1.0]


def test_a_child_that_cannot_start_is_a_wrong_answer(monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    assert Checker().check("1/2", "0.5") is False


def test_close_ends_the_child_and_may_be_called_twice():
    checker = Checker()
    checker.close()
    child = checker._running()
    checker.close()
    checker.close()
    assert child.poll() is not None
