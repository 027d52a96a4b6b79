"""The asynchronous shell without Ray: who is woken when, and callers that go away."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pace.actor import PoolService
from pace.config import PaceConfig
from pace.durable import DurablePool
from pace.metrics import metric_keys
from pace.types import RejectReason

from ..virtual_time import run

SOON, NEVER = 0.02, 30.0  # seconds


class Reference:
    """Stands for an object reference."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.n_fetched = 0

    def __await__(self) -> Any:
        self.n_fetched += 1
        yield from asyncio.sleep(0).__await__()
        return self.content


@pytest.fixture
def start(tmp_path, build):
    """Makes a service on one folder, and what the rollout side does with it."""

    def make(*, fresh: bool = True, batch_groups: int = 2, n_prompts: int = 6, **settings: Any) -> SimpleNamespace:
        pool = DurablePool(
            PaceConfig(**{"max_reject_rate": 0.0, **settings}),
            batch_groups=batch_groups,
            n_prompts=n_prompts,
            n_episodes=1,
            seed=0,
            folder=tmp_path / "pool",
            fresh=fresh,
            clock=time.time,
        )
        service = PoolService(pool, keep=Reference)

        async def put(lease: Any, *, ready: int = 0) -> bool:
            group = build.group(lease.group_id, siblings=[(ready,)], prompt_id=lease.prompt_id, attempt=lease.attempt)
            return await service.put(group, [Reference(lease.group_id.encode())])

        async def fill(n: int, *, ready: int = 0) -> None:
            for lease in (await service.lease(limit=n, timeout_s=0)).leases:
                assert await put(lease, ready=ready)

        return SimpleNamespace(service=service, pool=pool, put=put, fill=fill)

    return make


def waiting(coroutine: Any) -> Any:
    """The call as a task that has come to its first wait."""
    task = asyncio.ensure_future(coroutine)

    async def begun() -> Any:
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        return task

    return begun()


def test_calls_that_can_be_answered_do_not_wait(start):
    async def scenario() -> None:
        one = start()
        reply = await one.service.lease(limit=9, timeout_s=NEVER)
        assert len(reply.leases) == 4 and reply.version == 0 and not reply.finished
        for lease in reply.leases:
            await one.put(lease)
        drawn = await one.service.draw(0, timeout_s=NEVER)
        assert [ref.content.decode() for ref in drawn.payloads] == [group.group_id for group in drawn.draw.groups]
        again = await one.service.draw(0, timeout_s=NEVER)
        assert again.draw == drawn.draw and again.payloads == drawn.payloads

    run(scenario())


def test_calls_that_wait_end_with_nothing_at_their_time(start):
    async def scenario() -> None:
        one = start()
        assert (await one.service.draw(0, timeout_s=SOON)).draw is None
        await one.service.lease(limit=9, timeout_s=0)
        assert (await one.service.lease(limit=9, timeout_s=SOON)).leases == ()

    run(scenario())


def test_a_draw_is_woken_by_the_group_that_completes_the_batch(start):
    async def scenario() -> None:
        one = start()
        await one.fill(1)
        draw = await waiting(one.service.draw(0, timeout_s=NEVER))
        await one.fill(1)
        assert len((await draw).draw.groups) == 2

    run(scenario())


@pytest.mark.parametrize("how", ["draw", "close", "set_version"])
def test_a_lease_is_woken_by_a_free_slot(start, how):
    async def scenario() -> None:
        bound = {"admission": "areal", "admission_eta": 0} if how == "set_version" else {"pool_capacity_groups": 2}
        one = start(max_inflight_groups=2, **bound)
        if how == "close":
            leases = (await one.service.lease(limit=2, timeout_s=0)).leases
        else:
            await one.fill(2)
        lease = await waiting(one.service.lease(limit=2, timeout_s=NEVER))
        if how == "close":
            await one.service.close(leases[0].group_id, reason=RejectReason.FAILURE, n_tokens=3, put_back=True)
            assert [new.attempt for new in (await lease).leases] == [1]
            return
        await one.service.draw(0, timeout_s=0)
        if how == "set_version":
            await one.service.commit(0)
            assert not lease.done()
            await one.service.set_version(1)
        reply = await lease
        assert len(reply.leases) == 2 and reply.version == (how == "set_version")

    run(scenario())


def test_a_draw_that_only_evicts_wakes_the_lease_and_not_itself(start):
    """The pool is full of groups above the cap: throwing them away frees the slots the trainer waits for."""

    async def scenario() -> None:
        one = start(max_inflight_groups=2, pool_capacity_groups=2, k_max=1)
        await one.fill(2)
        lease = await waiting(one.service.lease(limit=2, timeout_s=NEVER))
        looks = []
        look = one.pool.draw
        one.pool.draw = lambda version: looks.append(version) or look(version)
        draw = await waiting(one.service.draw(5, timeout_s=NEVER))
        for new in (await lease).leases:
            await one.put(new, ready=5)
        assert len((await draw).draw.evicted_before) == 2
        assert len(looks) == 2, "one look at first, and one after the puts"

    run(scenario())


