"""The plan against the requests that upstream's own `train` makes, and clusters that can't serve it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.launch import resources
from openrlhf.launch.resources import Bundle, Plan

Run = Callable[..., SimpleNamespace]
GAE = {"algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 2}
MODEL = {"reward__remote_url": None, "reward__model_name_or_path": "org/rm", "reward__num_gpus_per_node": 2}
TWO = {"actor__num_gpus_per_node": 2, "ref__num_gpus_per_node": 2}
RUNS: dict[str, dict[str, Any]] = {
    "smallest": {"algo__kl__init_coef": 0.0},
    "with a reference": {},
    "two nodes with a GPU each": {"actor__num_nodes": 2},
    "four models apart": TWO | GAE | MODEL,
    "engines with two GPUs": {"vllm__num_engines": 2, "vllm__tensor_parallel_size": 2},
    "actor with reference": TWO | {"train__colocate_actor_ref": True},
    "actor with no reference": TWO | {"train__colocate_actor_ref": True, "algo__kl__init_coef": 0.0},
    "critic with reward": TWO | GAE | MODEL | {"train__colocate_critic_reward": True},
    "reward alone, no critic to be with": MODEL | {"train__colocate_critic_reward": True},
    "both pairs": TWO | GAE | MODEL | {"train__colocate_critic_reward": True, "train__colocate_actor_ref": True},
    "all on the same": TWO | GAE | MODEL | {"train__colocate_all": True, "vllm__num_engines": 2},
    "all, one wide engine": TWO | {"train__colocate_all": True, "vllm__tensor_parallel_size": 2},
    "all, asynchronous": TWO | GAE | MODEL | {"train__colocate_all": True, "train__async_enable": True},
    "all, and the critic with the reward": TWO
    | GAE
    | MODEL
    | {"train__colocate_all": True, "train__colocate_critic_reward": True, "vllm__num_engines": 2},
}


class Recorder:
    """Takes Ray's part in upstream's `train`: notes requests, gives nothing."""

    def __init__(self) -> None:
        self.requests: list[tuple[float, float]] = []

    def placement_group(self, bundles: list[dict[str, float]], strategy: str = "PACK") -> SimpleNamespace:
        self.requests += [(bundle["GPU"], bundle["CPU"]) for bundle in bundles]
        return SimpleNamespace(ready=lambda: None, bundle_specs=bundles)

    def actor(self, **outer: Any) -> Any:
        def options(num_cpus: float = 0, num_gpus: float = 0, scheduling_strategy: Any = None, **_: Any) -> Any:
            if scheduling_strategy is None:
                self.requests.append((num_gpus, num_cpus))
            else:  # inside a placement group: it must be one of its bundles
                assert (
                    0
                    <= scheduling_strategy.placement_group_bundle_index
                    < len(scheduling_strategy.placement_group.bundle_specs)
                )
            method = SimpleNamespace(remote=lambda *_: ("host", 1))
            return SimpleNamespace(remote=lambda *_, **__: SimpleNamespace(get_master_addr_port=method))

        return SimpleNamespace(options=options)


class Stop(Exception):
    """Ends upstream's `train` where everything has been asked for."""


