"""Rollout trees at launch: what their flags need, what they rule out, and the pool that they run through."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.launch import arguments, reading
from pace.config import PaceConfig

Run = Callable[..., SimpleNamespace]
TREES = {
    "train__async_enable": True,
    "trace__enable": True,
    "algo__advantage__estimator": "group_norm",
    "algo__kl__init_coef": 0.0,
    "rollout__n_samples_per_prompt": 8,
    "train__batch_size": 32,
    "rollout__batch_size": 4,
}

GOOD: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "with the pool's own flags": {"pace__enable": True, "pace__admission": "areal"},
    "the pool's log without --pace.enable": {"pace__log_dir": "log"},
    "no continuations": {"trace__continuations": 0},
    "flat groups": {"trace__allocation": "flat"},
    "a small budget": {"trace__budget": 8},
    "a KL term in the loss": {"algo__kl__init_coef": 0.1, "algo__kl__use_loss": True},
    "a predictor without a model": {"trace__predictor": "running_mean"},
    "another temperature": {"rollout__temperature": 0.7},
}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {  # changes, the flag it names, a part of the fix
    "upstream's synchronous trainer": ({"train__async_enable": False}, "--trace.enable", "add --train.async_enable"),
    "an estimator": ({"algo__advantage__estimator": "rloo"}, "--algo.advantage.estimator", "use group_norm"),
    "a KL term in the reward": ({"algo__kl__init_coef": 0.1}, "--algo.kl.init_coef", "--algo.kl.use_loss"),
    "one rollout a tree": ({"trace__budget": 7}, "--trace.budget", "use 8 or more"),
    "a cap below the budget": (
        {"trace__budget": 40, "trace__max_per_root": 8},
        "--trace.max_per_root",
        "use 10 or more",
    ),
    "m_max of 1": ({"trace__max_per_root": 1}, "--trace.max_per_root", "use 16"),
    "a share that is none": ({"trace__explore": 1.5}, "--trace.explore", "use 0 or a few percent"),
    "a model for none": (
        {"trace__predictor": "constant", "trace__predictor_model": "/nowhere"},
        "--trace.predictor_model",
        "drop it",
    ),
    "no trees at all": ({"trace__enable": False, "trace__budget": 64}, "--trace.budget", "add --trace.enable"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_works_passes(run: Run, name: str) -> None:
    assert arguments.check(run(**TREES | GOOD[name])) == []


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_work_is_named_with_a_fix(run: Run, name: str) -> None:
    changes, flag, fix = BAD[name]
    problems = [problem for problem in arguments.check(run(**TREES | changes)) if problem.flag == flag]
    assert len(problems) == 1 and fix in problems[0].fix


def test_without_pace_the_pool_is_synchronous(run: Run) -> None:
    assert reading.pool_settings(run(**TREES)) == PaceConfig(enable=True, strict=True)
    assert reading.pool_settings(run(**TREES | {"pace__enable": True})) == PaceConfig(enable=True)
    assert not reading.pool_settings(run(train__async_enable=True)).enable
