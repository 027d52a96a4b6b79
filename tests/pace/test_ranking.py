import json
import math
import random
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.drift import ScoreWindow
from pace.ranking import GroupScore, LagMeter, RandomRanking, RankBy, make_ranking, rejection_key
from pace.staleness import WaitFrom, trajectory_staleness
from pace.state import StateError


def warm_window(*scores: float) -> ScoreWindow:
    window = ScoreWindow(capacity=64, minimum=1)
    window.add(scores)
    return window


def measure(meter: LagMeter, group, **at):
    return meter.measure(meter.prepare(group), **at)


def score(rank_by: RankBy, lag) -> float | None:
    return make_ranking(rank_by, rng=random.Random(0)).score(lag)


@given(
    seed=st.integers(0, 10_000),
    gamma=st.sampled_from([1.0, 2.0, 4.0]),
    wait_from=st.sampled_from(WaitFrom),
    group_score=st.sampled_from(GroupScore),
    step=st.integers(6, 30),
)
def test_effective_staleness_lies_between_waiting_and_the_whole_lag(build, seed, gamma, wait_from, group_score, step):
    rng = random.Random(seed)
    meter = LagMeter(
        warm_window(*[rng.random() for _ in range(20)]), gamma=gamma, wait_from=wait_from, group_score=group_score
    )
    lag = measure(meter, (build.random_group(rng, "g", version=6)), step=step)
    assert lag.pool == step - 6
    if lag.effective is None:
        assert lag.raw is None and lag.generation is None and lag.gen is None
    else:
        assert lag.effective <= lag.raw + 1e-9
        # The bound below needs the same siblings on both sides: waiting includes those of unknown version.
        assert lag.effective >= lag.pool - 1e-9


def test_waiting_counts_in_full_and_generation_by_relative_drift(build):
    window = warm_window(*(i / 10 for i in range(10)))  # 0.0 ... 0.9
    group = build.group(siblings=[(0, 4)], scores=[0.4], ready=4)  # K_gen = 2
    lag = measure(LagMeter(window, gamma=2.0), group, step=7)
    assert lag.percentile == 0.45 and lag.weight == pytest.approx(0.45**2)
    assert lag.effective == pytest.approx(3 + 0.45**2 * 2) and lag.raw == 5.0


def test_low_drift_keeps_an_old_long_group_where_raw_staleness_rejects_it(build):
    """The complaint that rejecting by age removes long work: same age, little drift, must rank fresher."""
    meter = LagMeter(warm_window(*(i / 10 for i in range(10))))
    long = measure(meter, (build.group("long", siblings=[(0, 8)], scores=[0.1])), step=8)
    short = measure(meter, (build.group("short", siblings=[(6, 8)], scores=[0.9])), step=8)
    assert score(RankBy.RAW, long) > score(RankBy.RAW, short)
    assert score(RankBy.EFFECTIVE, long) < score(RankBy.EFFECTIVE, short)


def test_the_reading_decides_whether_waiting_for_siblings_is_forgiven(build):
    group = build.group(siblings=[(0,), (0, 4)], completed=[0, 4], scores=[None, 0.0], ready=4)
    measured = {
        reading: measure(LagMeter(warm_window(1.0, 2.0), wait_from=reading), group, step=4) for reading in WaitFrom
    }
    by_group, by_trajectory = measured[WaitFrom.GROUP], measured[WaitFrom.TRAJECTORY]
    assert by_group.raw == by_trajectory.raw == 3.0
    assert (by_group.waiting, by_trajectory.waiting) == (0.0, 2.0)
    assert (by_group.generation, by_trajectory.generation) == (3.0, 1.0)
    assert (by_group.effective, by_trajectory.effective) == (0.0, 2.0)


def test_an_interrupted_trajectory_without_a_score_counts_in_full_and_is_counted(build):
    group = build.group(siblings=[(0, 2), (0, 2)], scores=[None, 0.0], ready=2)
    lag = measure(LagMeter(warm_window(1.0)), group, step=2)
    assert lag.n_missing_scores == 1 and lag.effective == 0.5  # 1 in full, 0 forgiven
    cold = measure(LagMeter(ScoreWindow()), group, step=2)
    assert cold.effective == cold.raw == 1.0


def test_a_sibling_that_only_waited_takes_the_weight_of_the_scored_ones(build):
    group = build.group(siblings=[(0,), (0, 2)], completed=[0, 2], scores=[None, 0.5], ready=2)
    lag = measure(LagMeter(warm_window(0.0, 1.0), gamma=1.0), group, step=2)
    assert lag.n_missing_scores == 0 and lag.percentile == 0.5
    assert lag.effective == pytest.approx((0.5 * 2 + 0.5 * 1) / 2)
    unscored = build.group(siblings=[(0,), (2,)], completed=[0, 2], ready=2)
    assert measure(LagMeter(warm_window(0.0)), unscored, step=2).effective == 1.0


