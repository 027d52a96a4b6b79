"""The pool pipeline's own checks: its flags, what goes with them, and its part of a checkpoint.

Invariant: each rule is one that the pipeline would crash on, silently ignore, or measure nonsense by. Not a rule:
`--pace.max_inflight_groups` below a batch. Admission leaves room for a whole batch whenever the trainer waits, so
groups then come in portions and the batch fills up all the same. `check` is pure; the others read the checkpoint.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

from openrlhf.launch import reading
from openrlhf.launch.checkpoints import AFRESH
from openrlhf.launch.checkpoints import FLAG as LOAD
from openrlhf.launch.problem import Problem
from pace.config import PaceConfig, flag
from pace.durable import STATE, saved_folder
from pace.leased_pool import LeasedPool
from pace.state import State

QUEUE_SIZE = 1  # upstream's default


def check(args: SimpleNamespace) -> Iterator[Problem]:
    """The flags alone."""
    if not hasattr(args, "pace"):
        return
    try:
        config = reading.pool_settings(args)
        if config.enable and args.rollout.batch_size >= 1:
            config.capacity(args.rollout.batch_size)
    except ValueError as error:  # its text is `--pace.x <what>: <fix>`
        name, _, rest = f"{error}".partition(" ")
        what, _, fix = rest.rpartition(": ")
        yield Problem(name, what or rest, fix if what else "see --help for its range")
        return
    if not config.enable:
        yield from _idle(config)
        return
    yield from _pipeline(args)
    yield from _drift(args, config)
    yield from _strict(config)
    yield from _loss(args, config)


def log_dir(args: SimpleNamespace) -> str | None:
    """The folder of the decision log, where it isn't --ckpt.path."""
    return (args.pace.log_dir or None) if reading.trains_from_pool(args) else None


# Flags.


def _changed(config: PaceConfig) -> list[str]:
    """The fields that aren't at their defaults."""
    return [f.name for f in fields(config) if getattr(config, f.name) != f.default]


def _idle(config: PaceConfig) -> Iterator[Problem]:
    names = [flag(name) for name in _changed(config)]
    if not names:
        return
    others = f", and neither do {', '.join(names[1:])}" if names[1:] else ""
    drop = "drop them" if names[1:] else "drop it"
    yield Problem(
        names[0],
        f"does nothing without --pace.enable{others}",
        f"add --pace.enable (with --train.async_enable), or {drop}",
    )


def _pipeline(args: SimpleNamespace) -> Iterator[Problem]:
    """What upstream's queue of whole batches has, and the pool hasn't."""
    if not args.train.async_enable and not reading.grows_trees(args):
        yield Problem(
            "--pace.enable",
            "works in asynchronous training only: without it nothing comes from the pool",
            "add --train.async_enable (and --pace.strict for synchronous training), or drop every --pace.* flag",
        )
    if args.rollout.vllm_generate_batch_size:
        yield Problem(
            "--rollout.vllm_generate_batch_size",
            "does nothing with --pace.enable: prompts are rolled out one by one, not in batches",
            "drop it; --pace.max_inflight_groups says how many prompts are rolled out at a time",
        )
    if args.train.async_queue_size != QUEUE_SIZE:
        yield Problem(
            "--train.async_queue_size",
            "does nothing with --pace.enable: the pool takes the queue's place",
            "drop it; --pace.pool_capacity_groups is the size of the pool",
        )


def _drift(args: SimpleNamespace, config: PaceConfig) -> Iterator[Problem]:
    """vLLM samples from the tempered and cut distribution, and rescores a prefix under the plain one."""
    if not config.needs_prefix_scores or config.strict:  # strict: nothing lives through a weight sync
        return
    sampling = {"--rollout.temperature": args.rollout.temperature, "--rollout.top_p": args.rollout.top_p}
    off = [f"{name} {value:g}" for name, value in sampling.items() if value != 1]
    if off:
        yield Problem(
            "--pace.rank",
            f"{config.rank} compares log-probs of sampled tokens with rescored ones, which are those of temperature 1 "
            f"and top_p 1: with {' and '.join(off)} drift can't be measured",
            f"use --pace.rank raw, or {' and '.join(f'{name} 1' for name, value in sampling.items() if value != 1)}",
        )


def _strict(config: PaceConfig) -> Iterator[Problem]:
    fixed = config.resolve()
    for name in _changed(config) if config.strict else ():
        asked, acts = getattr(config, name), getattr(fixed, name)
        if asked != acts:
            yield Problem(
                flag(name), f"{asked} contradicts --pace.strict, which makes it {acts}", "drop one of the two"
            )


def _loss(args: SimpleNamespace, config: PaceConfig) -> Iterator[Problem]:
    if config.loss == "upstream":
        return
    instead = f"does nothing with --pace.loss {config.loss}, which takes the place of upstream's loss"
    if args.algo.advantage.is_correction_level != "off":
        yield Problem(
            "--algo.advantage.is_correction_level",
            f"{args.algo.advantage.is_correction_level} {instead} and corrects for the sampling policy itself",
            "drop it, or use --pace.loss upstream",
        )
    if args.actor.policy_loss_type != "ppo":
        yield Problem(
            "--actor.policy_loss_type",
            f"{args.actor.policy_loss_type} {instead}",
            "drop it, or use --pace.loss upstream",
        )
    if config.loss != "decoupled":
        if args.actor.dual_clip is not None:
            yield Problem("--actor.dual_clip", instead, "drop it, or use --pace.loss decoupled")
        return
    low, _ = args.actor.eps_clip_low_high or (args.actor.eps_clip, args.actor.eps_clip)
    if low > 1:
        name = "--actor.eps_clip_low_high" if args.actor.eps_clip_low_high else "--actor.eps_clip"
        yield Problem(
            name, f"{low:g} is more than 1, the most that --pace.loss decoupled takes", "use for example 0.2"
        )


