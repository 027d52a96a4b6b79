import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_alloc.calibration import expected_calibration_error, mse, spearman, summary

probabilities = st.floats(0, 1)
pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


def ranks_by_counting(values):
    """Rank = how many are smaller, plus the middle of the equal ones."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


@given(pairs)
def test_spearman_is_the_correlation_of_average_ranks(data):
    x, y = [a for a, _ in data], [b for _, b in data]
    found = spearman(x, y)
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert found is None
    else:
        expected = np.corrcoef(ranks_by_counting(x), ranks_by_counting(y))[0, 1]
        assert found == pytest.approx(expected, abs=1e-12) and -1.0 <= found <= 1.0
        assert spearman(y, x) == pytest.approx(found, abs=1e-12)
        assert spearman([-v for v in x], y) == pytest.approx(-found, abs=1e-12)
        assert spearman([math.exp(v) for v in x], y) == pytest.approx(found, abs=1e-12)


def test_spearman_by_hand():
    assert spearman([1, 2, 3], [10, 20, 30]) == 1.0
    assert spearman([1, 2, 3], [3, 2, 1]) == -1.0
    assert spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert spearman([0.1, 0.5, 0.5, 0.9], [0, 1, 1, 1]) == pytest.approx(0.8164965809277261)
    assert spearman([1, 2, math.inf], [1, 2, 3]) == 1.0


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([1], [2]), ([1, 1], [1, 2]), ([1, 2], [3, 3]), ([1, math.nan], [1, 2])]
)
def test_spearman_without_a_meaning_is_none(x, y):
    assert spearman(x, y) is None


@pytest.mark.parametrize("measure", [spearman, mse, expected_calibration_error])
def test_lists_that_do_not_match_are_refused(measure):
    with pytest.raises(ValueError):
        measure([0.1, 0.2], [0.1])
    with pytest.raises(ValueError):
        measure([[0.1]], [[0.1]])


def test_squared_error():
    assert mse([0.5, 1.0], [0.0, 1.0]) == 0.125
    assert mse([], []) is None and mse([math.nan], [0.0]) is None


def test_calibration_by_hand():
    assert expected_calibration_error([0.05, 0.95, 1.0], [0.0, 1.0, 1.0]) == pytest.approx((0.05 + 0.05) / 3)
    # Two in one bin cancel: only their mean counts.
    assert expected_calibration_error([0.42, 0.48], [0.0, 0.9]) == pytest.approx(0.0)
    assert expected_calibration_error([0.42, 0.48], [0.0, 0.9], bins=25) == pytest.approx((0.42 + 0.42) / 2)
    assert expected_calibration_error([1.0], [0.0]) == 1.0
    assert expected_calibration_error([], []) is None


@given(st.lists(st.tuples(probabilities, probabilities), min_size=1, max_size=20), st.integers(1, 12))
def test_calibration_by_definition(data, bins):
    total = 0.0
    for b in range(bins):
        inside = [(p, y) for p, y in data if min(int(p * bins), bins - 1) == b]
        if inside:
            n = len(inside)
            total += n / len(data) * abs(sum(p for p, _ in inside) / n - sum(y for _, y in inside) / n)
    found = expected_calibration_error([p for p, _ in data], [y for _, y in data], bins)
    assert found == pytest.approx(total, abs=1e-12) and 0.0 <= found <= 1.0


def test_honest_probabilities_are_calibrated():
    rng = random.Random(0)
    predicted = [rng.random() for _ in range(20_000)]
    observed = [float(rng.random() < p) for p in predicted]
    assert expected_calibration_error(predicted, observed) < 0.02
    assert expected_calibration_error([0.5 + 0.5 * p for p in predicted], observed) > 0.2


@pytest.mark.parametrize(
    ("p", "y", "bins"), [([1.1], [0], 10), ([0.5], [-1], 10), ([math.nan], [0], 10), ([0.5], [1], 0)]
)
def test_calibration_of_what_is_no_probability_is_refused(p, y, bins):
    with pytest.raises(ValueError):
        expected_calibration_error(p, y, bins)


def test_the_summary_leaves_out_what_is_not_defined():
    assert summary(roots=[], prefixes=[]) == {}
    assert set(summary(roots=[(0.5, 1.0)], prefixes=[])) == {"trace/predictor/mse", "trace/predictor/ece"}
    constant = summary(roots=[(0.5, 1.0), (0.5, 0.0)], prefixes=[(0.2, 0.0), (0.3, 0.5)])
    assert set(constant) == {f"trace/predictor/{name}" for name in ("mse", "ece", "spearman_prefix")}
    full = summary(roots=[(0.1, 0.0), (0.9, 1.0)], prefixes=[(0.2, 1.0), (0.3, 0.5)])
    assert full == {
        "trace/predictor/mse": pytest.approx((0.01 + 0.01 + 0.64 + 0.04) / 4),
        "trace/predictor/spearman_root": 1.0,
        "trace/predictor/spearman_prefix": -1.0,
        "trace/predictor/ece": pytest.approx((0.1 + 0.1 + 0.8 + 0.2) / 4),
    }
    assert all(type(value) is float for value in full.values())
