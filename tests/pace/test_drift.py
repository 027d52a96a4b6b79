import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.drift import (
    LOG_RATIO_BOUND,
    Phi,
    PrefixScore,
    ScoreWindow,
    noise_floor,
    prefix_score,
    sharpen,
)
from pace.state import StateError

any_float = st.floats(allow_nan=True, allow_infinity=True)
scores = st.lists(st.floats(0, 100), min_size=1, max_size=80)


def test_score_is_the_mean_change_of_log_probs():
    behaviour, rescored = [-1.0, -2.0, -3.0], [-1.5, -1.0, -3.0]
    assert prefix_score(behaviour, rescored) == PrefixScore(0.5, 3, 0)
    assert prefix_score(behaviour, rescored, phi=Phi.LOST).value == pytest.approx(0.5 / 3)


@pytest.mark.parametrize("phi", Phi)
@pytest.mark.parametrize("ratio", [-200.0, 200.0])
def test_finite_at_extreme_ratios(phi, ratio):
    score = prefix_score([min(0.0, ratio)], [min(0.0, -ratio)], phi=phi).value
    assert score == (0.0 if phi is Phi.LOST and ratio < 0 else 200.0)


@given(pairs=st.lists(st.tuples(any_float, any_float), max_size=20), phi=st.sampled_from(Phi))
def test_whatever_the_engine_returns_the_score_is_finite_or_missing(pairs, phi):
    score = prefix_score([a for a, _ in pairs], [b for _, b in pairs], phi=phi)
    assert score.n_scored + score.n_dropped == len(pairs)
    if score.n_scored:
        assert 0.0 <= score.value <= LOG_RATIO_BOUND
    else:
        assert score.value is None


@pytest.mark.parametrize(
    ("behaviour", "rescored", "expected"),
    [
        (-1.0, -math.inf, LOG_RATIO_BOUND),  # the new policy excludes the token
        (-1.0, math.nan, None),
        (math.nan, -1.0, None),
        (-math.inf, -1.0, None),  # a sampled token cannot have been impossible
        (-math.inf, -math.inf, None),
        (-1.0, math.inf, None),
    ],
)
def test_non_finite_log_probs_are_defined(behaviour, rescored, expected):
    assert prefix_score([behaviour], [rescored]).value == expected
    beside = prefix_score([behaviour, -1.0], [rescored, -1.0])
    assert beside.value == (0.0 if expected is None else expected / 2)
    assert beside.n_dropped == (expected is None)


def test_no_tokens_give_no_score_and_unequal_lengths_an_error():
    assert prefix_score([], []) == PrefixScore(None, 0, 0)
    with pytest.raises(ValueError, match="2 behaviour log-probs against 1"):
        prefix_score([-1.0, -1.0], [-1.0])
    for floor in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="floor"):
            prefix_score([], [], floor=floor)


def test_the_noise_floor_is_the_largest_calibration_and_is_taken_off():
    calibrations = [prefix_score([-1.0, -2.0], [-1.01, -2.0]), prefix_score([-1.0], [-1.02]), PrefixScore(None, 0, 3)]
    floor = noise_floor(calibrations)
    assert floor == pytest.approx(0.02) and noise_floor([]) == 0.0
    assert prefix_score([-1.0], [-1.015], floor=floor).value == 0.0
    assert prefix_score([-1.0], [-1.5], floor=floor).value == pytest.approx(0.48)


@given(scores, st.floats(0, 100))
def test_percentile_is_mid_rank_within_bounds_and_monotone(values, score):
    window = ScoreWindow(capacity=100, minimum=1)
    window.add(values)
    below, equal = sum(v < score for v in values), sum(v == score for v in values)
    assert window.percentile(score) == (below + equal / 2) / len(values)
    assert 0.0 <= window.percentile(score) <= window.percentile(score + 1.0) <= 1.0
    assert window.percentile(max(values) + 1) == 1.0


@given(scores, st.integers(1, 20))
def test_the_window_holds_the_last_scores_sorted(values, capacity):
    window = ScoreWindow(capacity=capacity, minimum=1)
    window.add(values)
    assert window.scores() == sorted(values[-capacity:])
    assert window.metrics() == {"size": len(values[-capacity:]), "seen": len(values)}


def test_ties_share_the_mean_rank():
    window = ScoreWindow(capacity=8, minimum=1)
    window.add([0.0, 0.0, 0.0, 1.0])
    assert window.percentile(0.0) == 0.375 and window.percentile(1.0) == 0.875


def test_a_cold_window_means_raw_staleness_until_exactly_the_minimum():
    window = ScoreWindow(capacity=512, minimum=32)
    window.add([1.0] * 31)
    assert not window.warm and window.percentile(0.0) == 1.0
    window.add([1.0])
    assert window.warm and window.percentile(0.0) == 0.0


@given(scores, scores)
def test_the_window_continues_after_a_round_trip(before, after):
    window, copy = ScoreWindow(capacity=30, minimum=2), ScoreWindow(capacity=30, minimum=2)
    window.add(before)
    copy.load_state_dict(json.loads(json.dumps(window.state_dict())))
    for each in (window, copy):
        each.add(after)
    assert copy.state_dict() == window.state_dict() and copy.scores() == window.scores()


def test_a_smaller_window_keeps_the_newest_scores():
    large, small = ScoreWindow(capacity=10, minimum=1), ScoreWindow(capacity=2, minimum=1)
    large.add([5.0, 4.0, 1.0])
    small.load_state_dict(large.state_dict())
    assert small.scores() == [1.0, 4.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_scores_never_enter(bad):
    window = ScoreWindow()
    with pytest.raises(ValueError):
        window.add([bad])
    with pytest.raises(StateError):
        window.load_state_dict({"recent": [bad], "n_seen": 1})
    with pytest.raises(StateError):
        window.load_state_dict({"recent": []})
    with pytest.raises(ValueError):
        ScoreWindow(capacity=4, minimum=5)


@given(st.floats(0, 1), st.sampled_from([1.0, 2.0, 4.0]))
def test_sharpening_stays_between_zero_and_the_percentile(u, gamma):
    assert 0.0 <= sharpen(u, gamma) <= u


def test_gamma_four_forgives_the_median_and_not_the_top():
    assert sharpen(0.5, 4) == 0.0625 and sharpen(0.9, 4) == pytest.approx(0.6561) and sharpen(1.0, 4) == 1.0


def test_many_scores_stay_cheap():
    rng = random.Random(0)
    window = ScoreWindow()
    window.add(rng.random() for _ in range(20_000))
    assert len(window) == 512
