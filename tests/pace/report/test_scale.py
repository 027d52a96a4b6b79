"""Ticks are round, text is short, and thinning a line loses no spike."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.report.scale import bounds, duration, number, parts, smoothed, thinned, ticks

numbers = st.floats(-1e9, 1e9)


@given(numbers, st.floats(1e-6, 1e9), st.integers(2, 12), st.booleans())
def test_ticks_lie_within_and_are_even(low, span, n, whole):
    found = ticks(low, low + span, n, whole=whole)
    slack = 1e-6 * max(abs(low), span, 1.0)
    assert len(found) <= n + 1 and all(low - slack <= value <= low + span + slack for value in found)
    gaps = [b - a for a, b in zip(found, found[1:], strict=False)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-6, abs=slack) for gap in gaps)
    assert not whole or all(value == int(value) for value in found)


def test_ticks_are_round():
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.3, 22, 5, whole=True) == [5, 10, 15, 20]
    assert ticks(0, 2, 8, whole=True) == [0, 1, 2]


@given(st.lists(numbers), st.booleans())
def test_an_axis_is_never_empty_and_holds_its_values(values, zero):
    low, high = bounds(values, zero=zero)
    assert low < high and all(low <= value <= high for value in values)
    assert not zero or low <= 0 <= high


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.12345, "0.123"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (1_234_567, "1.23 M"),
        (7.1e10, "71 G"),
        (3e20, "3.00e+20"),
        (-0.5, "\N{MINUS SIGN}0.5"),
        (1.5e-7, "1.5e-07"),
        (None, "\N{EN DASH}"),
        (math.nan, "\N{EN DASH}"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_durations():
    assert [duration(s) for s in (1.26, 200, 7500)] == ["1.26 s", "3 min 20 s", "2 h 05 min"]


@given(st.lists(numbers, min_size=1, max_size=3000), st.integers(10, 600))
def test_thinning_keeps_order_ends_and_extremes(values, limit):
    points = [(float(i), value) for i, value in enumerate(values)]
    kept = thinned(points, limit)
    assert len(kept) <= max(limit + 2, 0) and kept == sorted(kept) and set(kept) <= set(points)
    assert kept[0] == points[0] and kept[-1] == points[-1]
    heights = [value for _, value in kept]
    assert (min(heights), max(heights)) == (min(values), max(values))


def test_thinning_keeps_a_spike_of_each_part():
    points = [(float(i), 0.0) for i in range(2000)]
    for place, height in ((333, 5.0), (777, -5.0), (1501, 3.0)):
        points[place] = (float(place), height)
    assert {point for point in points if point[1]} <= set(thinned(points, 100)) and len(thinned(points, 100)) <= 102


@given(st.integers(0, 500), st.integers(1, 60))
def test_parts_hold_everything_once(n, limit):
    found = parts(n, limit)
    assert [i for part in found for i in part] == list(range(n)) and len(found) == min(n, limit)


def test_a_moving_mean():
    assert smoothed([(1, 2.0), (2, 4.0), (3, 6.0)], 2) == [(1, 2.0), (2, 3.0), (3, 5.0)]
