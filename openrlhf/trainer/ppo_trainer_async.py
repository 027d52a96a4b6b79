"""Asynchronous training: the pool pipeline with `--pace.enable`, upstream's own classes without.

The composition root of the pool pipeline. The training actor, the slowest to come up, is made here, in the driver.
Without PACE, `PPOTrainerAsync.remote` is upstream's actor.
"""

from typing import Any

import ray

from openrlhf._upstream.trainer import ppo_trainer_async as upstream
from openrlhf.launch import reading, watchdog
from openrlhf.trainer.fully_async import training_actor
from openrlhf.trainer.fully_async.pool_trainer import PoolTrainer, RolloutSide
from openrlhf.trainer.tree import training_actor as tree_training
from openrlhf.trainer.tree.composition import Trees

TrainingActor = ray.remote(training_actor.TrainingActor)
TreeTrainingActor = ray.remote(tree_training.TreeTrainingActor)


def pool_trainer(pretrain: str, strategy: Any, *groups_and_engines: Any, **generate_kwargs: Any) -> Any:
    """The actor that upstream's command line talks to, with the training actor and what trees need beside it."""
    *groups, engines = groups_and_engines
    args = strategy.args
    config = reading.pool_settings(args)
    more: dict[str, Any] = {"engines": engines, "config": config, "generate_kwargs": generate_kwargs}
    if reading.grows_trees(args):
        trees = Trees(args, pretrain, engines)
        trainer = TreeTrainingActor.remote(pretrain, strategy, *groups, **more, **trees.for_trainer)
        rollout_side = RolloutSide(engines=trees.rollout_actors, allocator=trees.allocator, takes_reference=True)
    else:
        trainer = TrainingActor.remote(pretrain, strategy, *groups, **more)
        rollout_side = RolloutSide(engines=engines)
    head = PoolTrainer.remote(args, config, trainer=trainer, rollout_side=rollout_side)
    watchdog.announce("models and engines are started", head.started.remote())
    return head


class PPOTrainerAsync:
    """What upstream's command line starts with `.remote(...)`."""

    @staticmethod
    def remote(pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> Any:
        """The actor of the pipeline that the flags ask for."""
        start = pool_trainer if reading.trains_from_pool(strategy.args) else upstream.PPOTrainerAsync.remote
        return start(pretrain, strategy, *args, **kwargs)
