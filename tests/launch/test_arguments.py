"""The flags alone: the valid run passes, and each bad one is named as typed, with a way out."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.launch import arguments, conflicts, ranges, reading
from openrlhf.launch.problem import Problem

Run = Callable[..., SimpleNamespace]


def only(problems: list[Problem], flag: str) -> Problem:
    """The single problem, whose flag it must be."""
    assert [problem.flag for problem in problems] == [flag], "\n".join(map(str, problems))
    return problems[0]


def test_the_valid_run_passes(run: Run) -> None:
    assert arguments.check(run()) == []


# Runs that upstream trains with, however odd.
GOOD: dict[str, dict[str, Any]] = {
    "gae with the actor as critic": {
        "algo__advantage__estimator": "gae",
        "critic__num_gpus_per_node": 1,
        "rollout__n_samples_per_prompt": 2,
    },
    "one sample without a group": {
        "algo__advantage__estimator": "reinforce",
        "rollout__n_samples_per_prompt": 1,
        "train__batch_size": 4,
    },
    "asynchronous and oversampling": {"train__async_enable": True, "rollout__vllm_generate_batch_size": 8},
    "response as long as the context": {"rollout__max_new_tokens": 128},
    "no response length": {"rollout__max_new_tokens": None},
    "sleep that upstream turns off": {"vllm__enable_sleep": True, "train__async_enable": True},
    "queue size of a run without queue": {"train__async_queue_size": 0},
    "reference without a penalty": {"algo__kl__init_coef": 0.0, "ref__num_gpus_per_node": 0},
    "template that upstream drops": {"data__input_template": "no place"},
    "rollouts that aren't whole batches": {
        "rollout__batch_size": 5,
        "train__batch_size": 16,
        "rollout__micro_batch_size": 2,
    },
    "shared GPUs": {"train__colocate_all": True},
    "reward model": {
        "reward__remote_url": None,
        "reward__model_name_or_path": "org/rm",
        "reward__num_gpus_per_node": 1,
    },
    "evaluation never": {"eval__steps": -1, "ckpt__save_steps": -1},
    "a constant rate": {"actor__lr_scheduler": "constant_with_warmup"},
    "one upper bound": {
        "algo__advantage__is_correction_level": "seq",
        "algo__advantage__is_correction_gating": "binary_kl",
        "algo__advantage__is_correction_threshold": [0.05],
    },
    "two datasets": {"data__prompt_dataset": "a.jsonl,b.jsonl", "data__prompt_probs": "0.25,0.75"},
    "gradients kept in float32": {"ds__grad_accum_dtype": "fp32"},
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD.keys())
def test_what_upstream_trains_with_passes(run: Run, changes: dict[str, Any]) -> None:
    assert arguments.check(run(**changes)) == []


@pytest.mark.parametrize("estimator", ["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"])
def test_upstream_defaults_have_no_number_out_of_range(run: Run, estimator: str) -> None:
    assert [*ranges.check(run(algo__advantage__estimator=estimator))] == []


EIGHT = {f"{model}__num_gpus_per_node": 8 for model in ("actor", "ref", "critic", "reward")}
PACKED = {"ds__zero_stage": 3, "ds__packing_samples": True, "actor__gradient_checkpointing_enable": True}
# The shapes of common recipes on eight GPUs.
ON_GPUS: dict[str, dict[str, Any]] = {
    "everything on the same GPUs": EIGHT
    | PACKED
    | {"train__colocate_all": True, "vllm__num_engines": 4, "vllm__tensor_parallel_size": 2}
    | {"vllm__enable_sleep": True, "ds__enable_sleep": True, "vllm__gpu_memory_utilization": 0.5}
    | {"algo__advantage__estimator": "gae", "reward__remote_url": None, "reward__model_name_or_path": "org/rm"}
    | {"rollout__batch_size": 1024, "rollout__micro_batch_size": 16, "rollout__n_samples_per_prompt": 1}
    | {"train__batch_size": 128, "train__micro_batch_size": 8},
    "asynchronous agent with dynamic batches": EIGHT
    | PACKED
    | {"train__async_enable": True, "train__partial_rollout_enable": True, "train__async_queue_size": 2}
    | {"reward__remote_url": None, "train__agent_func_path": "agent.py", "train__dynamic_batch_enable": True}
    | {"algo__advantage__estimator": "reinforce_baseline", "algo__dynamic_filtering_enable": True}
    | {"rollout__batch_size": 128, "rollout__vllm_generate_batch_size": 256, "rollout__n_samples_per_prompt": 8}
    | {"train__batch_size": 1024, "vllm__num_engines": 8},
    "long context over rings": EIGHT
    | PACKED
    | {"ds__ring_attn_size": 4, "ds__ring_attn_head_stride": 2, "rollout__batch_size": 64}
    | {"rollout__micro_batch_size": 1, "train__batch_size": 128, "train__micro_batch_size": 1},
    "tensor parallel training": EIGHT | {"ds__tensor_parallel_size": 4, "rollout__batch_size": 64},
    "quantised": EIGHT | {"ds__load_in_4bit": True, "rollout__batch_size": 64, "train__batch_size": 64},
}


@pytest.mark.parametrize("changes", ON_GPUS.values(), ids=ON_GPUS.keys())
def test_recipes_for_gpus_pass(run: Run, on_cuda: dict[str, Any], changes: dict[str, Any]) -> None:
    assert arguments.check(run(**on_cuda | changes)) == []


# (changes, flag, text in the description, text in the fix)
BAD: list[tuple[dict[str, Any], str, str, str]] = [
    ({"actor__model_name_or_path": None}, "--actor.model_name_or_path", "missing", "folder"),
    ({"data__prompt_dataset": None}, "--data.prompt_dataset", "missing", "jsonl"),
    ({"vllm__num_engines": None}, "--vllm.num_engines", "None", "1 or more"),
    ({"vllm__num_engines": 0}, "--vllm.num_engines", "0", "1 or more"),
    (
        {"reward__remote_url": None, "reward__num_gpus_per_node": 1},
        "--reward.remote_url",
        "scores",
        "--reward.remote_url",
    ),
    ({"train__agent_func_path": "agent.py"}, "--reward.remote_url", "--train.agent_func_path", "drop one"),
    ({"rollout__temperature": 0.0}, "--rollout.temperature", "(0, 2]", "for example 1"),
    ({"rollout__temperature": 2.5}, "--rollout.temperature", "2.5", "(0, 2]"),
    ({"rollout__temperature": float("nan")}, "--rollout.temperature", "nan", "(0, 2]"),
    ({"rollout__top_p": 0.0}, "--rollout.top_p", "(0, 1]", "(0, 1]"),
    ({"rollout__top_p": 1.5}, "--rollout.top_p", "1.5", "(0, 1]"),
    ({"rollout__batch_size": 0}, "--rollout.batch_size", "0", "[1, inf)"),
    ({"rollout__vllm_generate_batch_size": -1}, "--rollout.vllm_generate_batch_size", "-1", "[0, inf)"),
    ({"rollout__max_new_tokens": 0}, "--rollout.max_new_tokens", "0", "[1, inf)"),
    ({"train__micro_batch_size": 0}, "--train.micro_batch_size", "0", "[1, inf)"),
    ({"train__max_epochs": 0}, "--train.max_epochs", "0", "[1, inf)"),
    ({"train__num_episodes": 0}, "--train.num_episodes", "0", "[1, inf)"),
    ({"train__seed": -1}, "--train.seed", "-1", "42"),
    ({"train__seed": 1 << 32}, "--train.seed", "4294967296", "4294967295"),
    ({"train__async_enable": True, "train__async_queue_size": 0}, "--train.async_queue_size", "0", "[1, inf)"),
    ({"train__enable_ema": True, "train__ema_beta": 1.5}, "--train.ema_beta", "1.5", "[0, 1]"),
    ({"actor__adam__lr": 0.0}, "--actor.adam.lr", "nothing is learned", "(0, inf)"),
    ({"actor__adam__betas": [0.9, 1.0]}, "--actor.adam.betas", "0.9 1", "[0, 1)"),
    ({"actor__dual_clip": 1.0}, "--actor.dual_clip", "(1, inf)", "3"),
    ({"actor__eps_clip_low_high": [0.2, -0.1]}, "--actor.eps_clip_low_high", "-0.1", "0.2"),
    ({"actor__num_gpus_per_node": 0}, "--actor.num_gpus_per_node", "0", "[1, inf)"),
    ({"ref__num_gpus_per_node": 0}, "--ref.num_gpus_per_node", "0", "[1, inf)"),
    ({"actor__lr_warmup_ratio": 2.0}, "--actor.lr_warmup_ratio", "2", "[0, 1]"),
    ({"actor__lr_scheduler": "cosin"}, "--actor.lr_scheduler", "cosin", "cosine_with_min_lr"),
    ({"actor__lr_scheduler": "reduce_lr_on_plateau"}, "--actor.lr_scheduler", "metrics", "cosine_with_min_lr"),
    ({"actor__lr_scheduler": "warmup_stable_decay"}, "--actor.lr_scheduler", "can't be used", "cosine_with_min_lr"),
    ({"algo__advantage__gamma": 1.1}, "--algo.advantage.gamma", "1.1", "[0, 1]"),
    ({"ds__zero_stage": 4}, "--ds.zero_stage", "4", "[0, 3]"),
    ({"data__max_samples": 0}, "--data.max_samples", "0", "[1, inf)"),
    ({"vllm__gpu_memory_utilization": 1.2}, "--vllm.gpu_memory_utilization", "1.2", "(0, 1]"),
    ({"eval__steps": 0}, "--eval.steps", "divides", "-1 means never"),
    ({"ckpt__save_steps": 0}, "--ckpt.save_steps", "divides", "-1 means never"),
    ({"logger__logging_steps": 0}, "--logger.logging_steps", "divides", "positive"),
    ({"reward__stop_properly_penalty_coef": 1.5}, "--reward.stop_properly_penalty_coef", "1.5", "0.5"),
    ({"reward__overlong_buffer_len": 20.0}, "--reward.overlong_buffer_len", "longest response (16", "16 or less"),
    ({"reward__clip_range": [10, -10]}, "--reward.clip_range", "same", "lower bound first"),
    ({"train__partial_rollout_enable": True}, "--train.partial_rollout_enable", "async", "--train.async_enable"),
    (
        {"vllm__enable_sleep": True, "train__async_enable": True, "train__colocate_all": True},
        "--vllm.enable_sleep",
        "--train.async_enable",
        "drop it",
    ),
    ({"rollout__vllm_generate_batch_size": 8}, "--rollout.vllm_generate_batch_size", "8", "--train.async_enable"),
    ({"rollout__max_new_tokens": 129}, "--rollout.max_new_tokens", "--data.max_len 128", "raise --data.max_len"),
    (
        {"rollout__n_samples_per_prompt": 1, "train__batch_size": 4},
        "--rollout.n_samples_per_prompt",
        "group_norm",
        "2",
    ),
    (
        {
            "algo__dynamic_filtering_enable": True,
            "algo__advantage__estimator": "reinforce",
            "rollout__n_samples_per_prompt": 1,
            "train__batch_size": 4,
        },
        "--rollout.n_samples_per_prompt",
        "--algo.dynamic_filtering_enable",
        "2 or more",
    ),
    (
        {"algo__dynamic_filtering_enable": True, "algo__dynamic_filtering_range": [1.0, 0.0]},
        "--algo.dynamic_filtering_range",
        "keeps no rollout",
        "0 1",
    ),
    (
        {"reward__remote_url": None, "reward__model_name_or_path": "org/rm", "eval__dataset": "e.jsonl"}
        | {"reward__num_gpus_per_node": 1},
        "--eval.dataset",
        "rewards",
        "--reward.remote_url",
    ),
    (
        {"reward__remote_url": None, "reward__model_name_or_path": "a,b", "reward__num_gpus_per_node": 1},
        "--reward.model_name_or_path",
        "several",
        "single",
    ),
    (
        {"algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 1, "data__max_images_per_prompt": 1},
        "--algo.advantage.estimator",
        "images",
        "reinforce_baseline",
    ),
    (
        {"train__colocate_actor_ref": True, "ref__num_gpus_per_node": 2},
        "--train.colocate_actor_ref",
        "1 x 2",
        "--ref.",
    ),
    ({"train__colocate_all": True, "vllm__num_engines": 2}, "--train.colocate_all", "is 2", "both 1"),
    (
        {"algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 1, "train__colocate_critic_reward": True},
        "--train.colocate_critic_reward",
        "1 x 8",
        "--reward.num_gpus_per_node 1",
    ),
    (
        {"algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 2, "train__colocate_all": True},
        "--critic.num_gpus_per_node",
        "don't fit",
        "--critic.num_gpus_per_node 1",
    ),
    ({"ds__grad_accum_dtype": "float64"}, "--ds.grad_accum_dtype", "float64", "fp32"),
    ({"ds__lora__rank": 8}, "--ds.lora.rank", "vLLM", "0"),
    ({"data__prompt_probs": "0.5,0.5"}, "--data.prompt_probs", "2 values for 1", "per dataset"),
    ({"data__prompt_probs": "half"}, "--data.prompt_probs", "numbers", "0.7,0.3"),
    ({"data__prompt_dataset": "a,b", "data__prompt_probs": "0.5,0.4"}, "--data.prompt_probs", "0.9", "add up to 1"),
    ({"data__prompt_dataset": "a,b", "data__prompt_probs": "0,1"}, "--data.prompt_probs", "never", "drop"),
]


@pytest.mark.parametrize(("changes", "flag", "what", "fix"), BAD, ids=[f"{i} {case[1]}" for i, case in enumerate(BAD)])
def test_a_bad_flag_is_named_with_a_fix(run: Run, changes: dict[str, Any], flag: str, what: str, fix: str) -> None:
    problem = only(arguments.check(run(**changes)), flag)
    assert what in problem.what and fix in problem.fix
    assert f"{problem}".startswith(f"{flag}: ") and "Fix: " in f"{problem}"


ON_CPU: list[tuple[dict[str, Any], str]] = [
    ({"ds__packing_samples": True}, "--ds.packing_samples"),
    ({"train__dynamic_batch_enable": True}, "--train.dynamic_batch_enable"),
    ({"ds__attn_implementation": "flash_attention_2"}, "--ds.attn_implementation"),
    ({"ds__use_liger_kernel": True}, "--ds.use_liger_kernel"),
    ({"ds__deepcompile": True}, "--ds.deepcompile"),
    ({"ds__param_dtype": "bf16"}, "--ds.param_dtype"),
    ({"vllm__sync_backend": "nccl"}, "--vllm.sync_backend"),
    ({"vllm__sync_with_ray": True}, "--vllm.sync_with_ray"),
    ({"vllm__tensor_parallel_size": 2}, "--vllm.tensor_parallel_size"),
    ({"ds__enable_sleep": True, "ds__zero_stage": 3}, "--ds.enable_sleep"),
    ({"vllm__enable_sleep": True, "train__colocate_all": True}, "--vllm.enable_sleep"),
    ({"ds__ring_attn_size": 2, "actor__num_gpus_per_node": 2, "ref__num_gpus_per_node": 2}, "--ds.ring_attn_size"),
]


@pytest.mark.parametrize(("changes", "flag"), ON_CPU, ids=[flag for _, flag in ON_CPU])
def test_what_needs_a_gpu_is_refused_on_the_cpu_only(
    run: Run, on_cuda: dict[str, Any], changes: dict[str, Any], flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert arguments.check(run(**on_cuda | changes)) == []
    monkeypatch.undo()
    problem = only(arguments.check(run(**changes)), flag)
    assert "CPU platform" in problem.what and problem.fix


def test_4bit_on_the_cpu_and_without_bf16(run: Run) -> None:
    assert {p.flag for p in arguments.check(run(ds__load_in_4bit=True))} == {"--ds.load_in_4bit"}


def test_a_bad_pace_flag_is_reported_like_the_others(run: Run) -> None:
    problem = only(arguments.check(run(pace__gamma=0.0)), "--pace.gamma")
    assert "0.01" in problem.what and problem.fix == "use 1, 2 or 4"


def test_all_problems_come_at_once(run: Run) -> None:
    problems = arguments.check(run(rollout__top_p=2.0, train__seed=-1, vllm__num_engines=0))
    assert {p.flag for p in problems} == {"--rollout.top_p", "--train.seed", "--vllm.num_engines"}


THRESHOLDS = ([0.5], [0.0, 5.0], [0.5, 5.0])
COMBINATIONS = [
    *itertools.product(("off", "token", "seq"), ("mask", "clip"), ("ratio", "binary_kl", "tv"), THRESHOLDS)
]


@pytest.mark.parametrize(("level", "mode", "gating", "threshold"), COMBINATIONS)
def test_correction_rules_are_those_of_upstreams_loss(
    run: Run, level: str, mode: str, gating: str, threshold: list[float]
) -> None:
    from openrlhf.models.loss import PolicyLoss

    names = ("level", "mode", "gating", "threshold")
    values = dict(zip(names, (level, mode, gating, threshold), strict=True))
    args = run(**{f"algo__advantage__is_correction_{name}": value for name, value in values.items()})
    bounds = threshold if len(threshold) == 2 else [0.0, *threshold]
    try:
        PolicyLoss(**{f"is_correction_{name}": value for name, value in (values | {"threshold": bounds}).items()})
        accepted = True
    except ValueError:
        accepted = False
    assert (not [*conflicts._correction(args)]) == accepted


def test_readings_are_upstreams(run: Run) -> None:
    assert reading.critic_path(run(algo__advantage__estimator="gae")) == run().actor.model_name_or_path
    modelled = {"algo__advantage__estimator": "gae", "reward__remote_url": None}
    assert reading.critic_path(run(**modelled, reward__model_name_or_path="a,b")) == "a"
    assert reading.critic_path(run(**modelled)) is None
    assert reading.critic_path(run(critic__model_name_or_path="c")) is None  # group_norm trains none
    assert [g.name for g in reading.groups(run(algo__kl__init_coef=0.0))] == ["actor"]
    assert reading.prompts_per_step(run(rollout__vllm_generate_batch_size=3)) == 3
