"""The head of the pool pipeline: starts pool and rollout manager, and ends when the training does.

Imports none of the libraries that training needs: its process is up long before the training actor's.

In: the actors that the flags ask for. Out: what upstream's command line calls. Source: design.
"""

import logging
import os
import threading
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from openrlhf.trainer.fully_async.rollout_manager import KeepBetween, RolloutManagerActor
from pace.actor import TrajectoryPoolActor
from pace.config import PaceConfig

logger = logging.getLogger("openrlhf.pace")

WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RolloutSide:
    """Who rolls out. `takes_reference`: these actors hand the tokenizer on, so they get a reference in a list."""

    engines: list[Any]
    allocator: Any = None
    takes_reference: bool = False


@ray.remote(max_concurrency=3)
class PoolTrainer:
    """Upstream's `PPOTrainerAsync` as its callers see it, over the pool. `trainer` is the training actor."""

    def __init__(self, args: Any, config: PaceConfig, *, trainer: Any, rollout_side: RolloutSide) -> None:
        self._trainer = trainer
        self._started = threading.Event()
        self._manager = RolloutManagerActor.remote()
        material = ray.get(trainer.material.remote())
        self._max_steps = material["max_steps"]
        self._pool = TrajectoryPoolActor.remote(
            config=config,
            batch_groups=args.rollout.batch_size,
            n_prompts=material["n_prompts"],
            n_episodes=args.train.num_episodes,
            seed=args.train.seed,
            folder=os.path.abspath(os.path.join(args.ckpt.path, "_pool_journal")),
        )
        bounds = args.algo.dynamic_filtering_range if args.algo.dynamic_filtering_enable else ()
        tokenizer = material["tokenizer"]
        self._rollouts = {
            "pool": self._pool,
            "config": config,
            "engines": rollout_side.engines,
            "tasks": material["tasks"],
            "tokenizer": [tokenizer] if rollout_side.takes_reference else tokenizer,
            "keep": KeepBetween(*bounds),
            "allocator": rollout_side.allocator,
        }

    def get_max_steps(self) -> int:
        """Updates to expect, for learning rate schedules; rejections make them fewer."""
        return self._max_steps

    def started(self) -> None:
        """Returns once models and engines are up and connected."""
        self._started.wait()

    def fit(self) -> None:
        """Trains to the end of the data. Raises what ended the training earlier."""
        step = ray.get(self._trainer.prepare.remote(self._pool))
        self._started.set()
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
