"""Leases of prompts: each prompt of each episode once, and again when put back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.prompts import PromptSource
from pace.state import StateError


def source(**settings: int) -> PromptSource:
    return PromptSource(**{"n_prompts": 5, "n_episodes": 2, "seed": 3, **settings})


def rest(prompts: PromptSource) -> list[str]:
    return [lease.group_id for lease in iter(prompts.lease, None)]


def test_every_prompt_of_every_episode_is_leased_once():
    prompts = source()
    leases = list(iter(prompts.lease, None))
    assert [lease.episode for lease in leases] == [0] * 5 + [1] * 5
    assert all(sorted(lease.index for lease in part) == list(range(5)) for part in (leases[:5], leases[5:]))
    assert prompts.exhausted and prompts.lease() is None
    assert list(prompts.outstanding) == [lease.group_id for lease in leases]


def test_the_order_depends_on_the_seed_and_the_episode_only():
    def order(**settings: int) -> list[int]:
        return [lease.index for lease in iter(source(n_prompts=20, **settings).lease, None)]

    assert order() == order()
    assert order() != order(seed=4)
    assert order()[:20] != order()[20:]
    assert order(n_episodes=5)[:40] == order()


def test_a_prompt_that_was_put_back_comes_first_and_as_the_next_attempt():
    prompts = source()
    first, second = prompts.lease(), prompts.lease()
    prompts.put_back(second.group_id)
    prompts.put_back(first.group_id)
    assert not prompts.outstanding
    again = [prompts.lease(), prompts.lease()]
    assert [(lease.prompt_id, lease.index, lease.attempt) for lease in again] == [
        (second.prompt_id, second.index, 1),
        (first.prompt_id, first.index, 1),
    ]
    assert again[0].group_id == f"{second.prompt_id}.1" == f"0:{second.index}.1"


def test_the_last_prompt_put_back_makes_the_source_go_on():
    prompts = source(n_prompts=1, n_episodes=1)
    lease = prompts.lease()
    assert prompts.exhausted
    prompts.put_back(lease.group_id)
    assert not prompts.exhausted
    prompts.release(prompts.lease().group_id)
    assert prompts.exhausted and not prompts.outstanding


@pytest.mark.parametrize("end", [PromptSource.release, PromptSource.put_back])
def test_a_lease_ends_once(end):
    prompts = source()
    lease = prompts.lease()
    end(prompts, lease.group_id)
    with pytest.raises(ValueError, match="not outstanding"):
        end(prompts, lease.group_id)


@given(steps=st.lists(st.sampled_from(["lease", "release", "put_back"]), max_size=30))
def test_a_restored_source_goes_on_as_if_nothing_had_happened(steps):
    prompts = source()
    for step in steps:
        if step == "lease":
            prompts.lease()
        elif prompts.outstanding:
            getattr(prompts, step)(next(iter(prompts.outstanding)))
    twin = source()
    twin.load_state_dict(json.loads(json.dumps(prompts.state_dict())))
    assert twin.outstanding == prompts.outstanding and rest(twin) == rest(prompts)


@pytest.mark.parametrize("name", ["n_prompts", "n_episodes", "seed"])
def test_other_data_is_refused_by_name(name):
    state = source(n_episodes=9).state_dict()
    with pytest.raises(StateError, match=f"{name} was {state[name]}, is 7"):
        source(**{"n_episodes": 9, name: 7}).load_state_dict(state)


def test_a_finished_source_goes_on_with_more_episodes():
    prompts = source(n_episodes=1)
    while (lease := prompts.lease()) is not None:
        prompts.release(lease.group_id)
    longer = source(n_episodes=2)
    longer.load_state_dict(prompts.state_dict())
    assert [lease.episode for lease in iter(longer.lease, None)] == [1] * 5


@pytest.mark.parametrize("change", [{"position": 5}, {"episode": 3}, {"colour": "red"}, {"again": [{"index": 1}]}])
def test_foreign_state_is_refused_and_changes_nothing(change):
    prompts = source()
    prompts.lease()
    before = prompts.state_dict()
    with pytest.raises(StateError):
        prompts.load_state_dict({**before, **change})
    assert prompts.state_dict() == before


@pytest.mark.parametrize("settings", [{"n_prompts": 0}, {"n_episodes": 0}])
def test_no_data_is_an_error(settings):
    with pytest.raises(ValueError, match="nothing to train on"):
        source(**settings)
