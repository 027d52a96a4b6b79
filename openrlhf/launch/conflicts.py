"""Flags that don't go together, or not with the CPU platform, or that lack a partner.

Invariant: each rule is one that upstream asserts, crashes on or silently doesn't train with; a combination that
upstream merely adjusts (ring attention turning on packing, say) passes. Pure.
"""

from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf.launch import reading
from openrlhf.launch.problem import Problem

# DeepSpeed's names for the data type of accumulated gradients.
GRADIENT_TYPES = ("fp32", "float32", "float", "bf16", "bfloat16", "fp16", "float16", "half")


def check(args: SimpleNamespace) -> Iterator[Problem]:
    yield from _missing(args)
    yield from _rewards(args)
    yield from _rollouts(args)
    yield from _estimator(args)
    yield from _correction(args)
    yield from _placement(args)
    yield from _training(args)
    yield from _data(args)


def _missing(args: SimpleNamespace) -> Iterator[Problem]:
    if not args.actor.model_name_or_path:
        yield Problem("--actor.model_name_or_path", "is missing", "name the model to train: a folder or org/name")
    if not args.data.prompt_dataset:
        yield Problem("--data.prompt_dataset", "is missing", "name a .jsonl file, a dataset's folder or org/name")
    if not args.vllm.num_engines or args.vllm.num_engines < 0:
        yield Problem(
            "--vllm.num_engines", f"is {args.vllm.num_engines}, and rollouts come from vLLM only", "use 1 or more"
        )


def _rewards(args: SimpleNamespace) -> Iterator[Problem]:
    scored = reading.scored_by_engines(args)
    if not scored and not args.reward.model_name_or_path:
        yield Problem(
            "--reward.remote_url",
            "is missing, and there is neither --train.agent_func_path nor --reward.model_name_or_path: nothing scores "
            "the rollouts",
            "pass one of the three; --reward.remote_url takes a .py file with a `reward_func`, or URLs",
        )
    if args.train.agent_func_path and args.reward.remote_url:
        yield Problem(
            "--reward.remote_url",
            "is never called beside --train.agent_func_path: the agent's own rewards are used",
            "drop one of the two; an agent can call a reward server itself",
        )
    if not scored and "," in (args.reward.model_name_or_path or ""):
        yield Problem("--reward.model_name_or_path", "names several models, and one is loaded", "name a single one")
    if args.eval.dataset and not scored:
        yield Problem(
            "--eval.dataset",
            "needs rewards that come with the rollouts; a reward model isn't asked at evaluation",
            "add --reward.remote_url or --train.agent_func_path, or drop --eval.dataset",
        )
    low, high = args.reward.clip_range
    if not low < high:
        yield Problem(
            "--reward.clip_range",
            f"{low:g} {high:g} makes every reward the same: nothing is learned",
            "give the lower bound first, for example -10 10",
        )
    buffer = args.reward.overlong_buffer_len
    longest = args.rollout.max_new_tokens or args.data.max_len
    if buffer is not None and buffer > longest:
        yield Problem(
            "--reward.overlong_buffer_len",
            f"{buffer:g} is longer than the longest response ({longest} tokens)",
            f"use {longest} or less",
        )


def _rollouts(args: SimpleNamespace) -> Iterator[Problem]:
    if args.train.partial_rollout_enable and not args.train.async_enable:
        yield Problem(
            "--train.partial_rollout_enable", "works in async training only", "add --train.async_enable, or drop it"
        )
    if args.vllm.enable_sleep and args.train.async_enable and args.train.colocate_all:
        yield Problem(
            "--vllm.enable_sleep", "can't be used with --train.async_enable: the engines never rest", "drop it"
        )
    if reading.prompts_per_generation(args) > args.rollout.batch_size and not args.train.async_enable:
        yield Problem(
            "--rollout.vllm_generate_batch_size",
            f"{args.rollout.vllm_generate_batch_size} is more than --rollout.batch_size {args.rollout.batch_size}, "
            "which only async training can buffer",
            f"add --train.async_enable, or use {args.rollout.batch_size} or less",
        )
    longest = args.rollout.max_new_tokens
    if longest is not None and longest > args.data.max_len:
        yield Problem(
            "--rollout.max_new_tokens",
            f"{longest} is more than --data.max_len {args.data.max_len}, which prompt and response share: prompts "
            "would be cut from the front",
            f"use less than {args.data.max_len} minus the longest prompt, or raise --data.max_len",
        )
    if args.algo.dynamic_filtering_enable:
        yield from _filtering(args)


