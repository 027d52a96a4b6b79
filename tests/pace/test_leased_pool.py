"""Leases and the pool together: who may start, what ends a lease, when the data is finished."""

import json
from typing import Any

import pytest

from pace.config import PaceConfig
from pace.leased_pool import LeasedPool
from pace.state import StateError
from pace.types import Outcome, RejectReason


def make(*, batch_groups: int = 2, n_prompts: int = 6, n_episodes: int = 1, **settings: Any) -> LeasedPool:
    return LeasedPool(
        PaceConfig(**{"max_reject_rate": 0.0, **settings}),
        batch_groups=batch_groups,
        n_prompts=n_prompts,
        n_episodes=n_episodes,
        seed=0,
        clock=lambda: 0.0,
    )


def group_of(build: Any, lease: Any, *, ready: int = 0) -> Any:
    return build.group(lease.group_id, siblings=[(ready,)], prompt_id=lease.prompt_id, attempt=lease.attempt)


def fill(build: Any, core: LeasedPool, n: int, *, ready: int = 0) -> list[str]:
    leases = core.lease(n)
    assert len(leases) == n and all(core.put(group_of(build, lease, ready=ready)) for lease in leases)
    return [lease.group_id for lease in leases]


def test_leases_are_bounded_by_the_slots_and_open_accounts():
    core = make(max_inflight_groups=3)
    leases = core.lease(10)
    assert len(leases) == 3 == core.pool.ledger.n_in_flight and core.free_slots == 0
    assert core.lease(10) == () and tuple(core.in_flight.values()) == leases


def test_there_may_be_more_prompts_to_choose_from_than_may_start():
    core = make(n_prompts=9, max_inflight_groups=2)
    leases = core.lease(10, choice=3)
    assert len(leases) == 6 and core.free_slots == 0
    for lease in leases[2:]:
        assert core.close(lease.group_id, reason=RejectReason.SKIP, n_tokens=0, put_back=False)
    assert core.free_slots == 0 and core.pool.ledger.columns()["groups"]["skipped"] == 4
    assert core.lease(10, choice=3) == ()
    core.close(leases[0].group_id, reason=RejectReason.FAILURE, n_tokens=0, put_back=False)
    assert core.lease(10, choice=3, at_least=2) == (), "one slot is no round while another group is in flight"
    core.close(leases[1].group_id, reason=RejectReason.FAILURE, n_tokens=0, put_back=False)
    assert len(core.lease(10, choice=3, at_least=4)) == 3, "nothing is in flight: no more slots will come"
    core.pool.ledger.check()


def test_what_was_in_flight_comes_back_alone_and_is_no_choice():
    core = make(n_prompts=9, max_inflight_groups=2)
    flying = core.lease(2, choice=2)
    twin = make(n_prompts=9, max_inflight_groups=2)
    twin.load_state_dict(json.loads(json.dumps(core.state_dict())), restart_in_flight=True)
    assert twin.owed and twin.lease(10, choice=2, at_least=2) == flying and not twin.owed


def test_a_group_is_taken_once(build):
    core = make()
    (lease,) = core.lease(1)
    group = group_of(build, lease)
    assert core.put(group) and not core.put(group)
    assert not core.close(lease.group_id, reason=RejectReason.FAILURE, n_tokens=0, put_back=True)
    assert not core.put(build.group("never leased")) and core.held == {lease.group_id}


def test_a_group_of_another_attempt_is_an_error_and_changes_nothing(build):
    core = make()
    (lease,) = core.lease(1)
    before = core.state_dict()
    with pytest.raises(ValueError, match="attempt 1 of prompt"):
        core.put(build.group(lease.group_id, prompt_id=lease.prompt_id, attempt=1))
    assert core.state_dict() == before


def test_a_closed_group_is_filtered_for_good_or_tried_again():
    core = make(n_prompts=2)
    failed, filtered = core.lease(2)
    assert core.close(failed.group_id, reason=RejectReason.FAILURE, n_tokens=5, put_back=True)
    assert core.close(filtered.group_id, reason=RejectReason.FILTER, n_tokens=7, put_back=False)
    assert not core.close(failed.group_id, reason=RejectReason.FAILURE, n_tokens=5, put_back=True)
    (again,) = core.lease(2)
    assert (again.prompt_id, again.attempt) == (failed.prompt_id, 1)
    columns = core.pool.ledger.columns()["tokens"]
    assert (columns["failed"], columns["filtered"]) == (5, 7)
    core.pool.ledger.check()


