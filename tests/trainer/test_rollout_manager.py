"""The rollout loop over the real pool, on engines that fail, die and dawdle; Ray's handles are stood in for."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError, RayActorError

from openrlhf.trainer.fully_async import engine_balancer, restarts, rollout_manager
from openrlhf.trainer.fully_async.engine_balancer import ENGINE_DEATHS_PER_GROUP
from openrlhf.trainer.fully_async.rollout_manager import (
    FIRST_FAILURES,
    KeepBetween,
)
from pace.prompts import Lease

from ..virtual_time import run
from .rollout_world import PATIENCE_S, World, failure, report


@pytest.fixture(autouse=True, scope="module")
def short_waits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_balancer, "ENGINE_RETRY_S", 0.001)
        patch.setattr(restarts, "RETRY_S", 0.001)
        patch.setattr(rollout_manager, "LEASE_WAIT_S", 0.2)
        yield


@pytest.fixture
def make(tmp_path):
    return lambda **settings: World(tmp_path / "pool", **settings)


def test_every_prompt_of_every_episode_leaves_exactly_once(make):
    world = make(n_prompts=12, episodes=2)
    world.run()
    assert len(world.trained) == 24 and set(world.trained.values()) == {1}
    assert set(world.calls.values()) == {1}
    assert [len(draw.groups) for draw in world.draws] == [4] * 6
    assert world.pool.fates == {"generated": 24, "trained": 24}


def test_the_engines_never_have_more_than_the_pool_allows(make):
    world = make(n_prompts=30, max_inflight_groups=5)
    most = []
    world.engines[0].act = world.engines[1].act = lambda lease: most.append(world.pool.core.pool.ledger.n_in_flight)
    world.run()
    assert max(most) == 5


def test_a_group_whose_engine_dies_goes_to_another_and_is_not_doubled(make):
    world = make(n_prompts=8)
    world.engines[0].act = lambda lease: ActorDiedError()
    world.engines[0].seconds = 0.01
    world.run()
    assert world.engines[0].calls and set(world.engines[1].calls) == world.calls.keys()
    assert len(world.trained) == 8 and set(world.trained.values()) == {1}
    assert world.pool.fates == {"generated": 8, "trained": 8}


def test_a_dead_engine_rests_while_its_groups_wait_for_another(make):
    """Otherwise the groups that start meanwhile would run into it as well."""
    world = make(n_prompts=20, n_engines=2, max_inflight_groups=4)
    world.engines[0].act = lambda lease: ActorDiedError()
    world.run()
    assert len(world.engines[0].calls) <= 4


def test_an_engine_that_is_starting_again_costs_no_attempt(make):
    world = make(n_prompts=2, n_engines=1, batch=2)
    waits = iter([ActorUnavailableError("starting", None)] * (3 * ENGINE_DEATHS_PER_GROUP))
    world.engines[0].act = lambda lease: next(waits, None)
    world.run()
    assert world.pool.fates == {"generated": 2, "trained": 2}


def test_when_all_engines_die_the_groups_fail_and_are_counted(make, caplog):
    world = make(n_prompts=5)
    for engine in world.engines:
        engine.act = lambda lease: ActorDiedError()
    world.run()
    assert world.pool.fates == {"generated": 5, "failed": 5} and not world.draws
    assert set(world.calls.values()) == {ENGINE_DEATHS_PER_GROUP}
    assert "engines died" in caplog.text


@pytest.mark.parametrize(("on_failure", "attempts"), [("drop", 1), ("requeue", 4)])
@pytest.mark.parametrize("how", ["reported", "died"])
def test_a_prompt_that_keeps_failing_is_dropped_at_once_or_at_the_cap(make, how, on_failure, attempts):
    world = make(n_prompts=8, on_failure=on_failure, requeue_cap=3)

    def act(lease: Lease) -> Any:
        bad = lease.index == 2
        return (failure(n_tokens=4) if how == "reported" else ActorDiedError()) if bad else None

    for engine in world.engines:
        engine.act = act
    world.run()
    assert world.pool.fates == {"generated": 7 + attempts, "trained": 7, "failed": attempts}
    assert "0:2" not in world.trained
    tokens = world.pool.core.pool.ledger.columns()["tokens"]
    assert tokens["failed"] == (4 * attempts if how == "reported" else 0) and tokens["trained"] == 7 * 6
    assert {group for group in world.calls if group.startswith("0:2.")} == {f"0:2.{i}" for i in range(attempts)}


@pytest.mark.parametrize("n_good", [0, 1])
def test_a_run_whose_first_groups_all_fail_ends_with_the_cause(make, n_good):
    world = make(n_prompts=FIRST_FAILURES + 8, n_engines=1)
    good = iter([None] * n_good)
    world.engines[0].act = lambda lease: next(good, failure())
    if n_good:
        world.run()
        assert world.pool.fates["failed"] == FIRST_FAILURES + 8 - n_good
    else:
        with pytest.raises(RuntimeError, match="first 16 groups all failed.*the environment is broken"):
            world.run()


def test_a_prompt_that_fails_once_is_trained_later(make):
    world = make(n_prompts=8, on_failure="requeue")
    for engine in world.engines:
        engine.act = lambda lease: failure() if lease.index == 2 and lease.attempt == 0 else None
    world.run()
    assert world.trained["0:2"] == 1 and world.pool.fates == {"generated": 9, "trained": 8, "failed": 1}


def test_dynamic_filtering_drops_groups_and_keeps_all_others_to_the_end(make):
    """The last batch is short; no accepted group is thrown away with the end of the data."""
    world = make(n_prompts=9)
    world.keep = KeepBetween(0.0, 1.0)
    for engine in world.engines:
        engine.act = lambda lease: report(lease, scores=(1.0, 1.0), ready=world.version) if lease.index < 3 else None
    world.run()
    assert world.pool.fates == {"generated": 9, "trained": 6, "filtered": 3}
    assert [len(draw.groups) for draw in world.draws] == [4, 2]
    assert world.pool.core.pool.ledger.columns()["tokens"]["filtered"] == 18


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ((0.0, 0.0), False),
        ((1.0, 1.0), False),
        ((0.0, 1.0), True),
        ((None, 1.0), True),
        ((), True),
        ((0.2, 0.2), False),
        ((0.3, 0.3), True),
    ],
)
def test_groups_are_kept_strictly_between_the_bounds(scores, kept):
    assert KeepBetween(0.2, 1.0)(scores) is kept
    assert KeepBetween()(scores)


def test_a_slow_engine_gets_fewer_groups(make):
    world = make(n_prompts=60, max_inflight_groups=6)
    world.engines[0].seconds, world.engines[1].seconds = 0.03, 0.003
    world.run()
    assert 0 < len(world.engines[0].calls) * 2 < len(world.engines[1].calls)


def test_a_pool_that_was_away_finds_every_group_again(make):
    world = make(n_prompts=40, max_inflight_groups=6)
    for engine in world.engines:
        engine.seconds = 0.005

    async def outages() -> None:
        for n_trained in (1, 4):
            while len(world.draws) < n_trained:
                await asyncio.sleep(0.001)
            world.pool.kill()
            await asyncio.sleep(0.03)
            world.pool.restart()

    world.run(outages)
    assert len(world.trained) == 40 and set(world.trained.values()) == {1}
    assert set(world.calls.values()) == {1}, "what was running is not begun again"
    assert world.pool.fates == {"generated": 40, "trained": 40}


@pytest.mark.parametrize("method", ["lease", "put", "close", "outstanding"])
def test_a_lost_reply_loses_and_doubles_nothing(make, method):
    world = make(n_prompts=12)
    for engine in world.engines:
        engine.act = lambda lease: failure() if lease.index == 0 else None
    world.pool.lost_replies[method] = 1
    world.run()
    assert world.pool.lost_replies[method] == 0
    assert set(world.calls.values()) == {1} and len(world.calls) == 12
    assert world.pool.fates == {"generated": 12, "trained": 11, "failed": 1}


def test_a_pool_that_stays_away_ends_the_run(make, monkeypatch):
    monkeypatch.setattr(restarts, "PATIENCE_S", 0.02)
    world = make()
    world.pool.kill()
    with pytest.raises(RayActorError):
        run(asyncio.wait_for(world.manager().run(), PATIENCE_S))


def test_a_new_manager_takes_up_what_the_old_one_had_in_flight(make):
    world = make(n_prompts=16, max_inflight_groups=4)
    for engine in world.engines:
        engine.seconds = 0.005

    async def scenario() -> None:
        training = asyncio.create_task(world.train())
        first = world.manager()
        old = asyncio.create_task(first.run())
        while not world.draws:
            await asyncio.sleep(0.001)
        in_flight = set(world.pool.core.in_flight)
        assert in_flight
        # A killed process has no say: cancel again what a reply in that very moment kept going.
        while gone := [task for task in (old, *first._running.values()) if not task.done()]:
            for task in gone:
                task.cancel()
            await asyncio.wait(gone, timeout=0.01)
        await world.manager().run()
        await training
        assert any(world.calls[group_id] == 2 for group_id in in_flight)

    run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert len(world.trained) == 16 and set(world.trained.values()) == {1}
    assert world.pool.fates == {"generated": 16, "trained": 16}


def test_a_payload_that_is_lost_with_its_machine_is_a_failed_group(make):
    world = make(n_prompts=4, on_failure="requeue")
    put, lost = world.pool.service.put, iter([True])

    async def losing(group: Any, payload: Any) -> bool:
        if next(lost, False):
            raise ObjectLostError("ab" * 28, None, "")
        return await put(group, payload)

    world.pool.service.put = losing
    world.run()
    assert world.pool.fates == {"generated": 5, "trained": 4, "failed": 1}


def test_what_no_retry_helps_against_ends_the_run(make):
    world = make()
    world.keep = lambda scores: 1 / 0
    with pytest.raises(ZeroDivisionError):
        world.run()


def test_strict_mode_trains_at_lag_0(make):
    world = make(n_prompts=40, strict=True)
    for engine in world.engines:
        engine.seconds = 0.002
        engine.act = lambda lease: failure() if lease.index == 5 else None
    world.run()
    assert len(world.draws) == 10
    lags = [decision.total for draw in world.draws for decision in draw.decisions]
    assert len(lags) == 39 and set(lags) == {0.0}
    versions = [{s.version for g in draw.groups for t in g.trajectories for s in t.spans} for draw in world.draws]
    assert versions == [{step} for step in range(10)]


def test_without_strict_mode_the_engines_run_ahead(make):
    """So that the test before is about the mode."""
    world = make(n_prompts=40)
    for engine in world.engines:
        engine.seconds = 0.002
    world.run()
    assert any(decision.total for draw in world.draws for decision in draw.decisions)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    knobs=st.fixed_dictionaries(
        {
            "on_failure": st.sampled_from(["drop", "requeue"]),
            "on_reject": st.sampled_from(["drop", "requeue"]),
            "requeue_cap": st.integers(1, 3),
            "max_reject_rate": st.sampled_from([0.0, 0.5]),
            "target_batches": st.just(1.0),
            "rate_smoothing": st.just(0.0),
            "k_max": st.sampled_from([-1, 1, 8]),
            "admission": st.sampled_from(["none", "areal"]),
            "max_inflight_groups": st.sampled_from([0, 1, 5]),
        }
    ),
)
def test_whatever_fails_the_ledger_closes_and_every_prompt_has_one_fate(tmp_path_factory, seed, knobs):
    rng = random.Random(seed)
    world = World(tmp_path_factory.mktemp("pool") / "pool", n_engines=3, n_prompts=rng.randint(1, 20), **knobs)
    world.keep = KeepBetween(0.0, 1.0)
    for method in ("lease", "put", "close"):
        world.pool.lost_replies[method] = rng.randint(0, 2)

    def act(lease: Lease) -> Any:
        what = rng.random()
        if what < 0.15:
            return rng.choice([ActorDiedError(), ActorUnavailableError("starting", None)])
        if what < 0.3:
            return failure()
        return report(lease, scores=(1.0, 1.0), ready=world.version) if what < 0.4 else None

    for engine in world.engines:
        engine.act, engine.seconds = act, rng.choice([0.0, 0.002])
    world.run()

    assert set(world.trained.values()) <= {1}
    fates = world.pool.fates
    assert fates["generated"] == sum(fates.values()) - fates["generated"]
    attempts = Counter(group_id.rsplit(".", 1)[0] for group_id in world.pool.ends)
    assert len(attempts) == world.n_prompts, "every prompt was rolled out"
    assert max(attempts.values()) <= 1 + knobs["requeue_cap"]
    # Each attempt but a prompt's last was put back; the last one is its fate.
    put_back = sum(n - 1 for n in attempts.values())
    assert fates["generated"] == world.n_prompts + put_back
    if knobs["on_failure"] == knobs["on_reject"] == "drop":
        assert put_back == 0
