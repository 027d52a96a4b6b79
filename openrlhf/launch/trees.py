"""Checks of the `--trace.*` flags and of what they mean for the others. Nothing is read from the disk."""

from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace

from openrlhf.launch.problem import Problem
from trace_alloc.config import TraceConfig, flag, from_args


def check(args: SimpleNamespace) -> Iterator[Problem]:
    """The flags alone."""
    if not hasattr(args, "trace"):
        return
    try:
        config = from_args(args)
    except ValueError as error:  # its text is `--trace.x <what>: <fix>`
        name, _, rest = f"{error}".partition(" ")
        what, _, fix = rest.rpartition(": ")
        yield Problem(name, what or rest, fix if what else "see --help for its range")
        return
    changed = [f.name for f in fields(config) if getattr(config, f.name) != f.default]
    if config.enable:
        yield from _pipeline(args)
        yield from _budget(args, config)
        yield from _predictor(config)
    elif changed:
        yield Problem(flag(changed[0]), "does nothing without --trace.enable", "add --trace.enable, or drop it")


def _pipeline(args: SimpleNamespace) -> Iterator[Problem]:
    """What the trees' own credit takes the place of."""
    if not args.train.async_enable:
        yield Problem(
            "--trace.enable",
            "works with the pool pipeline, which upstream's synchronous trainer does not have",
            "add --train.async_enable; without --pace.enable training is synchronous all the same",
        )
    if args.algo.advantage.estimator != "group_norm":
        yield Problem(
            "--algo.advantage.estimator",
            f"{args.algo.advantage.estimator} does nothing with --trace.enable, whose --trace.credit takes its place",
            "use group_norm (the critic of gae has nothing to learn), and --trace.credit to choose",
        )
    if args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss:
        yield Problem(
            "--algo.kl.init_coef",
            f"{args.algo.kl.init_coef:g} is a penalty in the reward, which the trees' credit does not know",
            "add --algo.kl.use_loss, or use 0",
        )


def _budget(args: SimpleNamespace, config: TraceConfig) -> Iterator[Problem]:
    groups, siblings = args.rollout.batch_size, args.rollout.n_samples_per_prompt
    if groups < 1 or siblings < 1:
        return  # reported with the ranges
    budget = config.bare_budget(groups * siblings)
    if budget < 2 * groups:
        yield Problem(
            flag("budget"),
            f"{budget} bare rollouts are too few for the {groups} trees of a batch (--rollout.batch_size): each has 2",
            f"use {2 * groups} or more, a larger --rollout.n_samples_per_prompt, or fewer {flag('continuations')}",
        )
    elif not config.flat and budget > config.max_per_root * groups:
        yield Problem(
            flag("max_per_root"),
            f"{config.max_per_root} for each of {groups} trees can't spend the budget of {budget} bare rollouts",
            f"use {-(-budget // groups)} or more, or a smaller {flag('budget')}",
        )


def _predictor(config: TraceConfig) -> Iterator[Problem]:
    model = config.predictor_model
    if config.predictor != "lm" and model:
        yield Problem(flag("predictor_model"), f"does nothing with --trace.predictor {config.predictor}", "drop it")
