"""Upstream's names, with the fork's engine actors and a watch over every engine that is started.

`use_pool(config)` decides which engine actor `create_vllm_engines` starts; without it, it is upstream's own with a
check of rewards. Upstream's command line has no other place to say it.
"""

from typing import Any

import ray

from openrlhf._upstream.trainer.ray import vllm_engine as upstream
from openrlhf.launch import watchdog
from openrlhf.trainer.ray import rollout_actor
from pace.config import PaceConfig

# An engine that dies is started again; one that dies this often has a fault that a restart does not cure.
MAX_RESTARTS = 8

RolloutRayActor = ray.remote(rollout_actor.RolloutRayActor)
upstream.RolloutRayActor = RolloutRayActor  # create_vllm_engines looks it up there
batch_vllm_engine_call = upstream.batch_vllm_engine_call

_pool_config: PaceConfig | None = None


def use_pool(config: PaceConfig | None, *, segment_tokens: int | None = None) -> None:
    """From now on engines are started for the pool pipeline with these settings, or (None) for upstream's.

    With `segment_tokens` they grow rollout trees (`--trace.segment_tokens`).
    """
    global _pool_config
    _pool_config = config
    if config is None:
        upstream.RolloutRayActor = RolloutRayActor
        return
    from openrlhf.trainer.ray import tree_rollout, versioned_rollout

    if segment_tokens is None:
        upstream.RolloutRayActor = _ForPool(versioned_rollout.RolloutRayActor, pace=config)
    else:
        upstream.RolloutRayActor = _ForPool(tree_rollout.RolloutRayActor, pace=config, segment_tokens=segment_tokens)


def create_vllm_engines(*args: Any, **kwargs: Any) -> list[Any]:
    """As upstream's. An engine that dies ends the run with the cause, or is started again by the pool pipeline."""
    engines = upstream.create_vllm_engines(*args, **kwargs)
    if _pool_config is None:
        watchdog.watch({f"vLLM engine {index}": engine.check_engine for index, engine in enumerate(engines)})
    return engines


class _ForPool:
    """Takes the actor class's place in upstream's `create_vllm_engines`: adds the pool's settings to each start."""

    def __init__(self, engine: type, **settings: Any) -> None:
        self._engine = engine
        self._settings = settings
        self._options: dict[str, Any] = {}

    def options(self, **options: Any) -> "_ForPool":
        started = _ForPool(self._engine, **self._settings)
        started._options = options
        return started

    def remote(self, **kwargs: Any) -> Any:
        actor = ray.remote(self._engine).options(**self._options, max_restarts=MAX_RESTARTS)
        return actor.remote(**kwargs, **self._settings)
