"""Named fakes for the actors around a weight sync: an engine without vLLM that fails where it is told to, a policy of
one small layer, and a pool that only remembers what it was told. And one for an engine's rollouts."""

import asyncio
import os
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch

import openrlhf  # noqa: F401  (the CPU platform first)
from openrlhf.trainer.fully_async.messages import EngineStatus, GroupReport, LoadReport, Task
from pace.prompts import Lease
from pace.types import Trajectory, TrajectoryGroup, VersionSpan


@ray.remote(num_cpus=0)
class FakeEngine:
    """Loads and serves as the real one says it does. `plan` is a folder: a file named after a method says what happens
    at the next call, `die`, `hang` or `raise`, once per line."""

    def __init__(self, plan: str) -> None:
        self._plan = Path(plan)
        self._incarnation = uuid.uuid4().hex
        self._version: int | None = None
        self._loaded: int | None = None
        self._weight: torch.Tensor | None = None
        self._paused = False

    def connect_weights(self, info: dict[str, Any]) -> None:
        self._fate("connect_weights")

    def load_weights(self, version: int, infos: list[dict[str, Any]]) -> LoadReport:
        self._paused, self._loaded = True, None
        self._fate("load_weights")
        (info,) = infos
        content = torch.from_file(info["path"], shared=False, size=info["size"], dtype=torch.uint8)
        self._weight = content[: 4 * 4].view(torch.float32).clone()
        self._loaded = version
        return LoadReport(pause_s=0.0, load_s=0.0, interrupted=2, noise_floor=1e-7, rescore_s=0.25)

    def serve(self, version: int, *, weights: str = "loaded") -> str:
        self._fate("serve")
        if weights == "own" and self._loaded is None:
            self._loaded = version
        if self._loaded != version:
            raise RuntimeError(f"holds {self._loaded}, not {version}")
        self._version, self._paused = version, False
        return self._incarnation

    def score_prefixes(self) -> list[float]:
        self._fate("score_prefixes")
        return [0.5, 0.25]

    def status(self) -> EngineStatus:
        return EngineStatus(incarnation=self._incarnation, version=self._version, loaded=self._loaded)

    def state(self) -> dict[str, Any]:
        weight = None if self._weight is None else self._weight.tolist()
        return {"version": self._version, "paused": self._paused, "weight": weight, "incarnation": self._incarnation}

    def _fate(self, method: str) -> None:
        path = self._plan / method
        fates = path.read_text().split() if path.exists() else []
        if not fates:
            return
        path.write_text("\n".join(fates[1:]))
        if fates[0] == "die":
            os._exit(1)
        if fates[0] == "hang":
            time.sleep(3600)
        raise RuntimeError(f"{method} fails as planned")


@ray.remote(num_cpus=0)
class FakePolicy:
    """Rank 0 of a policy with one weight of four numbers, all equal to the last `train(value)`."""

    def __init__(self) -> None:
        from openrlhf.trainer.ray import policy_side  # noqa: F401  (slow to import; nobody's time limit shall pay)

        self.model = torch.nn.Linear(4, 1, bias=False)
        ds = SimpleNamespace(zero_stage=0, tensor_parallel_size=1)
        actor = SimpleNamespace(loss_agg_mode="token-mean")
        self.strategy = SimpleNamespace(args=SimpleNamespace(ds=ds, actor=actor))
        self.trainer = SimpleNamespace(actor=SimpleNamespace(model=SimpleNamespace(module=self.model)))

    def train(self, value: float) -> None:
        self.model.weight.data.fill_(value)


@ray.remote(num_cpus=0, max_restarts=-1)
class FakePool:
    """Remembers versions and scores, until it dies and is started again."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.scores: list[float] = []

    def set_version(self, version: int) -> None:
        self.versions.append(version)

    def die(self) -> None:
        os._exit(1)

    def add_scores(self, scores: list[float]) -> None:
        self.scores += scores

    def seen(self) -> tuple[list[int], list[float]]:
        return self.versions, self.scores


@ray.remote(num_cpus=0)
class FakeRollouts:
    """An engine that takes `seconds` for a group of one rollout with one token."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = 0

    async def generate_group(self, lease: Lease, task: Task, tokenizer: Any) -> tuple[GroupReport, bytes]:
        self._started += 1
        await asyncio.sleep(self._seconds)
        names = {"group_id": lease.group_id, "prompt_id": lease.prompt_id}
        rollout = Trajectory(
            trajectory_id=f"{lease.group_id}/0", spans=(VersionSpan(0, 1),), completed_version=0, reward=1.0, **names
        )
        group = TrajectoryGroup(trajectories=(rollout,), ready_version=0, attempt=lease.attempt, **names)
        return GroupReport(group=group, n_tokens=1, scores=(1.0,)), b"tokens"

    def started(self) -> int:
        return self._started
