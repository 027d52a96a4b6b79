"""What upstream's `train` asks Ray for, and whether a cluster can ever give it.

Invariant: a plan names every placement-group bundle and every stand-alone actor of a run, as upstream's `train`,
`RayActorGroup` and `create_vllm_engines` request them. Ray waits for ever for a request that no node can satisfy.
The controllers (trainer, generator, queues) hold no CPU: Ray places them on a node that has one at all.

A cluster that grows (autoscaling) may satisfy later what it can't now: OPENRLHF_RESOURCE_CHECK=warn turns the problems
into warnings in the log. Totals are compared, not what is free: waiting for another job to end is legitimate.
"""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf import platforms
from openrlhf.launch import reading
from openrlhf.launch.problem import Problem

logger = logging.getLogger(__name__)

VARIABLE = "OPENRLHF_RESOURCE_CHECK"


@dataclass(frozen=True)
class Bundle:
    """One indivisible request: it must fit on one node. `name` is the model it is for."""

    name: str
    gpus: float = 1
    cpus: int = 1


@dataclass(frozen=True)
class Plan:
    """All of a run's requests. `actors_cpus` is what a node needs for the controllers to be placed, and isn't held."""

    bundles: tuple[Bundle, ...]
    actors_cpus: int = 1

    @property
    def gpus(self) -> float:
        return sum(bundle.gpus for bundle in self.bundles)

    @property
    def cpus(self) -> int:
        return max(sum(bundle.cpus for bundle in self.bundles), self.actors_cpus)

    def by_name(self) -> dict[str, int]:
        """Number of bundles for each name, in the order of the requests."""
        names = [bundle.name for bundle in self.bundles]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {count}" for name, count in self.by_name().items())
        return f"{self.gpus:g} GPUs and {self.cpus} CPUs ({parts})"


def plan(args: SimpleNamespace) -> Plan:
    """The requests of a run with these flags."""
    groups = {group.name: group for group in reading.groups(args)}
    bundles: list[Bundle] = []
    shared = args.train.colocate_all or args.train.colocate_actor_ref
    with_actor = {"actor", "ref"} if shared else set()
    if args.train.colocate_all:
        with_actor |= {"critic", "reward"}
    with_critic: set[str] = set()
    if args.train.colocate_critic_reward and "critic" in groups:
        with_critic = {"critic", "reward"}
        with_actor -= with_critic
    for leader, members in (("actor", with_actor), ("critic", with_critic)):
        if members:
            name = "+".join(name for name in groups if name in members)
            if leader == "actor" and reading.engines_share_gpus(args) and reading.engine_gpus(args):
                name += "+vllm"
            bundles += [Bundle(name)] * groups[leader].world
    if reading.engine_gpus(args) and not reading.engines_share_gpus(args):
        bundles += [Bundle("vllm")] * reading.engine_gpus(args)
    # A group of one GPU per node makes no placement group, but each of its actors asks for the same.
    for name, group in groups.items():
        if name not in with_actor | with_critic:
            bundles += [Bundle(name)] * group.world
    if reading.grows_trees(args) and args.trace.predictor_gpus > 0:
        bundles.append(Bundle("predictor", gpus=args.trace.predictor_gpus, cpus=0))
    return Plan(tuple(bundles))


def check(
    plan: Plan, cluster_resources: Mapping[str, float], per_node: Sequence[Mapping[str, float]]
) -> list[Problem]:
    """Problems of a plan with a cluster's total resources and those of each live node."""
    problems = [*_missing(plan, cluster_resources)] or [*_unplaceable(plan, per_node)]
    if problems and os.environ.get(VARIABLE) == "warn":
        for problem in problems:
            logger.warning("%s (%s=warn: going on)", problem, VARIABLE)
        return []
    return problems


def _missing(plan: Plan, total: Mapping[str, float]) -> Iterator[Problem]:
    for resource, wanted in (("GPU", plan.gpus), ("CPU", plan.cpus)):
        have = total.get(resource, 0.0)
        if have < wanted:
            yield Problem(
                "Ray", f"the run asks for {plan}, and the cluster has {have:g} {resource}s", _fix(plan, resource)
            )


def _unplaceable(plan: Plan, per_node: Sequence[Mapping[str, float]]) -> Iterator[Problem]:
    """First fit, largest first: exact for upstream's bundles, which are all alike."""
    free = [[node.get("GPU", 0.0), node.get("CPU", 0.0)] for node in per_node]
    left_over: list[Bundle] = []
    for bundle in sorted(plan.bundles, key=lambda bundle: (bundle.gpus, bundle.cpus), reverse=True):
        for node in free:
            if node[0] >= bundle.gpus and node[1] >= bundle.cpus:
                node[0] -= bundle.gpus
                node[1] -= bundle.cpus
                break
        else:
            left_over.append(bundle)
    if left_over:
        nodes = ", ".join(f"{n.get('GPU', 0.0):g} GPUs and {n.get('CPU', 0.0):g} CPUs" for n in per_node)
        yield Problem(
            "Ray",
            f"{len(left_over)} of {len(plan.bundles)} parts ({left_over[0].name}: {left_over[0].gpus:g} GPU and "
            f"{left_over[0].cpus} CPU on one node) fit on no node (nodes have {nodes})",
            "start the nodes with at least as many CPUs as GPUs (`ray start --num-cpus N`), or add nodes",
        )


def _fix(plan: Plan, resource: str) -> str:
    grow = f"set {VARIABLE}=warn if the cluster grows by itself"
    if platforms.name() == "cpu":
        return (
            "GPUs are only numbers on the CPU platform: set RAY_ADDRESS=local and train_ppo_ray starts its own Ray, "
            f"or start yours with `ray start --head --num-gpus {math.ceil(plan.gpus)} --num-cpus {plan.cpus}`"
        )
    if resource == "CPU":
        return f"start Ray with at least --num-cpus {plan.cpus} in all, or add nodes; {grow}"
    return (
        "lower --actor.num_gpus_per_node, --ref.num_gpus_per_node, --critic.num_gpus_per_node, "
        "--reward.num_gpus_per_node or --vllm.num_engines, share GPUs with --train.colocate_all, or add nodes; "
        f"{grow}"
    )