def requests_of_upstream(args: SimpleNamespace) -> list[tuple[float, float]]:
    """What `train` asks Ray for, by running it with a Ray that only notes."""
    import ray

    from openrlhf._upstream.trainer.ray import vllm_engine
    from openrlhf.launch import flags, reading
    from openrlhf.trainer.ray import launcher

    recorder = Recorder()

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    args.critic.model_name_or_path = reading.critic_path(args)  # as upstream does after parsing
    with pytest.MonkeyPatch.context() as patch:
        import runpy

        patch.setattr(ray, "get", lambda value: ("host", 1))
        patch.setattr(ray, "is_initialized", lambda: True)
        for module in (launcher, vllm_engine):
            patch.setattr(module, "placement_group", recorder.placement_group)
            patch.setattr(module, "PlacementGroupSchedulingStrategy", SimpleNamespace)
        patch.setattr(vllm_engine, "get_bundle_indices", lambda group, index, length: [index * length])
        patch.setattr(vllm_engine, "RolloutRayActor", recorder.actor())
        train = runpy.run_path(flags.UPSTREAM_CLI)["train"]
        names = train.__globals__
        names |= {name: recorder.actor() for name in ("PolicyModelActor", "ReferenceModelActor")}
        names |= {name: recorder.actor() for name in ("CriticModelActor", "RewardModelActor")}
        names |= {"placement_group": recorder.placement_group, "create_vllm_engines": vllm_engine.create_vllm_engines}
        names["get_strategy"] = lambda args: SimpleNamespace(print=lambda *_: None)
        for trainer in (
            "openrlhf.trainer.ppo_trainer.PPOTrainer",
            "openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync",
        ):
            patch.setattr(trainer, SimpleNamespace(remote=stop))
        with pytest.raises(Stop):
            train(args)
    return recorder.requests


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS.keys())
def test_the_plan_is_what_upstream_asks_for(run: Run, changes: dict[str, Any]) -> None:
    plan = resources.plan(run(**changes))
    asked = requests_of_upstream(run(**changes))
    assert sorted((bundle.gpus, bundle.cpus) for bundle in plan.bundles) == sorted(asked)
    assert (plan.gpus, plan.cpus) == (sum(gpu for gpu, _ in asked), sum(cpu for _, cpu in asked))


def test_parts_have_the_names_of_the_models_in_them(run: Run) -> None:
    plan = resources.plan(run(**TWO | GAE | MODEL | {"train__colocate_all": True, "vllm__num_engines": 2}))
    assert plan.by_name() == {"actor+ref+critic+reward+vllm": 2}
    plan = resources.plan(run(**TWO | {"vllm__num_engines": 3}))
    assert plan.by_name() == {"vllm": 3, "actor": 2, "ref": 2}
    assert f"{plan}" == "7 GPUs and 7 CPUs (vllm 3, actor 2, ref 2)"


PLAN = Plan((Bundle("vllm"), Bundle("actor"), Bundle("ref")))


def node(gpus: float, cpus: float) -> dict[str, float]:
    return {"GPU": gpus, "CPU": cpus, "memory": 1e9}


def total(*nodes: dict[str, float]) -> dict[str, float]:
    return {name: sum(one[name] for one in nodes) for name in nodes[0]}


@pytest.mark.parametrize(
    "nodes", [[node(3, 3)], [node(8, 64)], [node(1, 1)] * 3, [node(1, 8), node(2, 2), node(0, 4)]]
)
def test_clusters_that_are_enough(nodes: list[dict[str, float]]) -> None:
    assert resources.check(PLAN, total(*nodes), nodes) == []


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ([node(2, 8)], "2 GPUs"),
        ([node(0, 8)], "0 GPUs"),
        ([node(4, 2)], "2 CPUs"),
        ([node(3, 1), node(0, 16)], "fit on no node"),
        ([node(0.5, 8)] * 6, "fit on no node"),
    ],
)
def test_an_impossible_plan_is_a_problem(nodes: list[dict[str, float]], what: str) -> None:
    (problem,) = resources.check(PLAN, total(*nodes), nodes)
    assert problem.flag == "Ray" and what in problem.what and problem.fix


def test_a_cluster_without_gpus_or_nodes() -> None:
    (problem,) = resources.check(PLAN, {"CPU": 8.0}, [{"CPU": 8.0}])
    assert "0 GPUs" in problem.what
    assert "ray start --head --num-gpus 3 --num-cpus 3" in problem.fix  # on the CPU platform they are only numbers
    assert resources.check(PLAN, {}, [])


def test_on_cuda_the_fix_names_the_flags(on_cuda: dict[str, Any]) -> None:
    (problem,) = resources.check(PLAN, total(node(1, 8)), [node(1, 8)])
    assert "--actor.num_gpus_per_node" in problem.fix and "--vllm.num_engines" in problem.fix
    (problem,) = resources.check(PLAN, total(node(8, 1)), [node(8, 1)])
    assert "--num-cpus 3" in problem.fix


def test_a_growing_cluster_gets_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(resources.VARIABLE, "warn")
    assert resources.check(PLAN, total(node(1, 1)), [node(1, 1)]) == []
    assert "1 GPUs" in caplog.text


def test_controllers_need_a_cpu_somewhere() -> None:
    assert Plan(()).cpus == 1
    assert resources.check(Plan(()), {"GPU": 1.0}, [{"GPU": 1.0}])
