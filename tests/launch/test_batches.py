"""Batch arithmetic against the code it is about: upstream's dealing of batches, and DeepSpeed's own assertion."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf.launch import batches
from openrlhf.launch.batches import Deal

Run = Callable[..., SimpleNamespace]
PAIR = {"actor__num_gpus_per_node": 2, "ref__num_gpus_per_node": 2}


class Handler:
    """Stands for a model process: counts the rollouts that it is sent."""

    def __init__(self) -> None:
        self.got = 0
        self.execute_batch = SimpleNamespace(remote=self._execute)

    def _execute(self, method: str, data: dict[str, list[int]], start: int, end: int) -> None:
        self.got += sum(data["experience"][start:end])


@given(rollouts=st.integers(1, 60), micro=st.integers(1, 7), processes=st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_shares_are_what_upstream_deals_out(rollouts: int, micro: int, processes: int) -> None:
    from openrlhf.trainer.ray import launcher

    deal = Deal(rollouts, micro, processes)
    group = object.__new__(launcher.RayActorGroup)
    group._actor_handlers, group.duplicate_actors = [Handler() for _ in range(processes)], 1
    sample_batches = [min(micro, rollouts - start) for start in range(0, rollouts, micro)]
    assert len(sample_batches) == deal.micro_batches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher.ray, "put", lambda value: value)
        if deal.micro_batches < processes:
            with pytest.raises(ValueError, match="Insufficient batch size"):
                group.async_run_method_batch("append", experience=sample_batches)
            return
        group.async_run_method_batch("append", experience=sample_batches)
    assert [handler.got for handler in group._actor_handlers] == deal.shares()
    assert sum(deal.shares()) == rollouts


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 6, 8, 12])
def test_batch_sizes_are_refused_exactly_when_deepspeed_does(run: Run, processes: int, micro: int, batch: int) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    config = object.__new__(DeepSpeedConfig)
    config.train_batch_size, config.train_micro_batch_size_per_gpu = batch, micro
    config.gradient_accumulation_steps, config.world_size = None, processes
    config._set_batch_related_parameters()
    try:
        config._batch_assertion()
        accepted = True
    except AssertionError:
        accepted = False
    args = run(
        train__batch_size=batch,
        train__micro_batch_size=micro,
        actor__num_gpus_per_node=processes,
        ref__num_gpus_per_node=processes,
        rollout__batch_size=12 * processes,
    )
    problems = [*batches.check(args)]
    assert (not problems) == accepted
    assert all(p.flag == "--train.batch_size" and f"multiple of {micro * processes}" in p.fix for p in problems)


# (changes, flag, text in the description, text in the fix)
BAD: list[tuple[dict[str, Any], str, str, str]] = [
    ({"train__batch_size": 32}, "--train.batch_size", "= 16", "--train.batch_size 16 or less"),
    ({"train__batch_size": 7}, "--train.batch_size", "no multiple", "for example 8"),
    (PAIR | {"train__batch_size": 6}, "--train.batch_size", "2 data-parallel", "for example 8"),
    (PAIR | {"rollout__micro_batch_size": 16}, "--rollout.micro_batch_size", "1 sample batches", "lower"),
    (PAIR | {"ds__ring_attn_size": 3}, "--actor.num_gpus_per_node", "--ds.ring_attn_size", "multiple of 3"),
    # Three micro-batches of rollouts on two processes: 4 and 2 rollouts.
    (
        PAIR | {"rollout__batch_size": 3, "rollout__n_samples_per_prompt": 2, "train__batch_size": 4},
        "--rollout.batch_size",
        "wait for ever",
        "multiple of 4",
    ),
    # The reference runs on four processes, the actor on two: three processes would get a forward pass.
    (
        PAIR
        | {"ref__num_gpus_per_node": 4, "rollout__batch_size": 1, "train__batch_size": 4}
        | {"train__micro_batch_size": 1, "rollout__micro_batch_size": 2},
        "--rollout.batch_size",
        "too few for the 4 data-parallel processes of the ref",
        "multiple of 8",
    ),
    (
        PAIR
        | {"ref__num_gpus_per_node": 3, "rollout__batch_size": 2, "rollout__micro_batch_size": 1}
        | {"train__batch_size": 6, "train__micro_batch_size": 1, "ds__zero_stage": 3},
        "--rollout.batch_size",
        "ZeRO-3",
        "multiple of 6",
    ),
    (
        {"rollout__vllm_generate_batch_size": 1, "train__batch_size": 8},
        "--train.batch_size",
        "--rollout.vllm_generate_batch_size x",
        "--train.batch_size 4 or less",
    ),
    (
        PAIR | {"train__dynamic_batch_enable": True, "train__batch_size": 1, "algo__kl__init_coef": 0.0},
        "--train.batch_size",
        "less than the actor's 2",
        "at least 2",
    ),
]


@pytest.mark.parametrize(("changes", "flag", "what", "fix"), BAD, ids=[f"{i} {case[1]}" for i, case in enumerate(BAD)])
def test_bad_arithmetic_is_named_with_a_fix(run: Run, changes: dict[str, Any], flag: str, what: str, fix: str) -> None:
    problems = [problem for problem in batches.check(run(**changes)) if problem.flag == flag]
    assert problems and what in problems[0].what and fix in problems[0].fix


def test_tensor_parallel_processes_count_as_one(run: Run) -> None:
    changes = {"actor__num_gpus_per_node": 4, "ref__num_gpus_per_node": 4, "ds__ring_attn_size": 2}
    assert [*batches.check(run(**changes))] == []


def test_a_reference_of_another_size_trains_below_zero_3(run: Run) -> None:
    """Its uneven forward passes are no collective there."""
    changes = PAIR | {"ref__num_gpus_per_node": 3, "rollout__batch_size": 2, "rollout__micro_batch_size": 1}
    changes |= {"train__batch_size": 6, "train__micro_batch_size": 1}
    assert [*batches.check(run(**changes))] == []


def test_a_rest_is_a_warning_only(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    assert [*batches.check(run(rollout__batch_size=5, train__batch_size=16))] == []
    assert "no multiple of --train.batch_size 16" in caplog.text


@given(processes=st.integers(1, 4), micro=st.integers(1, 3), times=st.integers(1, 4), train_micro=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_suggested_multiples_work(
    parsed: SimpleNamespace, processes: int, micro: int, times: int, train_micro: int
) -> None:
    """A fix that names a number must be one: any multiple of the unit can be dealt out evenly."""
    args = SimpleNamespace(**vars(parsed))
    args.actor = SimpleNamespace(**vars(parsed.actor) | {"num_gpus_per_node": processes})
    args.ref = SimpleNamespace(**vars(parsed.ref) | {"num_gpus_per_node": processes})
    args.rollout = SimpleNamespace(**vars(parsed.rollout) | {"micro_batch_size": micro})
    args.train = SimpleNamespace(**vars(parsed.train) | {"micro_batch_size": train_micro})
    assert batches.step_fault(args, times * batches.step_unit(args)) is None
