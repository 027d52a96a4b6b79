"""The tasks, played by a script that knows the benchmark's answers, compared with the raw checker."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from openrlhf.agents.bfcl_checker import passes
from openrlhf.agents.bfcl_data import SUBSETS, Task, package, tasks
from openrlhf.agents.bfcl_world import backends
from openrlhf.agents.function_calling import FunctionCallingAgent

from .bfcl_answers import answer, every_task, label, spoken, without_last
from .episodes import TURN_END, episode

pytest.importorskip("bfcl_eval")


UTILS = "eval_checker.multi_turn_eval.multi_turn_utils"


@contextmanager
def no_instances_left() -> Iterator[None]:
    """Takes away what the package has kept in its globals."""
    instances = vars(package(UTILS))
    before = set(instances)
    yield
    for name in set(instances) - before:
        del instances[name]


def play(task: Task, turns: list[str]) -> list[dict[str, Any]]:
    return episode(FunctionCallingAgent, task.message(0), label(task), *turns)


def rewards(task: Task) -> tuple[float, ...]:
    """Of the whole answer, and of the answer without its last call."""
    calls = answer(task)
    ends = [play(task, spoken(one))[-1] for one in (calls, without_last(calls))]
    assert all(end["done"] for end in ends)
    return tuple(end["scores"] for end in ends)


@pytest.mark.slow
@pytest.mark.parametrize("subset", SUBSETS)
def test_every_answer_passes_and_fails_without_its_last_call(subset: str) -> None:
    assert {name: rewards(task) for name, task in tasks(subset).items()} == dict.fromkeys(tasks(subset), (1.0, 0.0))


def test_some_answers_pass_and_fail_without_their_last_call() -> None:
    assert {rewards(task) for task in every_task(step=10)} == {(1.0, 0.0)}


@pytest.mark.parametrize("task", every_task(step=40), ids=lambda task: task.id)
def test_one_call_per_turn_is_as_good_as_many(task: Task) -> None:
    *_, end = play(task, spoken(answer(task), per_turn=1))
    assert end["done"] and end["scores"] == 1.0
    assert end["extra_logs"]["correct"] == 1.0 and end["extra_logs"]["refused_calls"] == 0.0
    assert end["extra_logs"]["user_turns"] == task.n_turns


@pytest.mark.parametrize("task", every_task(step=20), ids=lambda task: task.id)
def test_results_are_worded_as_the_package_words_them(task: Task) -> None:
    replies = play(task, spoken(answer(task), per_turn=1))
    result = re.compile(rf"tool\n(.*?){re.escape(TURN_END)}", re.DOTALL)
    ours = [result.findall(reply.get("environment_feedback", "")) for reply in replies]
    execute = package(UTILS).execute_multi_turn_func_call
    kept = (task.entry["initial_config"], task.classes, "compared", task.id)
    with no_instances_left():
        theirs = [execute(calls, *kept, long_context=task.long_context)[0] for calls in task.answer]
    assert sum(ours, []) == sum(theirs, []) != []


def raw_verdict(task: Task, calls: list[list[str]]) -> float:
    """What the package says when it makes its own instances."""
    checker = package("eval_checker.multi_turn_eval.multi_turn_checker").multi_turn_checker
    rounds = [[turn] if turn else [] for turn in calls]
    with no_instances_left():
        return float(checker(rounds, task.answer, task.entry, task.subset, "compared")["valid"])


def test_the_package_s_verdict_on_answers_in_another_order_is_ours() -> None:
    """It accepts some of them."""
    verdicts = set()
    for task in every_task(step=5):
        end = play(task, spoken([turn[::-1] for turn in answer(task)]))[-1]
        assert end["scores"] == raw_verdict(task, [turn[::-1] for turn in task.answer]), task.id
        verdicts.add(end["scores"])
    assert verdicts == {0.0, 1.0}


def test_fewer_user_turns_never_pass() -> None:
    task = tasks(SUBSETS[0])["multi_turn_base_0"]
    assert passes(task, [[turn] for turn in task.answer]) and not passes(task, [[turn] for turn in task.answer[:-1]])


def test_a_package_that_names_its_instances_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks(SUBSETS[0])["multi_turn_base_0"]
    utils = package(UTILS)
    checker = package("eval_checker.multi_turn_eval.multi_turn_checker")

    def renamed(*args: Any, model_name: str, **kwargs: Any) -> Any:
        return utils.execute_multi_turn_func_call(*args, model_name=f"{model_name}_new", **kwargs)

    monkeypatch.setattr(checker, "execute_multi_turn_func_call", renamed)
    names = set(vars(utils))
    with pytest.raises(RuntimeError, match="install bfcl-eval=="):
        passes(task, [[turn] for turn in task.answer])
    assert set(vars(utils)) == names, "nothing is left behind"


def test_trajectories_share_nothing() -> None:
    """What one trajectory buys or posts is not there in the next, in a long context, either."""
    task = tasks("multi_turn_long_context")["multi_turn_long_context_150"]
    before, paid = (backends(task)["TravelAPI"] for _ in range(2))
    for card in paid.credit_card_list.values():
        card["balance"] = -1.0
    assert vars(backends(task)["TravelAPI"])["credit_card_list"] == before.credit_card_list != paid.credit_card_list
