"""Rollout manager and pool as real Ray actors between named fakes of engines: a slow engine, a full pool."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from pace.config import PaceConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BATCH, N_PROMPTS = 4, 32
PATIENCE_S = 60.0  # more than an actor needs to start on a busy machine


class World:
    """Everything but the trainer, whose calls the tests make."""

    def __init__(self, folder: Path, seconds: tuple[float, ...], **settings: Any) -> None:
        from openrlhf.trainer.fully_async.messages import Task
        from openrlhf.trainer.fully_async.rollout_manager import KeepBetween, RolloutManagerActor
        from pace.actor import TrajectoryPoolActor
        from tests.integration import fakes

        config = PaceConfig(enable=True, admission="none", max_reject_rate=0.0, k_max=-1, **settings)
        self.engines = [fakes.FakeRollouts.remote(each) for each in seconds]
        self.pool = TrajectoryPoolActor.remote(
            config=config, batch_groups=BATCH, n_prompts=N_PROMPTS, n_episodes=1, seed=0, folder=str(folder)
        )
        self.manager = RolloutManagerActor.remote()
        task = Task(prompt="", label="", images=None, sampling={}, max_length=8, n_samples=1)
        self.rollouts = self.manager.run.remote(
            pool=self.pool,
            config=config,
            engines=self.engines,
            tasks=[ray.put([task] * N_PROMPTS)],
            tokenizer=[ray.put(None)],
            keep=KeepBetween(),
            allocator=None,
        )

    def started(self) -> list[int]:
        return ray.get([engine.started.remote() for engine in self.engines])

    def groups(self, where: str) -> int:
        """Groups `in_pool`, `in_flight` and so on, of the ledger."""
        return int(ray.get(self.pool.report.remote())[f"pace/ledger/groups/{where}"])

    def train_to_the_end(self) -> Counter[str]:
        """Draws and commits until the data ends; how often each prompt was trained."""
        trained: Counter[str] = Counter()
        for version in range(N_PROMPTS):
            reply = ray.get(self.pool.draw.remote(version, timeout_s=PATIENCE_S), timeout=2 * PATIENCE_S)
            if reply.draw is None:
                assert reply.finished
                break
            trained.update(group.prompt_id for group in reply.draw.groups)
            ray.get([self.pool.commit.remote(version), self.pool.set_version.remote(version + 1)])
        ray.get(self.rollouts, timeout=PATIENCE_S)
        return trained

    def close(self) -> None:
        for actor in (*self.engines, self.pool, self.manager):
            ray.kill(actor)


@pytest.fixture
def world(cluster: None, tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*seconds: float, **settings: Any) -> World:
        made.append(World(tmp_path, seconds, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_slow_engine_gets_fewer_groups_and_holds_nobody_up(world):
    one = world(0.05, 1.0, max_inflight_groups=BATCH)
    trained = one.train_to_the_end()
    fast, slow = one.started()
    assert len(trained) == N_PROMPTS == fast + slow and set(trained.values()) == {1}
    assert 0 < 3 * slow < fast


def test_a_full_pool_stops_the_rollouts_and_nobody_else(world):
    one = world(0.01, pool_capacity_groups=2 * BATCH, max_inflight_groups=BATCH)
    deadline = time.monotonic() + PATIENCE_S
    while one.groups("in_pool") < 2 * BATCH or one.groups("in_flight"):
        assert time.monotonic() < deadline, "the pool did not fill up"
        time.sleep(0.1)
    before = one.started()
    began = time.monotonic()
    ray.get(one.pool.set_version.remote(1))
    assert time.monotonic() - began < 1.0
    time.sleep(1.0)
    assert one.started() == before == [one.groups("in_pool")] and before[0] <= 2 * BATCH + BATCH
    assert ray.get(one.pool.waiting_for.remote())
    trained = one.train_to_the_end()
    assert len(trained) == N_PROMPTS and set(trained.values()) == {1}
