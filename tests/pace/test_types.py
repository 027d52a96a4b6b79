import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.types import Trajectory, TrajectoryGroup, VersionSpan, spans_of

versions_of_tokens = st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=40)


@given(versions_of_tokens)
def test_run_length_form_keeps_every_token_and_its_version(versions):
    spans = spans_of(versions)
    assert [span.version for span in spans for _ in range(span.n_tokens)] == versions
    assert all(a.version != b.version for a, b in zip(spans, spans[1:], strict=False))


@given(versions=versions_of_tokens)
def test_unknown_versions_are_counted_and_take_no_part_in_the_sum(build, versions):
    trajectory = build.trajectory(versions=versions, completed=6)
    known = [version for version in versions if version is not None]
    assert (trajectory.n_tokens, trajectory.n_unknown) == (len(versions), len(versions) - len(known))
    assert (trajectory.version_sum, trajectory.n_known) == (sum(known), len(known))


@pytest.mark.parametrize("span", [(0, 0), (-1, 1), (None, 0)])
def test_impossible_spans_are_refused(span):
    with pytest.raises(ValueError):
        VersionSpan(*span)


@pytest.mark.parametrize(
    "fields",
    [
        {"versions": ()},
        {"versions": (3,), "completed": 2},
        {"reward": math.nan},
        {"reward": math.inf},
        {"prefix_score": -0.1},
        {"prefix_score": math.nan},
        {"prefix_score": math.inf},
        {"n_shared_tokens": 2},
    ],
)
def test_impossible_trajectories_are_refused(build, fields):
    with pytest.raises(ValueError, match="g0/0"):
        build.trajectory(**fields)


def test_records_are_frozen_and_hold_no_dict(build):
    group = build.group()
    with pytest.raises(AttributeError):
        group.attempt = 1
    assert not hasattr(group, "__dict__") and not hasattr(group.trajectories[0], "__dict__")


def test_response_length_includes_observations_when_given(build):
    assert build.trajectory(versions=(0, 0)).response_length == 2
    assert build.trajectory(versions=(0, 0), length=7).response_length == 7


def test_tokens_of_a_shared_prefix_count_once_for_the_group(build):
    long = build.trajectory("g0/0", versions=(0,) * 5)
    branch = build.trajectory("g0/1", versions=(0,) * 8, n_shared_tokens=3)
    group = TrajectoryGroup(group_id="g0", prompt_id="p", trajectories=(long, branch), ready_version=0)
    assert group.n_tokens == 10


def test_groups_refuse_strangers_repeats_and_early_readiness(build):
    mine: Trajectory = build.trajectory("g0/0")
    other: Trajectory = build.trajectory("g1/0")
    late: Trajectory = build.trajectory("g0/1", versions=(4,))
    for trajectories in [(), (mine, other), (mine, mine), (mine, late)]:
        with pytest.raises(ValueError, match="g0"):
            TrajectoryGroup(group_id="g0", prompt_id="p", trajectories=trajectories, ready_version=3)
