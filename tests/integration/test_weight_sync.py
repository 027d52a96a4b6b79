"""Engines that die, hang or fail during a weight sync or a scoring, on real Ray with named fakes for the engines."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pace.config import PaceConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_S = 15.0  # of a sync
PATIENCE_S = 60.0  # more than an actor needs to start again on a busy machine


class World:
    """Engines, policy and pool, and the sync between them."""

    def __init__(self, folder: Path, policy: Any, n_engines: int, *, restarts: int = -1, **settings: Any) -> None:
        from openrlhf.trainer.fully_async.weight_sync import WeightSync
        from tests.integration import fakes

        self.plans = [folder / f"engine{i}" for i in range(n_engines)]
        for plan in self.plans:
            plan.mkdir()
        self.engines = [fakes.FakeEngine.options(max_restarts=restarts).remote(str(plan)) for plan in self.plans]
        self.policy, self.pool = policy, fakes.FakePool.remote()
        ray.get(self.policy.train.remote(0.0))
        self.sync = WeightSync(
            engines=self.engines,
            actor_group=SimpleNamespace(_actor_handlers=[self.policy]),
            pool=self.pool,
            config=PaceConfig(enable=True, **{"sync_timeout_s": LIMIT_S, **settings}),
            engine_size=1,
            version=0,
        )
        self.sync.start(own_weights=True)

    def fate(self, index: int, method: str, *fates: str) -> None:
        (self.plans[index] / method).write_text("\n".join(fates))

    def push(self, version: int) -> dict[str, float]:
        ray.get(self.policy.train.remote(float(version)))
        return self.sync.push(version)

    def state(self, index: int = 0) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ray.get(self.engines[index].state.remote())
            except ray.exceptions.ActorUnavailableError:  # it is being started again
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def states(self) -> list[dict[str, Any]]:
        return [self.state(index) for index in range(len(self.engines))]

    def revive_until(self, done: Callable[[], bool]) -> None:
        """What the trainer does while it waits for a batch."""
        self.wait_for(done, meanwhile=self.sync.revive)

    def wait_for(self, done: Callable[[], bool], *, meanwhile: Callable[[], Any] = lambda: None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {self.sync._serving}, {self.sync._gone}"
            meanwhile()
            time.sleep(0.2)

    def close(self) -> None:
        self.sync.close()
        for actor in (*self.engines, self.pool):
            ray.kill(actor)


@pytest.fixture(scope="module")
def policy(cluster: None) -> Iterator[Any]:
    """One for all tests: it is slow to start, and a sync that has ended leaves nothing in it."""
    from tests.integration import fakes

    actor = fakes.FakePolicy.remote()
    yield actor
    ray.kill(actor)


@pytest.fixture
def world(policy: Any, tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(n_engines: int, **settings: Any) -> World:
        made.append(World(tmp_path, policy, n_engines, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def served(state: dict[str, Any], version: int) -> bool:
    """Serves the version with the weights that the trainer had at it, and generates."""
    return state["version"] == version and state["weight"] == [float(version)] * 4 and not state["paused"]


def test_a_sync_reaches_every_engine_and_scores_come_afterwards(world):
    one = world(2)
    numbers = one.push(1)
    assert all(served(state, 1) for state in one.states())
    assert numbers["sync/interrupted"] == 4 and numbers["sync/engines"] == 2
    assert numbers["time/rollout_paused"] <= numbers["time/sync"]
    assert (numbers["time/rescore"], numbers["pace/prefix_score/noise_floor"]) == (0.25, 1e-7)
    one.wait_for(lambda: ray.get(one.pool.seen.remote()) == ([1], [0.5, 0.25] * 2))


def test_a_sync_outlasts_a_restart_of_the_pool(world):
    one = world(1)
    one.pool.die.remote()
    one.push(1)
    assert served(one.state(), 1)
    assert ray.get(one.pool.seen.remote())[0] == [1]


@pytest.mark.parametrize("fate", ["die", "hang"])
def test_an_engine_lost_in_a_sync_comes_back_with_the_current_weights(world, fate):
    """The other one goes on meanwhile; nobody waits longer than the time limit."""
    one = world(2)
    one.fate(0, "load_weights", fate)
    began = time.monotonic()
    assert one.push(1)["sync/engines"] == 1
    assert time.monotonic() - began < 2 * LIMIT_S
    assert served(one.state(1), 1)
    one.push(2)
    one.revive_until(lambda: len(one.sync._serving) == 2)
    assert all(served(state, 2) for state in one.states())


def test_the_only_engine_may_be_lost_and_come_back(world):
    one = world(1)
    one.push(1)
    one.fate(0, "load_weights", "die")
    assert one.push(2)["sync/engines"] == 0
    one.revive_until(lambda: bool(one.sync._serving))
    assert served(one.state(), 2)


def test_a_failed_load_is_tried_once_more(world):
    one = world(1)
    before = one.state()["incarnation"]
    one.fate(0, "load_weights", "raise")
    one.push(1)
    assert served(one.state(), 1) and one.state()["incarnation"] == before


def test_an_engine_that_never_loads_is_started_again(world):
    one = world(1)
    before = one.state()["incarnation"]
    one.fate(0, "load_weights", "raise", "raise")
    one.push(1)
    one.revive_until(lambda: bool(one.sync._serving))
    assert served(one.state(), 1) and one.state()["incarnation"] != before


def test_an_engine_that_dies_while_scoring_costs_its_scores_only(world):
    one = world(2)
    one.fate(0, "score_prefixes", "die")
    one.push(1)
    one.revive_until(lambda: len(one.sync._serving) == 2 and one.state()["version"] == 1)
    assert ray.get(one.pool.seen.remote()) == ([1], [0.5, 0.25])


def test_an_engine_that_died_before_any_sync_serves_its_own_weights(world):
    one = world(1)
    before = one.state()["incarnation"]
    ray.kill(one.engines[0], no_restart=False)
    one.revive_until(lambda: one.sync._serving.get(0, before) != before)
    assert one.state()["version"] == 0


def test_with_no_engine_left_the_run_ends_with_the_cause(world):
    from openrlhf.trainer.fully_async.weight_sync import NoEngineLeft

    one = world(1, restarts=0)
    ray.kill(one.engines[0])
    with pytest.raises(NoEngineLeft, match="no vLLM engine is left"):
        one.revive_until(lambda: False)


def test_weights_are_removed_at_the_end(world):
    one = world(1)
    one.push(1)
    paths = [Path(info["path"]) for info in one.sync._staged]
    assert all(path.exists() for path in paths)
    one.sync.close()
    assert not any(path.exists() for path in paths)