@pytest.mark.parametrize(("reason", "n_tokens"), [(RejectReason.CAP, 0), (RejectReason.FILTER, -1)])
def test_an_impossible_end_is_an_error(reason, n_tokens):
    core = make()
    (lease,) = core.lease(1)
    with pytest.raises(ValueError, match="cannot be closed"):
        core.close(lease.group_id, reason=reason, n_tokens=n_tokens, put_back=False)
    assert lease.group_id in core.in_flight


def test_the_last_batch_may_be_short_once_nothing_can_come(build):
    core = make(n_prompts=4)
    fill(build, core, 1)
    flying, last, failing = core.lease(3)
    core.put(group_of(build, flying))
    assert core.draw(0) and core.put(group_of(build, last))
    assert core.draw(1) is None and not core.generated, "one is in flight"
    twin = make(n_prompts=4)
    twin.load_state_dict(json.loads(json.dumps(core.state_dict())), restart_in_flight=True)
    assert twin.draw(1) is None and not twin.generated, "one is owed"
    assert core.close(failing.group_id, reason=RejectReason.FAILURE, n_tokens=0, put_back=False)
    assert len(core.draw(1).groups) == 1
    assert core.generated and not core.finished
    assert core.commit(0) and core.commit(1) and core.finished


def test_an_eviction_that_puts_prompts_back_makes_another_batch_the_last_one(build):
    """Short batches are for the end of the data only, and here the evicted prompts are still to come."""
    core = make(n_prompts=3, k_max=1, on_reject="requeue")
    fill(build, core, 2, ready=0)
    fill(build, core, 1, ready=5)
    assert core.draw(5) is None and not core.generated
    assert [lease.attempt for lease in core.lease(9)] == [1, 1]


def test_evictions_while_waiting_end_their_leases_at_once(build):
    core = make(n_prompts=4, k_max=1)
    old = fill(build, core, 1, ready=0)
    fill(build, core, 1, ready=5)
    assert core.draw(5) is None and not core.held & set(old)
    fill(build, core, 1, ready=5)
    draw = core.draw(5)
    assert [(d.group_id, d.outcome) for d in draw.evicted_before] == [(old[0], Outcome.EVICTED)]


def test_a_commit_is_known_and_never_guessed(build):
    core = make()
    ids = fill(build, core, 2)
    with pytest.raises(ValueError, match="step 0 has had no batch"):
        core.commit(0)
    core.draw(0)
    assert core.held == set(ids)
    assert core.commit(0) and not core.commit(0)
    assert not core.held and not core.prompts.outstanding


def test_versions_only_go_up():
    core = make()
    (first,) = core.lease(1)
    assert not core.set_version(0) and core.set_version(2) and not core.set_version(1)
    assert core.version == 2 and len(core.lease(1)) == 1
    core.close(first.group_id, reason=RejectReason.FAILURE, n_tokens=0, put_back=False)
    assert core.pool.ledger.oldest_open == 2, "admission counts from the version at which a group started"


def test_scores_are_taken_all_or_none():
    core = make()
    with pytest.raises(ValueError, match="finite numbers"):
        core.add_scores([0.5, -1.0])
    assert len(core.pool.window) == 0
    core.add_scores([0.5, 1.0])
    assert core.pool.window.scores() == [0.5, 1.0]


def test_after_a_restart_of_the_rollout_side_its_leases_come_first_and_keep_their_ids(build):
    core = make(max_inflight_groups=4)
    leases = core.lease(3)
    core.put(group_of(build, leases[1]))
    twin = make(max_inflight_groups=4)
    twin.load_state_dict(json.loads(json.dumps(core.state_dict())), restart_in_flight=True)
    assert not twin.in_flight and twin.held == {leases[1].group_id}
    assert not twin.put(group_of(build, leases[0])), "a group of before the restart: its lease is not handed out"
    assert twin.lease(1) == (leases[0],) and twin.lease(1) == (leases[2],)
    assert len(twin.lease(9)) == 2 and twin.pool.ledger.n_in_flight == 4


def test_leases_that_disagree_with_the_ledger_are_refused():
    core = make()
    core.lease(2)
    state = core.state_dict()
    for in_flight in (state["in_flight"][:1], [*state["in_flight"], "x"]):
        with pytest.raises(StateError, match="in flight"):
            make().load_state_dict({**state, "in_flight": in_flight})
