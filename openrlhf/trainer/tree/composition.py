"""The actors that trees need besides those of the pool pipeline, made from the flags: predictor and rollout actors."""

from typing import Any

from openrlhf.trainer.tree.predictor_actor import PredictorActor
from openrlhf.trainer.tree.rollout_actor import TreeRolloutActor
from openrlhf.trainer.tree.root_allocator import RootAllocator
from trace_alloc.config import from_args


class Trees:
    """Holds the handles; `args` are upstream's, `pretrain` the policy's folder, `engines` the engine actors."""

    def __init__(self, args: Any, pretrain: str, engines: list[Any]) -> None:
        config, seed = from_args(args), args.train.seed
        groups = args.rollout.batch_size
        self._predictor = PredictorActor.options(num_gpus=config.predictor_gpus).remote(
            config, model=pretrain, seed=seed
        )
        self.rollout_actors = [
            TreeRolloutActor.remote(engines=engines, predictor=self._predictor, config=config, seed=seed)
            for _ in range(config.num_actors)
        ]
        self.allocator = RootAllocator(
            config=config,
            predictor=self._predictor,
            batch_groups=groups,
            flat_rollouts=groups * args.rollout.n_samples_per_prompt,
            seed=seed,
        )
        self.for_trainer = {"trace": config, "predictor": [self._predictor]}
