"""Without the fork's flags a run is upstream's: all that its `train` starts are upstream's own classes.

Nothing runs: every start of an actor is noted where all of Ray's ways to start one meet, and answered by a mock.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

Run = Callable[..., SimpleNamespace]
MODELS = {"PolicyModelActor", "ReferenceModelActor"}
ASYNC = {"train__async_enable": True}


def started(args: SimpleNamespace, patch: pytest.MonkeyPatch) -> set[type]:
    """The classes of all actors of a run with these flags."""
    import ray

    from openrlhf._upstream.trainer.ray import vllm_engine as engines
    from openrlhf.cli import train_ppo_ray
    from openrlhf.launch import watchdog
    from openrlhf.trainer.ray import launcher, vllm_engine
    from openrlhf.trainer.ray.actor_class import raw_class

    found = set()

    def start(actor: Any, args: Any = None, kwargs: Any = None, **options: Any) -> MagicMock:
        found.add(raw_class(actor))
        return MagicMock()

    patch.setattr(ray.actor.ActorClass, "_remote", start)
    patch.setattr(ray, "get", MagicMock())
    patch.setattr(ray, "is_initialized", lambda: True)
    patch.setattr(watchdog, "_start", MagicMock())
    for module in (launcher, engines):
        patch.setattr(module, "placement_group", MagicMock())
    strategy = SimpleNamespace(print=lambda *_: None, args=args)
    patch.setattr(train_ppo_ray, "get_strategy", lambda args: strategy, raising=False)
    try:
        train_ppo_ray.train(args)
    finally:
        vllm_engine.use_pool(None)
    return found


def is_upstreams(kind: type) -> bool:
    import openrlhf

    return openrlhf.UPSTREAM in Path(inspect.getfile(kind)).parents


@pytest.mark.parametrize(("changes", "trainer"), [({}, "PPOTrainer"), (ASYNC, "PPOTrainerAsync")])
def test_upstreams_own_classes_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], trainer: str
) -> None:
    found = {kind.__name__: kind for kind in started(run(**changes), monkeypatch)}
    engine = found.pop("RolloutRayActor")
    assert set(found) == {*MODELS, trainer}
    assert all(map(is_upstreams, found.values()))
    # The engine's actor is upstream's, and looks at what comes out of it.
    (upstreams,) = engine.__bases__
    assert is_upstreams(upstreams) and not is_upstreams(engine)
    own = {name for name, value in vars(engine).items() if inspect.isfunction(value)}
    assert own & set(dir(upstreams)) == {"__init__", "generate_responses"}


def test_the_pool_is_another_pipeline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what the test above finds is due to the flags."""
    found = {kind for kind in started(run(**ASYNC, pace__enable=True), monkeypatch) if not is_upstreams(kind)}
    assert {kind.__name__ for kind in found} == {"RolloutRayActor", "PoolTrainer", "TrainingActor"}
    assert {kind.__module__ for kind in found} >= {"openrlhf.trainer.ray.versioned_rollout"}
