"""The engine actor on a real vLLM engine, without Ray: `python programs.py NAME [ARGUMENT ...]` prints a JSON object.

A process of its own per program: the platform must be applied first, and an engine is best ended with its process.
"""

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("RAY_ADDRESS", "none")  # upstream asks Ray for it otherwise
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import openrlhf  # noqa: E402, F401  (the CPU platform comes before vLLM)


class Words:
    """A tokenizer by name only: a text is its token ids."""

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        import torch

        return {"input_ids": torch.tensor([[int(word) for word in text.split()]], dtype=torch.long)}

    def decode(self, tokens: list[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


async def start_engine(folder: str, **settings: Any) -> Any:
    """The plain class behind the Ray actor (`trees`: TRACE's), started on the model in `folder`, serving version 0."""
    from openrlhf.trainer.ray import tree_rollout, versioned_rollout
    from pace.config import PaceConfig

    RolloutRayActor = (tree_rollout if settings.pop("trees", False) else versioned_rollout).RolloutRayActor
    agent = settings.pop("agent_func_path", None)
    engine_settings = {"max_num_seqs": 32, "max_model_len": 512} | settings.pop("engine", {})
    actor = RolloutRayActor.__new__(RolloutRayActor)
    await actor.__init__(  # Ray would await it, too
        pace=PaceConfig(enable=True, **settings),
        agent_func_path=agent,
        num_gpus=1,
        model=folder,
        dtype="bfloat16",
        enforce_eager=True,
        distributed_executor_backend="uni",
        enable_prefix_caching=True,
        worker_extension_cls="openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
        skip_tokenizer_init=True,
        **engine_settings,
    )
    await actor.connect_weights(sender_for({}).connect(n_engines=1, engine_size=1)[0])
    await actor.serve(0, weights="own")
    return actor


def sender_for(parameters: dict[str, Any]) -> Any:
    """The trainer's side with these weights staged."""
    import torch

    from openrlhf.trainer.ray.weight_sender import make_sender
    from openrlhf.trainer.ray.weight_source import WeightSource

    module = torch.nn.Module()
    for name, value in parameters.items():
        owner = module
        *path, last = name.split(".")
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]
        owner.register_parameter(last, torch.nn.Parameter(value, requires_grad=False))
    return make_sender(WeightSource(module, zero_stage=0, bucket_bytes=1 << 16))


async def with_engine(run: Callable[[Any], Awaitable[dict[str, Any]]], folder: str, **settings: Any) -> dict[str, Any]:
    actor = await start_engine(folder, **settings)
    try:
        return await run(actor)
    finally:
        actor.llm.shutdown()


def exact_labels(folder: str, kv: str, turns: str) -> dict[str, Any]:
    """200 trajectories or more (50 groups of 4) across 20 weight syncs: wrong labels, wrong log-probs, prefix scores.

    `turns` is single, multi, or trees: multi, and about half of the prefixes continued once more.
    """
    return asyncio.run(_exact_labels(folder, kv, turns))


async def _exact_labels(folder: str, kv: str, turns: str) -> dict[str, Any]:
    import ranges

    sets = [ranges.model(version) for version in range(ranges.N_SETS)]
    senders = [sender_for(dict(made.named_parameters())) for made in sets]
    for sender in senders:
        sender.stage()
    agent = str(Path(__file__).with_name("agent.py")) if turns != "single" else None

    async def run(actor: Any) -> dict[str, Any]:
        blocks: list[bytes] = []
        reports: list[Any] = []
        numbers, updated = itertools.count(), asyncio.Event()

        async def some_groups() -> None:
            """At least 50 in all, and on until the last update, so that every one comes while others are generated."""
            while (number := next(numbers)) < 50 or not updated.is_set():
                roll_out = grown_tree if turns == "trees" else type(actor).generate_group
                report, block = await roll_out(actor, lease(number), task(number), Words())
                assert report.group is not None, report.failure
                reports.append(report)
                blocks.append(block)

        groups = asyncio.gather(*(some_groups() for _ in range(8)))
        while not actor._scorer.calibrated:  # by trajectories of one version, so before the first update
            assert not groups.done(), "no trajectory could be used to measure the engine's noise"
            await asyncio.sleep(0.05)
        stops, scores = [], []
        for version in range(1, ranges.N_SETS):
            await asyncio.sleep(0.15)
            began = time.monotonic()
            await actor.load_weights(version, senders[version].update_infos())
            await actor.serve(version)
            stops.append(time.monotonic() - began)
            scores += await actor.score_prefixes()
        updated.set()
        await groups
        return _examine(sets, reports, blocks) | {
            "stop_ms": 1e3 * sorted(stops)[len(stops) // 2],
            "updates": len(stops),
            "scores": len(scores),
            "scores_finite": all(0 <= score < 1e3 for score in scores),
            "noise_floor": actor._scorer.floor,
            "calibration_tokens": sum(score.n_scored for score in actor._scorer._calibrations),
        }

    return await with_engine(run, folder, kv=kv, agent_func_path=agent, pfs_deadline_s=30.0, trees=turns == "trees")


async def grown_tree(actor: Any, lease: Any, task: Any, tokenizer: Any) -> Any:
    """A group as TRACE grows it; which prefixes are continued is drawn. Every other tree travels in between."""
    bare = await actor.roll_out_bare(lease, task, tokenizer)
    assert bare.failure is None, bare.failure
    draw = random.Random(lease.index)
    counts = [[draw.randrange(2) for _ in rollout.prefixes] for rollout in bare.rollouts]
    assert all(len(row) == 2 for row in counts), "three turns have two prefixes"
    packed = None
    if lease.index % 2:
        packs, packed = await actor.hand_over(lease.group_id)
        assert packs and lease.group_id not in actor._trees
    report, block = await actor.expand(lease, task, tokenizer, counts, {}, packed)
    assert report.group is None or len(report.group.trajectories) == task.n_samples + sum(map(sum, counts))
    return report, block


def never_ending(folder: str) -> dict[str, Any]:
    """A group whose agent never comes back, beside one whose does."""
    return asyncio.run(_never_ending(folder))


async def _never_ending(folder: str) -> dict[str, Any]:
    async def run(actor: Any) -> dict[str, Any]:
        began = time.monotonic()
        stuck, other = await asyncio.gather(
            actor.generate_group(lease(1), replace(task(1), label="never ends"), Words()),
            actor.generate_group(lease(2), task(2), Words()),
        )
        return {
            "failure": stuck[0].failure,
            "tokens": stuck[0].n_tokens,
            "other": len(other[0].group.trajectories),
            "seconds": time.monotonic() - began,
        }

    agent = str(Path(__file__).with_name("agent.py"))
    return await with_engine(run, folder, agent_func_path=agent, trajectory_timeout_s=2.0, max_retries=1)


def arriving_weights(folder: str, kind: str) -> dict[str, Any]:
    """Weights of a trainer's model of `kind` reach an engine that was started with others.

    The largest difference between the engine's log-probs and the model's own, before, after, and after an update that
    failed half-way and was repeated; and what two faulty updates said.
    """
    return asyncio.run(_arriving_weights(folder, kind))


async def _arriving_weights(folder: str, kind: str) -> dict[str, Any]:
    import models

    from openrlhf.trainer.ray.weight_sender import make_sender
    from openrlhf.trainer.ray.weight_source import WeightSource

    model = models.trained(kind, seed=2)
    sender = make_sender(WeightSource(model, zero_stage=0, bucket_bytes=1 << 15))

    async def difference(actor: Any) -> float:
        import ranges

        worst = 0.0
        for number in range(3):
            tokens = [random.Random(number).randrange(160) for _ in range(40)]
            scored, _ = await actor.rescore(tokens)
            worst = max([worst, *(abs(a - b) for a, b in zip(scored, ranges.logprobs(model, tokens), strict=True))])
        return worst

    async def fault(actor: Any, infos: list[dict[str, Any]]) -> str:
        try:
            await actor.load_weights(1, infos)
        except Exception as error:
            return f"{error}"
        return "nothing was raised"

    async def run(actor: Any) -> dict[str, Any]:
        sender.stage()
        infos = sender.update_infos()
        before = await difference(actor)
        cut = await fault(actor, [infos[0] | {"size": infos[0]["size"] + 8}, *infos[1:]])
        missing = await fault(actor, infos[:-1])
        await actor.load_weights(1, infos)
        await actor.serve(1)
        return {
            "buckets": len(infos),
            "before": before,
            "after": await difference(actor),
            "cut": cut,
            "missing": missing,
        }

    return await with_engine(run, folder, engine={"max_model_len": 128})


def lease(number: int) -> Any:
    from pace.prompts import Lease

    return Lease(group_id=f"0:{number}.0", prompt_id=f"0:{number}", index=number, episode=0, attempt=0)


def task(number: int) -> Any:
    from openrlhf.trainer.fully_async.messages import Task

    draw = random.Random(number)
    prompt = " ".join(str(draw.randrange(5, 320)) for _ in range(draw.randrange(4, 40)))
    sampling = {"temperature": 1.0, "max_tokens": draw.randrange(60, 140), "ignore_eos": True, "logprobs": 0}
    return Task(
        prompt=prompt,
        label=str(number),
        images=None,
        sampling=sampling | {"detokenize": False},
        max_length=400,
        n_samples=4,
    )


def _examine(sets: list[Any], reports: list[Any], blocks: list[bytes]) -> dict[str, Any]:
    """Compares labels with the tokens' ranges, and log-probs with transformers' under the labelled weights."""
    import ranges

    from openrlhf.trainer.fully_async import payload

    responses = [response for block in blocks for response in payload.unpack(block)]
    wrong = unknown = n_tokens = crossing = 0
    worst = 0.0
    for number, response in enumerate(responses):
        pairs = [(i, v) for i, v in enumerate(response["versions"]) if v != payload.NOT_GENERATED]
        tokens = response["observation_tokens"]
        unknown += sum(version == payload.UNKNOWN for _, version in pairs)
        wrong += sum(version != ranges.version_of(tokens[i]) for i, version in pairs)
        n_tokens += len(pairs)
        crossing += len({version for _, version in pairs}) > 1
        if number % 4 == 0:
            under = {version: ranges.logprobs(sets[version], tokens) for version in {v for _, v in pairs}}
            worst = max([worst, *(abs(under[v][i - 1] - response["rollout_log_probs"][i]) for i, v in pairs)])
    trajectories = [t for report in reports for t in report.group.trajectories]
    return {
        "trajectories": len(responses),
        "tokens": n_tokens,
        "record_tokens": sum(t.n_tokens for t in trajectories),
        "wrong": wrong,
        "unknown": unknown,
        "crossing": crossing,
        "worst_logprob": worst,
        "scored_trajectories": sum(t.prefix_score is not None for t in trajectories),
    }


if __name__ == "__main__":
    print("\n" + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
    sys.stdout.flush()
    os._exit(0)
