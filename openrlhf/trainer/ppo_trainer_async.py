"""Asynchronous training: the pool pipeline with `--pace.enable`, upstream's own classes without.

The composition root of the pool pipeline: makes its actors, connects them, and ends when the trainer does. Without
PACE, `PPOTrainerAsync.remote` is upstream's actor.
"""

import logging
import os
from typing import Any

import ray
from ray.exceptions import RayActorError

from openrlhf._upstream.trainer import ppo_trainer_async as upstream
from openrlhf.launch import reading
from openrlhf.trainer.fully_async import training_actor
from openrlhf.trainer.fully_async.rollout_manager import KeepBetween, RolloutManagerActor
from openrlhf.trainer.tree import training_actor as tree_training
from openrlhf.trainer.tree.composition import Trees
from pace.actor import TrajectoryPoolActor

logger = logging.getLogger("openrlhf.pace")

TrainingActor = ray.remote(training_actor.TrainingActor)
TreeTrainingActor = ray.remote(tree_training.TreeTrainingActor)
WAIT_S = 5.0


@ray.remote
class PoolTrainer:
    """Upstream's `PPOTrainerAsync` as its callers see it, over the pool."""

    def __init__(self, pretrain: str, strategy: Any, *groups_and_engines: Any, **generate_kwargs: Any) -> None:
        *groups, engines = groups_and_engines
        args = strategy.args
        # As upstream: -1 means never.
        args.eval.steps = float("inf") if args.eval.steps == -1 else args.eval.steps
        args.ckpt.save_steps = float("inf") if args.ckpt.save_steps == -1 else args.ckpt.save_steps
        self._config = reading.pool_settings(args)
        more: dict[str, Any] = {"engines": engines, "config": self._config, "generate_kwargs": generate_kwargs}
        if reading.grows_trees(args):
            trees = Trees(args, pretrain, engines)
            self._trainer = TreeTrainingActor.remote(pretrain, strategy, *groups, **more, **trees.for_trainer)
        else:
            trees = None
            self._trainer = TrainingActor.remote(pretrain, strategy, *groups, **more)
        self._manager = RolloutManagerActor.remote()
        material = ray.get(self._trainer.material.remote())
        self._max_steps = material["max_steps"]
        self._pool = TrajectoryPoolActor.remote(
            config=self._config,
            batch_groups=args.rollout.batch_size,
            n_prompts=material["n_prompts"],
            n_episodes=args.train.num_episodes,
            seed=args.train.seed,
            folder=os.path.abspath(os.path.join(args.ckpt.path, "_pool_journal")),
        )
        bounds = args.algo.dynamic_filtering_range if args.algo.dynamic_filtering_enable else ()
        self._rollouts = {
            "pool": self._pool,
            "config": self._config,
            "engines": engines,
            "tasks": material["tasks"],
            "tokenizer": material["tokenizer"],
            "keep": KeepBetween(*bounds),
            "allocator": None,
        }
        if trees:
            self._rollouts |= {
                "engines": trees.rollout_actors,
                "tokenizer": [material["tokenizer"]],
                "allocator": trees.allocator,
            }

    def get_max_steps(self) -> int:
        """Updates to expect, for learning rate schedules; rejections make them fewer."""
        return self._max_steps

    def fit(self) -> None:
        """Trains to the end of the data. Raises what ended the training earlier."""
        step = ray.get(self._trainer.prepare.remote(self._pool))
        training = self._trainer.fit.remote(step)
        rollouts = self._roll_out()
        while True:
            done, _ = ray.wait([training, rollouts] if rollouts else [training], num_returns=1, timeout=WAIT_S)
            if training in done:
                ray.get(training)
                return
            if rollouts in done:
                rollouts = self._rollouts_ended(rollouts)

    def _rollouts_ended(self, rollouts: Any) -> Any:
        """The call to watch from now on: none when all prompts are done, a new one when the manager's actor died."""
        try:
            ray.get(rollouts)
        except RayActorError:
            logger.warning("the rollout manager died and is started again; what it had in flight is generated again")
            return self._roll_out()
        return None

    def _roll_out(self) -> Any:
        return self._manager.run.remote(**self._rollouts)


class PPOTrainerAsync:
    """What upstream's command line starts with `.remote(...)`."""

    @staticmethod
    def remote(pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> Any:
        """The actor of the pipeline that the flags ask for."""
        actor = PoolTrainer if reading.trains_from_pool(strategy.args) else upstream.PPOTrainerAsync
        return actor.remote(pretrain, strategy, *args, **kwargs)
