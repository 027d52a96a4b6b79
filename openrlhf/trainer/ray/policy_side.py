"""What the pool pipeline does inside upstream's policy actors: losses, step size, the sending side of a weight sync.

Invariant: the actors stay upstream's `PolicyModelActor`; these functions are run in them (`on_ranks`), on every rank
and in the same order, since gathering ZeRO-3 shards is collective. What they keep lies in one attribute, `pool`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from openrlhf.trainer.losses.decoupled import DecoupledPpoLoss
from openrlhf.trainer.losses.m2po import M2poLoss
from openrlhf.trainer.ray.weight_sender import WeightSender, make_sender
from openrlhf.trainer.ray.weight_source import WeightSource
from pace.config import PaceConfig


class _PoolSide:
    """Per rank: the sender of weights, and the factor on the learning rate of the running update."""

    def __init__(self, sender: WeightSender) -> None:
        self.sender = sender
        self.step_scale = 1.0


def on_ranks(group: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Starts `function(actor, ...)` in every actor of upstream's `RayActorGroup`; the references, by rank."""
    return [handle.__ray_call__.remote(function, *args, **kwargs) for handle in group._actor_handlers]


def prepare(actor: Any, config: PaceConfig) -> None:
    """Puts the configured loss in place and makes the sender; once, after the model is loaded."""
    args = actor.strategy.args
    source = WeightSource(
        actor.trainer.actor.model.module,
        zero_stage=args.ds.zero_stage,
        bucket_bytes=config.sync_bucket_mib << 20,
        tensor_parallel_size=args.ds.tensor_parallel_size,
        only_trainable=getattr(actor.trainer.actor, "is_vlm", False),
    )
    actor.pool = _PoolSide(make_sender(source))
    loss = make_loss(args, config)
    if loss is not None:
        actor.trainer.actor_loss_fn = loss
    if config.ess_step_size:
        training_step = actor.trainer.training_step

        def scaled_step(*step_args: Any, **step_kwargs: Any) -> Any:
            with learning_rate_scaled(actor.actor_optim, actor.pool.step_scale):
                return training_step(*step_args, **step_kwargs)

        actor.trainer.training_step = scaled_step


def make_loss(args: Any, config: PaceConfig) -> torch.nn.Module | None:
    """The loss of `--pace.loss`; None for upstream's own."""
    token_level = args.actor.loss_agg_mode == "token-mean"
    if config.loss == "decoupled":
        low, high = args.actor.eps_clip_low_high
        return DecoupledPpoLoss(
            clip_low=low,
            clip_high=high,
            behaviour_cap=config.behaviour_cap,
            dual_clip=args.actor.dual_clip,
            token_level=token_level,
        )
    if config.loss in ("m2po", "m2po_mask"):
        form = "clip" if config.loss == "m2po" else "mask"
        return M2poLoss(budget=config.m2_budget, form=form, token_level=token_level)
    return None


def connect_weights(actor: Any, *, n_engines: int, engine_size: int) -> list[dict[str, Any]]:
    """What each engine needs to join; meaningful on rank 0."""
    return actor.pool.sender.connect(n_engines=n_engines, engine_size=engine_size)


def stage_weights(actor: Any) -> list[dict[str, Any]]:
    """Gets the current weights ready while the engines still generate; the buckets, as vLLM takes them."""
    actor.pool.sender.stage()
    return actor.pool.sender.update_infos()


def send_weights(actor: Any) -> None:
    """Sends what was not staged, while the engines load."""
    actor.pool.sender.send()


def weights_are_staged(actor: Any) -> bool:
    """Whether a restarted engine can load the current weights without the trainer sending again."""
    return bool(actor.pool.sender.staged)


def close_weights(actor: Any) -> None:
    """Removes what was staged."""
    actor.pool.sender.close()


def set_step_scale(actor: Any, factor: float) -> None:
    """The factor on the learning rate of the next update."""
    actor.pool.step_scale = factor


def set_batch_rows(actor: Any, n_rows: int, n_updates: int) -> None:
    """The next batch has `n_rows` rollouts for `n_updates` optimizer steps; upstream fixes both at its start.

    With dynamic batches the engine takes whatever comes, and upstream itself says which micro-batch ends a step.
    """
    args, engine = actor.strategy.args, actor.trainer.actor.model
    before, args.train.batch_size = args.train.batch_size, n_rows // n_updates
    args.rollout.batch_size, args.rollout.n_samples_per_prompt = n_rows, 1
    if args.train.dynamic_batch_enable:
        return
    per_row = engine.train_batch_size() // before  # ranks that share a row (ring or tensor parallel)
    engine.set_train_batch_size(args.train.batch_size * per_row)
    actor.strategy.accumulated_gradient = engine.gradient_accumulation_steps()


@contextmanager
def learning_rate_scaled(optimizer: Any, factor: float) -> Iterator[None]:
    """Scales every group's learning rate within. A scheduler that sets it anew meanwhile has the last word."""
    before = [group["lr"] for group in optimizer.param_groups]
    scaled = [lr * factor for lr in before]
    for group, lr in zip(optimizer.param_groups, scaled, strict=True):
        group["lr"] = lr
    try:
        yield
    finally:
        for group, old, new in zip(optimizer.param_groups, before, scaled, strict=True):
            if group["lr"] == new:
                group["lr"] = old
