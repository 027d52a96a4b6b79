"""What is said last when a run is stopped."""

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayTaskError

from openrlhf.launch.problem import Problem, cause


def chained(outer, inner):
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such file"), "no such file"),
        (KeyError(), "KeyError"),
        (ValueError(""), "ValueError"),
        (ValueError("  \n"), "ValueError"),
        (chained(RuntimeError("outer"), ValueError("inner")), "inner"),
        (RayTaskError("fit", "the traceback", OSError("disk full")), "disk full"),
        (RayTaskError("fit", "the traceback", RayTaskError("step", "more", OSError("disk full"))), "disk full"),
        (GetTimeoutError("10 s are over"), "10 s are over"),
        (ActorDiedError(), "The actor died unexpectedly before finishing this task."),
        (ActorUnavailableError("lost", b"\1" * 16), "lost"),
    ],
    ids=str,
)
def test_the_innermost_reason_is_named_in_one_line(error, said):
    assert said in cause(error) and "\n" not in cause(error)


def test_a_problem_names_flag_and_fix():
    assert str(Problem("--a.b", "is 3", "use 4")) == "--a.b: is 3. Fix: use 4."