# The checkpoint.


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """A saved pool: its file, its content, and the settings that it was made with."""

    path: Path
    state: State
    n_prompts: int
    n_episodes: int
    seed: int
    batch_groups: int
    group_sizes: frozenset[int]
    random_rank: bool


def check_saved(args: SimpleNamespace) -> Iterator[Problem]:
    """The pool's part of the checkpoint to resume from, given that DeepSpeed's part is sound."""
    saved = _saved(args)
    if isinstance(saved, Problem):
        yield saved
    elif saved is not None:
        yield from _misfits(args, saved)


def check_rows(args: SimpleNamespace, rows: int) -> Iterator[Problem]:
    """The number of prompts, which the data set tells."""
    saved = _saved(args)
    if isinstance(saved, _Saved) and saved.n_prompts != rows:
        yield Problem(
            "--data.prompt_dataset",
            f"has {rows} rows (after --data.max_samples), and the pool in {saved.path} was filled from "
            f"{saved.n_prompts}",
            f"name the data set of the checkpoint, with the same --data.max_samples, or {AFRESH}",
        )


def _saved(args: SimpleNamespace) -> _Saved | Problem | None:
    """None when nothing is to be resumed, or when the tag can't be told: that is another check's matter."""
    actor = Path(args.ckpt.path, "_actor")
    latest = actor / "latest"
    if not (reading.trains_from_pool(args) and args.ckpt.load_enable) or args.ds.use_universal_ckpt:
        return None
    if not latest.is_file() or not (tag := latest.read_text(errors="replace").strip()):
        return None
    from openrlhf.trainer.fully_async.checkpoint import POOL

    pools = Path(args.ckpt.path, POOL)
    if not pools.is_dir():
        what = f"the checkpoint {actor / tag} was saved without --pace.enable, so the pool has nothing to go on from"
        fix = "drop --pace.enable, or start afresh (with another --ckpt.path) from its model"
        return Problem(LOAD, what, fix)
    folder = saved_folder(pools / tag)
    if not folder.is_dir():
        there = sorted(p.name for p in pools.iterdir() if (p / STATE).is_file() and (actor / p.name).is_dir())
        fix = f"write {there[-1]} into {latest}, or {AFRESH}" if there else f"restore it, or {AFRESH}"
        return Problem(LOAD, f"{pools / tag}, the pool's part of the checkpoint, isn't there", fix)
    return _read(folder / STATE)


def _read(path: Path) -> _Saved | Problem:
    try:
        state = json.loads(path.read_bytes())
        pool, prompts = state["pool"], state["prompts"]
        return _Saved(
            path=path,
            state=state,
            n_prompts=prompts["n_prompts"],
            n_episodes=prompts["n_episodes"],
            seed=prompts["seed"],
            batch_groups=pool["batch_groups"],
            group_sizes=frozenset(len(entry["group"]["trajectories"]) for entry in pool["entries"]),
            random_rank=bool(pool["parts"]["ranking"]),
        )
    except OSError as error:
        return Problem(LOAD, f"{path} can't be read ({error.strerror})", f"restore it, or {AFRESH}")
    except (ValueError, LookupError, TypeError) as error:
        what = f"{path} isn't the state of a pool ({type(error).__name__}: {error})"
        return Problem(LOAD, what, f"restore it, or {AFRESH}")


def _misfits(args: SimpleNamespace, saved: _Saved) -> Iterator[Problem]:
    found = False
    for name, now, before in (
        ("--rollout.batch_size", args.rollout.batch_size, saved.batch_groups),
        ("--train.seed", args.train.seed, saved.seed),
    ):
        if now != before:
            found = True
            yield _other(saved, name, now, before)
    samples = args.rollout.n_samples_per_prompt
    sizes = frozenset() if reading.grows_trees(args) else saved.group_sizes  # a tree has as many leaves as it has
    for before in sorted(sizes - {samples})[:1]:
        yield _other(saved, "--rollout.n_samples_per_prompt", samples, before)
    if (args.pace.rank == "random") != saved.random_rank:
        found = True
        before = "random" if saved.random_rank else "another one than random"
        yield _other(saved, flag("rank"), args.pace.rank, before, "use the ranking of the checkpoint")
    if not found:
        yield from _loads(args, saved)


def _loads(args: SimpleNamespace, saved: _Saved) -> Iterator[Problem]:
    """Loads the state as the pool's actor will; the number of prompts is looked at with the data set."""
    try:
        config = reading.pool_settings(args)
        config.capacity(saved.batch_groups)
    except ValueError:  # reported with the flags
        return
    try:
        LeasedPool(
            config,
            batch_groups=saved.batch_groups,
            n_prompts=saved.n_prompts,
            n_episodes=args.train.num_episodes,
            seed=saved.seed,
            clock=lambda: 0.0,
        ).load_state_dict(saved.state, restart_in_flight=True)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if args.train.num_episodes != saved.n_episodes and "episode" in f"{error}":
            yield _other(saved, "--train.num_episodes", args.train.num_episodes, saved.n_episodes)
            return
        yield Problem(LOAD, f"{saved.path} can't be loaded ({error})", f"restore it, or {AFRESH}")


def _other(saved: _Saved, name: str, now: object, before: object, fix: str = "") -> Problem:
    what = f"is {now}, and the pool in {saved.path} was saved with {before}"
    return Problem(name, what, f"{fix or f'use {name} {before}'}, or {AFRESH}")
