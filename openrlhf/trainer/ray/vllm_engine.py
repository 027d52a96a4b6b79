"""Upstream's names, with the fork's engine actor and a watch over every engine that is started."""

from typing import Any

import ray

from openrlhf._upstream.trainer.ray import vllm_engine as upstream
from openrlhf.launch import watchdog
from openrlhf.trainer.ray import rollout_actor

RolloutRayActor = ray.remote(rollout_actor.RolloutRayActor)
upstream.RolloutRayActor = RolloutRayActor  # create_vllm_engines looks it up there
batch_vllm_engine_call = upstream.batch_vllm_engine_call


def create_vllm_engines(*args: Any, **kwargs: Any) -> list[Any]:
    """As upstream's; an engine that dies, at its start or later, ends the run with the cause."""
    engines = upstream.create_vllm_engines(*args, **kwargs)
    watchdog.watch({f"vLLM engine {index}": engine.check_engine for index, engine in enumerate(engines)})
    return engines