def _filtering(args: SimpleNamespace) -> Iterator[Problem]:
    low, high = args.algo.dynamic_filtering_range
    if not low < high:
        yield Problem(
            "--algo.dynamic_filtering_range", f"{low:g} {high:g} keeps no rollout", "give the lower one first: 0 1"
        )
    if not reading.scored_by_engines(args):
        yield Problem(
            "--algo.dynamic_filtering_enable",
            "needs rewards that come with the rollouts",
            "add --reward.remote_url or --train.agent_func_path, or drop it",
        )
    if args.rollout.n_samples_per_prompt == 1:
        yield Problem(
            "--rollout.n_samples_per_prompt",
            "is 1, and --algo.dynamic_filtering_enable compares the samples of a prompt",
            "use 2 or more, or drop --algo.dynamic_filtering_enable",
        )


def _estimator(args: SimpleNamespace) -> Iterator[Problem]:
    estimator = args.algo.advantage.estimator
    if estimator in reading.GROUP_ESTIMATORS and args.rollout.n_samples_per_prompt == 1:
        yield Problem(
            "--rollout.n_samples_per_prompt",
            f"is 1, and --algo.advantage.estimator {estimator} compares the samples of a prompt: every advantage is 0",
            "use 2 or more, or an estimator without a group baseline (reinforce, flash_reinforce, gae)",
        )
    if args.data.max_images_per_prompt > 0 and estimator == "gae":
        yield Problem(
            "--algo.advantage.estimator",
            "gae trains a critic, which can't read images (--data.max_images_per_prompt)",
            "use reinforce_baseline, rloo, group_norm or another one without a critic",
        )


def _correction(args: SimpleNamespace) -> Iterator[Problem]:
    """The rules of upstream's PolicyLoss, some of which count even when the correction is off."""
    advantage = args.algo.advantage
    mode, level, gating = (
        advantage.is_correction_mode,
        advantage.is_correction_level,
        advantage.is_correction_gating,
    )
    threshold = advantage.is_correction_threshold
    flag = "--algo.advantage.is_correction_threshold"
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        yield Problem(
            "--algo.advantage.is_correction_mode",
            "clip needs a per-token ratio to clamp",
            "use mask, or --algo.advantage.is_correction_level token with --algo.advantage.is_correction_gating ratio",
        )
    if len(threshold) not in (1, 2):
        yield Problem(flag, f"got {len(threshold)} values", "give HIGH, or LOW HIGH")
        return
    low, high = (0.0, *threshold) if len(threshold) == 1 else threshold
    if level == "off":
        return
    if gating != "ratio" and low > 0:
        yield Problem(
            flag,
            f"{low:g} is a lower bound, and --algo.advantage.is_correction_gating {gating} takes an upper bound only",
            "give a single number, for example 0.05",
        )
    elif not 0 <= low < high:
        yield Problem(flag, f"{low:g} to {high:g} lets no token pass", "give HIGH, or LOW HIGH with LOW < HIGH")


def _placement(args: SimpleNamespace) -> Iterator[Problem]:
    groups = {group.name: group for group in reading.groups(args)}
    actor = groups["actor"]
    if args.train.colocate_all or args.train.colocate_actor_ref:
        flag = "--train.colocate_all" if args.train.colocate_all else "--train.colocate_actor_ref"
        yield from _same_size(flag, actor, groups.get("ref"))
    if args.train.colocate_critic_reward and "critic" in groups:
        # Upstream compares the two even when no reward model is started.
        reward = reading.Group("reward", args.reward.num_nodes, args.reward.num_gpus_per_node)
        yield from _same_size("--train.colocate_critic_reward", groups["critic"], reward)
    engines = reading.engine_gpus(args)
    if reading.engines_share_gpus(args) and engines > 0 and actor.world != engines:
        yield Problem(
            "--train.colocate_all",
            f"puts the engines on the actor's {actor.world} GPUs, and --vllm.num_engines x "
            f"--vllm.tensor_parallel_size is {engines}",
            f"make both {actor.world}, or drop it",
        )
    if not args.train.colocate_all:
        return
    own_bundles = args.train.colocate_critic_reward and "critic" in groups
    for name in () if own_bundles else ("critic", "reward"):
        if name in groups and groups[name].world > actor.world:
            yield Problem(
                f"--{name}.num_gpus_per_node",
                f"the {name} model's {groups[name].world} processes don't fit on the actor's {actor.world} GPUs, "
                "where --train.colocate_all puts them",
                f"use --{name}.num_nodes {actor.nodes} --{name}.num_gpus_per_node {actor.gpus_per_node}",
            )