def test_unknown_versions_rank_stalest_and_never_freshest(build):
    meter = LagMeter(warm_window(0.5))
    unknown = measure(meter, (build.group(siblings=[(None,), (None,)])), step=0)
    stale = measure(meter, (build.group(siblings=[(0,)])), step=99)
    for rank_by in (RankBy.EFFECTIVE, RankBy.RAW, RankBy.GENERATION):
        assert score(rank_by, unknown) is None
        order = sorted(
            [(score(rank_by, stale), 0, "s"), (score(rank_by, unknown), 0, "u")], key=lambda x: rejection_key(*x)
        )
        assert order[0][2] == "u"
    assert score(RankBy.WAITING, unknown) == 0.0


def test_each_ranking_reads_its_own_number(build):
    lag = measure(
        LagMeter(warm_window(0.1, 0.9)),
        (build.group(siblings=[(0, 4)], scores=[0.5], ready=4)),
        step=7,
        arrivals_since=11,
    )
    expected = {RankBy.RAW: 5.0, RankBy.GENERATION: 2.0, RankBy.WAITING: 3.0, RankBy.OLDEST: 11.0}
    assert {rank_by: score(rank_by, lag) for rank_by in expected} == expected
    assert score(RankBy.EFFECTIVE, lag) == pytest.approx(3 + 0.5**4 * 2)
    assert 0.0 <= score(RankBy.RANDOM, lag) < 1.0


def test_a_groups_score_can_be_its_worst_sibling(build):
    group = build.group(siblings=[(0,), (4,)], completed=[4, 4], ready=4)
    assert measure(LagMeter(warm_window(1.0), group_score=GroupScore.MAX), group, step=4).raw == 4.0
    assert measure(LagMeter(warm_window(1.0)), group, step=4).raw == 2.0


entries = st.tuples(
    st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.5])), st.integers(0, 3), st.sampled_from("abcdef")
)


@given(st.lists(entries, max_size=12, unique_by=lambda e: e[2]), st.randoms())
def test_the_order_is_total_and_does_not_depend_on_the_input_order(candidates, rng):
    shuffled = list(candidates)
    rng.shuffle(shuffled)
    ordered = sorted(candidates, key=lambda c: rejection_key(*c))
    assert ordered == sorted(shuffled, key=lambda c: rejection_key(*c))
    for (a, av, aid), (b, bv, bid) in zip(ordered, ordered[1:], strict=False):
        assert (a is None) or (b is not None and a >= b)
        assert a != b or (av, aid) < (bv, bid)


def test_random_ranking_continues_after_a_round_trip():
    first, second = RandomRanking(random.Random(3)), RandomRanking(random.Random(99))
    lag = types.SimpleNamespace()
    first.score(lag)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [first.score(lag) for _ in range(5)] == [second.score(lag) for _ in range(5)]
    for state in ({}, {"rng": [1, 2]}, {"rng": None}):
        with pytest.raises(StateError):
            second.load_state_dict(state)


@pytest.mark.parametrize("rank_by", RankBy)
def test_every_ranking_saves_loads_and_reports(rank_by):
    ranking = make_ranking(rank_by, rng=random.Random(0))
    ranking.load_state_dict(json.loads(json.dumps(ranking.state_dict())))
    assert all(math.isfinite(value) for value in ranking.metrics().values())
    with pytest.raises(StateError):
        ranking.load_state_dict({"foreign": 1})


@given(
    seed=st.integers(0, 10_000),
    gamma=st.sampled_from([1.0, 2.0, 4.0]),
    wait_from=st.sampled_from(WaitFrom),
    group_score=st.sampled_from(GroupScore),
)
def test_measuring_equals_the_definition_written_out(build, seed, gamma, wait_from, group_score):
    rng = random.Random(seed)
    window = warm_window(*[rng.random() for _ in range(20)])
    group = build.random_group(rng, "g", version=6, n=5)
    parts = [trajectory_staleness(t, ready_version=6, step=9) for t in group.trajectories]
    pairs = list(zip(group.trajectories, parts, strict=True))
    with_rest = [(t, p) for t, p in pairs if p.generation(wait_from)]
    own = [window.percentile(t.prefix_score) for t, _ in with_rest if t.prefix_score is not None]
    stand_in = sum(own) / len(own) if own else 1.0

    def weight(t, p) -> float:
        u = window.percentile(t.prefix_score) if t.prefix_score is not None else stand_in if p.gen == 0 else 1.0
        return u**gamma

    effective = [p.waiting(wait_from) + weight(t, p) * p.generation(wait_from) for t, p in pairs if p.gen is not None]
    raw = [p.total for _, p in pairs if p.gen is not None]
    lag = measure(LagMeter(window, gamma=gamma, wait_from=wait_from, group_score=group_score), group, step=9)
    if not raw:
        assert lag.effective is lag.raw is lag.weight is None
        return
    join = max if group_score is GroupScore.MAX else lambda values: sum(values) / len(values)
    assert lag.effective == pytest.approx(join(effective)) and lag.raw == pytest.approx(join(raw))
    assert lag.waiting == pytest.approx(join([p.waiting(wait_from) for p in parts]))
    assert lag.generation == pytest.approx(join([p.generation(wait_from) for p in parts if p.gen is not None]))
    assert lag.n_missing_scores == sum(t.prefix_score is None and p.gen > 0 for t, p in pairs if p.gen is not None)
    if with_rest:
        assert lag.weight == pytest.approx(sum(weight(t, p) for t, p in with_rest) / len(with_rest))
    else:
        assert lag.weight is None
