import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.staleness import (
    WaitFrom,
    coverage,
    group_lag,
    mean,
    profile_of,
    token_lags,
    trajectory_lag,
    trajectory_staleness,
)
from pace.types import VersionSpan


@st.composite
def lived(draw):
    """Token versions, then c, c_group and j in order."""
    versions = draw(st.lists(st.integers(0, 50), min_size=1, max_size=60))
    completed = max(versions) + draw(st.integers(0, 5))
    ready = completed + draw(st.integers(0, 5))
    return versions, completed, ready, ready + draw(st.integers(0, 50))


@given(life=lived())
def test_lag_is_generation_plus_sibling_plus_pool(build, life):
    versions, completed, ready, step = life
    parts = trajectory_staleness(
        build.trajectory(versions=versions, completed=completed), ready_version=ready, step=step
    )
    by_token = sum(step - v for v in versions) / len(versions)
    assert math.isclose(parts.gen + parts.sib + parts.pool, by_token, abs_tol=1e-9)
    assert math.isclose(parts.total, by_token, abs_tol=1e-9)
    assert parts.gen >= 0 and parts.sib >= 0 and parts.pool >= 0


@given(life=lived())
def test_the_identity_is_exact_in_whole_tokens(build, life):
    versions, completed, ready, step = life
    n = len(versions)
    gen = completed * n - build.trajectory(versions=versions, completed=completed).version_sum
    assert sum(step - v for v in versions) == gen + n * (ready - completed) + n * (step - ready)


@given(life=lived(), wait_from=st.sampled_from(WaitFrom))
def test_both_readings_split_the_same_lag(build, life, wait_from):
    versions, completed, ready, step = life
    parts = trajectory_staleness(
        build.trajectory(versions=versions, completed=completed), ready_version=ready, step=step
    )
    assert math.isclose(parts.waiting(wait_from) + parts.generation(wait_from), parts.total, abs_tol=1e-9)
    start = ready if wait_from is WaitFrom.GROUP else completed
    assert parts.waiting(wait_from) == step - start


@given(life=lived(), unknown=st.integers(1, 40))
def test_unknown_versions_lower_the_coverage_and_not_the_lag(build, life, unknown):
    versions, completed, _, step = life
    known = build.trajectory(versions=versions, completed=completed)
    mixed = build.trajectory(versions=[*versions, *[None] * unknown], completed=completed)
    assert trajectory_lag(mixed, step) == trajectory_lag(known, step)
    assert coverage([mixed]) == len(versions) / (len(versions) + unknown) < coverage([known]) == 1.0


def test_a_trajectory_without_known_versions_has_no_lag_instead_of_none_at_all(build):
    trajectory = build.trajectory(versions=(None, None), completed=3)
    parts = trajectory_staleness(trajectory, ready_version=4, step=6)
    assert (parts.gen, parts.sib, parts.pool, parts.total) == (None, 1, 2, None)
    assert parts.generation(WaitFrom.GROUP) is None and trajectory_lag(trajectory, 6) is None
    assert token_lags(trajectory, 6) == [None, None] and coverage([trajectory]) == 0.0


def test_token_lags_follow_the_spans(build):
    trajectory = build.trajectory(spans=(VersionSpan(1, 2), VersionSpan(None, 1), VersionSpan(3, 1)), completed=3)
    assert token_lags(trajectory, 5) == [4, 4, None, 2]


@pytest.mark.parametrize(("ready", "step"), [(2, 9), (5, 4)])
def test_broken_order_of_versions_is_an_error_and_not_a_negative_lag(build, ready, step):
    with pytest.raises(ValueError, match="out of order"):
        trajectory_staleness(build.trajectory(versions=(3,)), ready_version=ready, step=step)


@given(seed=st.integers(0, 10_000), step=st.integers(8, 60))
def test_a_groups_parts_add_up_and_its_worst_lag_bounds_every_sibling(build, seed, step):
    group = build.random_group(random.Random(seed), "g", version=8, n=4)
    profile = profile_of(group)
    lags = [lag for t in group.trajectories if (lag := trajectory_lag(t, step)) is not None]
    assert all(lag <= profile.worst_lag(step) for lag in lags)
    assert profile.n_unknown == sum(t.n_unknown for t in group.trajectories)
    if len(lags) == len(group.trajectories):
        assert math.isclose(profile.gen + profile.sib + step - 8, group_lag(group, step), abs_tol=1e-9)


def test_worst_lag_is_exact_at_whole_numbers(build):
    thirds = profile_of(build.group(siblings=[(0, 0, 3), (1,)], ready=3))
    assert thirds.worst_lag(9) == 8.0
    unknown = profile_of(build.group(siblings=[(None,), (5,)], completed=[2, 5], ready=5))
    assert unknown.worst_lag(9) == 7.0  # at least step - c


def test_a_group_without_known_versions_has_no_lag(build):
    group = build.group(siblings=[(None,), (None,)])
    assert group_lag(group, 4) is None and profile_of(group).gen is None


def test_the_mean_does_not_depend_on_order():
    values = [1e16, 1.0, -1e16, 3.0]
    assert mean(values) == mean(values[::-1]) == 1.0
    assert mean([]) is None