def _same_size(flag: str, first: reading.Group, second: reading.Group | None) -> Iterator[Problem]:
    if second is None or (first.nodes, first.gpus_per_node) == (second.nodes, second.gpus_per_node):
        return
    yield Problem(
        flag,
        f"needs {first.name} and {second.name} of one size, and num_nodes x num_gpus_per_node is {first.nodes} x "
        f"{first.gpus_per_node} for --{first.name} and {second.nodes} x {second.gpus_per_node} for --{second.name}",
        f"add --{second.name}.num_nodes {first.nodes} --{second.name}.num_gpus_per_node {first.gpus_per_node}",
    )


def _training(args: SimpleNamespace) -> Iterator[Problem]:
    packs = args.ds.packing_samples or args.ds.ring_attn_size > 1 or args.train.dynamic_batch_enable
    if args.data.max_images_per_prompt > 0 and args.ds.packing_samples:
        yield Problem("--ds.packing_samples", "can't be used with images (--data.max_images_per_prompt)", "drop it")
    elif args.data.max_images_per_prompt > 0 and packs:
        flag = "--ds.ring_attn_size" if args.ds.ring_attn_size > 1 else "--train.dynamic_batch_enable"
        yield Problem(flag, "packs samples, which can't be done with images (--data.max_images_per_prompt)", "drop it")
    if args.ds.load_in_4bit and args.ds.param_dtype != "bf16":
        yield Problem("--ds.load_in_4bit", f"needs --ds.param_dtype bf16, not {args.ds.param_dtype}", "use bf16")
    if args.ds.lora.rank > 0 and not reading.trains_from_pool(args):
        # The update sends PEFT's own names (`base_model.model...`): vLLM knows none of them and the run ends. The pool
        # pipeline's weight sync merges adapters.
        yield Problem(
            "--ds.lora.rank",
            "above 0 can't be used here: vLLM can't load an adapter's weights at the first weight sync",
            "use 0, add --train.async_enable --pace.enable, or train with LoRA in train_sft, train_dpo or train_rm",
        )
    if args.ds.tensor_parallel_size > 1 and args.ds.param_dtype != "bf16":
        yield Problem(
            "--ds.tensor_parallel_size",
            f"above 1 needs --ds.param_dtype bf16, not {args.ds.param_dtype}",
            "use bf16 (on a GPU), or 1",
        )
    if args.ds.grad_accum_dtype not in (None, *GRADIENT_TYPES):
        yield Problem(
            "--ds.grad_accum_dtype", f"{args.ds.grad_accum_dtype} is no type DeepSpeed knows", "use fp32 or bf16"
        )


def _data(args: SimpleNamespace) -> Iterator[Problem]:
    if args.data.prompt_probs is None or not args.data.prompt_dataset:
        return
    flag, names = "--data.prompt_probs", args.data.prompt_dataset.split(",")
    try:
        shares = [float(share) for share in args.data.prompt_probs.split(",")]
    except ValueError:
        yield Problem(flag, f"{args.data.prompt_probs} isn't a list of numbers", "give numbers with commas: 0.7,0.3")
        return
    if len(shares) != len(names):
        yield Problem(flag, f"has {len(shares)} values for {len(names)} datasets", "give one value per dataset")
    elif min(shares) <= 0:
        yield Problem(flag, f"{args.data.prompt_probs} never draws from one of the datasets", "drop that dataset")
    elif abs(sum(shares) - 1) > 1e-8:  # NumPy's own tolerance
        yield Problem(flag, f"{args.data.prompt_probs} adds up to {sum(shares)}", "make the values add up to 1")