def test_the_end_of_the_data_wakes_everyone_and_shows_the_last_evictions(start):
    async def scenario() -> None:
        one = start(n_prompts=3, k_max=1)
        await one.fill(3)
        await one.service.draw(0, timeout_s=0)
        lease = await waiting(one.service.lease(limit=2, timeout_s=NEVER))
        await one.service.commit(0)
        last = await one.service.draw(5, timeout_s=NEVER)
        assert last.finished and last.draw is None and [d.ready_version for d in last.evicted] == [0]
        assert (await lease).finished

    run(scenario())


def test_callers_that_went_away_take_nothing_with_them(start):
    async def scenario() -> None:
        one = start(max_inflight_groups=2)
        first = (await one.service.lease(limit=2, timeout_s=0)).leases
        gone = [await waiting(one.service.lease(limit=2, timeout_s=NEVER))]
        gone += [await waiting(one.service.draw(0, timeout_s=NEVER)) for _ in range(3)]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        for lease in first:
            await one.put(lease)
        assert (await one.service.draw(0, timeout_s=0)).draw
        assert len((await one.service.lease(limit=2, timeout_s=0)).leases) == 2

    run(scenario())


def test_a_new_manager_finds_every_lease(start):
    """A call of the old manager still waits in the actor: a lease given to it would be lost for ever."""

    async def scenario() -> None:
        one = start(max_inflight_groups=2)
        leases = (await one.service.lease(limit=2, timeout_s=0)).leases
        old = await waiting(one.service.lease(limit=2, timeout_s=NEVER))
        assert await one.service.outstanding() == leases
        await one.put(leases[0])
        assert (await old).leases == ()
        assert len((await one.service.lease(limit=2, timeout_s=0)).leases) == 1

    run(scenario())


def test_a_payload_is_fetched_for_wanted_groups_only_and_forgotten_after_the_commit(start, build):
    async def scenario() -> None:
        one = start()
        unwanted = Reference(b"")
        assert not await one.service.put(build.group("x"), [unwanted]) and not unwanted.n_fetched
        (lease, _) = (await one.service.lease(limit=2, timeout_s=0)).leases
        assert sorted(await asyncio.gather(one.put(lease), one.put(lease))) == [False, True]
        await one.fill(2)
        await one.service.draw(0, timeout_s=0)
        assert len(one.service._references) == 3
        assert await one.service.commit(0) and not await one.service.commit(0)
        assert len(one.service._references) == 1

    run(scenario())


def test_a_restarted_service_gives_the_same_batch_with_new_references(start):
    async def scenario() -> None:
        one = start()
        await one.fill(2)
        before = await one.service.draw(0, timeout_s=0)
        two = start(fresh=False)
        after = await two.service.draw(0, timeout_s=0)
        assert after.draw == before.draw and after.payloads != before.payloads
        assert [ref.content for ref in after.payloads] == [ref.content for ref in before.payloads]

    run(scenario())


def test_a_waiting_draw_goes_on_with_the_loaded_checkpoint(start, tmp_path):
    async def scenario() -> None:
        one = start()
        await one.fill(2)
        await one.service.save(str(tmp_path / "checkpoint"))
        two = start()
        draw = await waiting(two.service.draw(0, timeout_s=NEVER))
        await two.service.load(str(tmp_path / "checkpoint"))
        assert len((await draw).draw.groups) == 2

    run(scenario())


def test_the_heartbeat_says_who_waits_for_what(start):
    async def scenario() -> None:
        one = start(max_inflight_groups=2)
        assert await one.service.waiting_for() == (
            "nobody waits: 0 of 2 groups ready (capacity 16), 0 in flight, 2 may start"
        )
        leases = (await one.service.lease(limit=2, timeout_s=0)).leases
        await one.service.lease(limit=2, timeout_s=0)
        await one.put(leases[0])
        await one.service.draw(0, timeout_s=0)
        assert await one.service.waiting_for() == (
            "trainer waits 0 s for step 0, rollout manager waits 0 s for a free slot: "
            "1 of 2 groups ready (capacity 16), 1 in flight, 1 may start"
        )
        await asyncio.sleep(12)
        await one.service.draw(0, timeout_s=0)
        assert "trainer waits 12 s" in await one.service.waiting_for(), "polls in a row are one wait"
        await one.put(leases[1])
        await one.service.draw(0, timeout_s=0)
        await one.service.lease(limit=1, timeout_s=0)
        assert (await one.service.waiting_for()).startswith("nobody waits: 0 of 2 groups ready")

    run(scenario())


def test_the_report_has_the_keys_of_the_metrics_module(start):
    async def scenario() -> None:
        one = start()
        await one.fill(1)
        await one.service.add_scores([0.1])
        report = await one.service.report()
        assert set(report) <= metric_keys()
        assert report["pace/pool/groups"] == report["pace/prefix_score/seen"] == 1.0

    run(scenario())
