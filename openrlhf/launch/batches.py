"""Batch arithmetic: what one training step's rollouts become on each process.

Invariant: a problem here is a run that upstream would crash, hang or never update with. Upstream deals rollouts out in
chunks; processes with different numbers of micro-batches wait for one another in a collective for ever. Pure, so that
the checks of the flags and of the dataset's last, smaller step share it.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf.launch import reading
from openrlhf.launch.problem import Problem

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deal:
    """How `rollouts` are dealt to `processes` in micro-batches of `micro` rollouts, as upstream's groups do it."""

    rollouts: int
    micro: int
    processes: int

    @property
    def micro_batches(self) -> int:
        return -(-self.rollouts // self.micro)

    def shares(self) -> list[int]:
        """Rollouts on each process."""
        chunk = -(-self.micro_batches // self.processes) * self.micro
        return [max(0, min(chunk, self.rollouts - rank * chunk)) for rank in range(self.processes)]


def check(args: SimpleNamespace) -> Iterator[Problem]:
    """Needs numbers that passed `ranges.check`."""
    unsplit = [*_whole_replicas(args)]
    yield from unsplit
    if unsplit:
        return
    yield from _accumulation(args)
    yield from _enough_rollouts(args)
    rollouts = reading.prompts_per_step(args) * args.rollout.n_samples_per_prompt
    if (what := step_fault(args, rollouts)) is not None:
        yield Problem(
            "--rollout.batch_size",
            f"a step's {rollouts} rollouts (--rollout.batch_size x --rollout.n_samples_per_prompt) {what}",
            f"make it so that each process gets as many: a multiple of {step_unit(args)} rollouts works, or lower "
            "--rollout.micro_batch_size",
        )


def step_fault(args: SimpleNamespace, rollouts: int) -> str | None:
    """What goes wrong in a step with so many rollouts; None when nothing does."""
    for group in reading.groups(args):
        processes = data_parallel(args, group)
        deal = Deal(rollouts, args.rollout.micro_batch_size, processes)
        where = f"the {processes} data-parallel processes of the {group.name} model"
        if args.train.dynamic_batch_enable:
            if rollouts < processes:
                return f"are too few for {where}: upstream stops with 'Insufficient batch size'"
            continue
        if deal.micro_batches < processes:
            return (
                f"in micro-batches of {deal.micro} are {deal.micro_batches} sample batches, too few for {where}: "
                "upstream stops with 'Insufficient batch size'"
            )
        uneven = _uneven(args, group, deal)
        if uneven:
            return f"give {where} {uneven} ({_listed(deal.shares())} rollouts): the run would wait for ever"
    return None


def step_unit(args: SimpleNamespace) -> int:
    """A number of rollouts whose every multiple can be dealt evenly to every group."""
    micro = 1 if args.train.dynamic_batch_enable else args.rollout.micro_batch_size
    unit = 1
    for group in reading.groups(args):
        unit = math.lcm(unit, data_parallel(args, group) * micro)
    return unit


def _uneven(args: SimpleNamespace, group: reading.Group, deal: Deal) -> str | None:
    """The unequal counts that make processes wait for each other: update batches, or forward passes under ZeRO-3."""
    shares = deal.shares()
    if group.name in ("actor", "critic"):
        updates = [share // args.train.micro_batch_size for share in shares]
        if len(set(updates)) > 1:
            return "unequal numbers of training micro-batches"
    if args.ds.zero_stage == 3 and len({-(-share // deal.micro) for share in shares}) > 1:
        return "unequal numbers of forward passes, which ZeRO-3 does in step"
    return None


def _listed(shares: list[int]) -> str:
    return ", ".join(map(str, shares if len(shares) <= 8 else [*shares[:3], "...", *shares[-3:]]))


def _whole_replicas(args: SimpleNamespace) -> Iterator[Problem]:
    copies = reading.duplicates(args)
    for group in reading.groups(args):
        if group.world % copies:
            yield Problem(
                f"--{group.name}.num_gpus_per_node",
                f"{group.world} processes of the {group.name} model can't be split into --ds.ring_attn_size x "
                f"--ds.tensor_parallel_size = {copies}",
                f"make --{group.name}.num_nodes x --{group.name}.num_gpus_per_node a multiple of {copies}",
            )


def _accumulation(args: SimpleNamespace) -> Iterator[Problem]:
    """DeepSpeed wants train_batch = micro_batch x accumulation x processes exactly, of frozen models as well."""
    seen: set[int] = set()
    for group in reading.groups(args):
        trained = group.name in ("actor", "critic")
        if trained and args.train.dynamic_batch_enable and not (group.name == "actor" and args.train.enable_ema):
            continue  # upstream then passes DeepSpeed other numbers; frozen copies get these all the same
        processes = data_parallel(args, group)
        unit = args.train.micro_batch_size * processes
        if args.train.batch_size % unit and processes not in seen:
            seen.add(processes)
            yield Problem(
                "--train.batch_size",
                f"{args.train.batch_size} is no multiple of --train.micro_batch_size x the {processes} data-parallel "
                f"processes of the {group.name} model = {unit}",
                f"use a multiple of {unit}, for example {-(-args.train.batch_size // unit) * unit}",
            )


def _enough_rollouts(args: SimpleNamespace) -> Iterator[Problem]:
    rollouts = reading.prompts_per_step(args) * args.rollout.n_samples_per_prompt
    product = "--rollout.batch_size x --rollout.n_samples_per_prompt"
    if reading.prompts_per_step(args) < args.rollout.batch_size:
        product = "--rollout.vllm_generate_batch_size x --rollout.n_samples_per_prompt"
    if rollouts < args.train.batch_size:
        yield Problem(
            "--train.batch_size",
            f"{args.train.batch_size} is more than a step's rollouts, {product} = {rollouts}: "
            "most steps would update nothing",
            f"use --train.batch_size {rollouts} or less, or more rollouts",
        )
    elif rollouts % args.train.batch_size and not args.train.dynamic_batch_enable:
        # Upstream trains on the rest with the next step's first micro-batches: worth knowing, no reason to stop.
        logger.warning(
            "%s = %d is no multiple of --train.batch_size %d: the rest of a step shares its update with the next step",
            product,
            rollouts,
            args.train.batch_size,
        )
    actor = reading.actor(args)
    if args.train.dynamic_batch_enable and args.train.batch_size < data_parallel(args, actor):
        yield Problem(
            "--train.batch_size",
            f"{args.train.batch_size} is less than the actor's {data_parallel(args, actor)} data-parallel processes",
            f"use at least {data_parallel(args, actor)}",
        )
    yield from _sample_batches(args, actor)


def _sample_batches(args: SimpleNamespace, actor: reading.Group) -> Iterator[Problem]:
    """Upstream's own assertion, which counts whole micro-batches of a full step."""
    full = args.rollout.n_samples_per_prompt * args.rollout.batch_size // args.rollout.micro_batch_size
    if full < data_parallel(args, actor):
        yield Problem(
            "--rollout.micro_batch_size",
            f"a step has {full} sample batches of {args.rollout.micro_batch_size}, fewer than the actor's "
            f"{data_parallel(args, actor)} data-parallel processes",
            "lower --rollout.micro_batch_size, or raise --rollout.batch_size or --rollout.n_samples_per_prompt",
        )


def data_parallel(args: SimpleNamespace, group: reading.Group) -> int:
    """Processes of a group that work on different data."""
    return group.world // reading.duplicates(args)
