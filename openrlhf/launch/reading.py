"""What upstream makes of the parsed flags, worked out without changing them.

Invariant: these are the rules of upstream's `train_ppo_ray` (its adjustments after parsing and its `train`), each said
once. The checks and the resource plan use them, so they agree on which models run, where, and on how many processes.
"""

from dataclasses import dataclass, replace
from functools import reduce
from types import SimpleNamespace
from typing import Any

from pace.config import PaceConfig, from_args

GROUP_ESTIMATORS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


@dataclass(frozen=True)
class Group:
    """One model on `nodes` x `gpus_per_node` processes; `name` is the first part of its flags."""

    name: str
    nodes: int
    gpus_per_node: int

    @property
    def world(self) -> int:
        return self.nodes * self.gpus_per_node


def value(args: SimpleNamespace, name: str) -> Any:
    """The value of the flag `--name`."""
    return reduce(getattr, name.split("."), args)


def reward_endpoints(args: SimpleNamespace) -> list[str]:
    """Reward servers or the reward file, as the engines see them; empty when an agent or a reward model scores."""
    if args.train.agent_func_path or not args.reward.remote_url:
        return []
    return args.reward.remote_url.split(",")


def scored_by_engines(args: SimpleNamespace) -> bool:
    """True when rewards come with the rollouts, so that no reward model is started."""
    return bool(args.train.agent_func_path or args.reward.remote_url)


def critic_path(args: SimpleNamespace) -> str | None:
    """The critic's model; None without a critic, or when the flags name no model that it could be."""
    if args.algo.advantage.estimator != "gae":
        return None
    if args.critic.model_name_or_path is not None:
        return args.critic.model_name_or_path
    if scored_by_engines(args):
        return args.actor.model_name_or_path
    return args.reward.model_name_or_path.split(",")[0] if args.reward.model_name_or_path else None


def has_critic(args: SimpleNamespace) -> bool:
    return args.algo.advantage.estimator == "gae"


def groups(args: SimpleNamespace) -> list[Group]:
    """The model groups that upstream starts, in its order."""
    running = {
        "actor": True,
        "ref": args.algo.kl.init_coef > 0,
        "critic": has_critic(args),
        "reward": not scored_by_engines(args),
    }
    flags = {name: getattr(args, name) for name, runs in running.items() if runs}
    return [Group(name, flag.num_nodes, flag.num_gpus_per_node) for name, flag in flags.items()]


def actor(args: SimpleNamespace) -> Group:
    """The policy's group, which every run has."""
    return groups(args)[0]


def duplicates(args: SimpleNamespace) -> int:
    """Processes that work on the same data: ring attention times tensor parallelism."""
    return args.ds.ring_attn_size * args.ds.tensor_parallel_size


def engines_share_gpus(args: SimpleNamespace) -> bool:
    """Whether the vLLM engines live on the actor's GPUs."""
    return args.train.colocate_all and not args.train.async_enable


def engine_gpus(args: SimpleNamespace) -> int:
    return (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size


def prompts_per_generation(args: SimpleNamespace) -> int:
    return args.rollout.vllm_generate_batch_size or args.rollout.batch_size


def prompts_per_step(args: SimpleNamespace) -> int:
    """Prompts whose rollouts one training step gets. A smaller generation batch isn't topped up; the pool has none."""
    if trains_from_pool(args):
        return args.rollout.batch_size
    return min(args.rollout.batch_size, prompts_per_generation(args))


def trains_from_pool(args: SimpleNamespace) -> bool:
    """Whether training batches come from the trajectory pool, which hands out whole ones only."""
    return _enabled(args, "pace") or grows_trees(args)


def grows_trees(args: SimpleNamespace) -> bool:
    """Whether the pool's groups are rollout trees."""
    return _enabled(args, "trace")


def pool_settings(args: SimpleNamespace) -> PaceConfig:
    """The pool's settings; trees without `--pace.enable` are trained synchronously. Raises as `from_args`."""
    config = from_args(args)
    return replace(config, enable=True, strict=True) if grows_trees(args) and not config.enable else config


def _enabled(args: SimpleNamespace, group: str) -> bool:
    return getattr(getattr(args, group, None), "enable", False) is True  # a caller's stand-in for args has any name
