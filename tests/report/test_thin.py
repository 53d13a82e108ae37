"""Long curves get fewer points and lose nothing that matters."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpt_cli.report.picture import FEWEST_BUCKETS, MOST_POINTS, buckets_for, thin, thin_marks

NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])


@pytest.mark.slow
@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(1, 20))
def test_extremes_ends_and_order_stay(ys, buckets):
    xs = list(range(len(ys)))
    kept_xs, kept_ys = thin(xs, ys, buckets)
    assert kept_xs == sorted(set(kept_xs)) and len(kept_xs) <= max(4 * buckets, 4)
    assert all(ys[int(x)] == y or math.isnan(y) for x, y in zip(kept_xs, kept_ys, strict=True))
    finite = [y for y in ys if math.isfinite(y)]
    kept = [y for y in kept_ys if math.isfinite(y)]
    assert (min(kept, default=None), max(kept, default=None)) == (min(finite, default=None), max(finite, default=None))


def test_a_single_peak_in_a_million_stays():
    ys = [0.0] * 1_000_000
    ys[123_457], ys[700_001] = 5.0, -3.0
    xs, kept = thin(range(1_000_000), ys, 700)
    assert (123_457, 5.0) in zip(xs, kept, strict=True) and (700_001, -3.0) in zip(xs, kept, strict=True)
    assert len(xs) <= 2800


def test_a_gap_stays_a_gap():
    ys = [1.0] * 500 + [math.nan] * 300 + [1.0] * 500
    _, kept = thin(range(len(ys)), ys, 20)
    gap = [math.isnan(y) for y in kept]
    assert any(gap) and not gap[0] and not gap[-1]


def test_few_points_are_left_as_they_are():
    assert thin([1, 2, 3], [3.0, 1.0, 2.0], 100) == ([1, 2, 3], [3.0, 1.0, 2.0])


@pytest.mark.parametrize("curves", [1, 3, 50, 1000])
def test_a_picture_of_many_curves_is_no_larger_than_of_one(curves):
    assert 4 * buckets_for(curves) * curves <= MOST_POINTS or buckets_for(curves) == FEWEST_BUCKETS


@given(st.lists(st.integers(1, 100_000), unique=True, max_size=500), st.integers(10, 200))
def test_every_skip_has_a_mark_no_further_than_a_place_away(steps, places):
    steps.sort()
    found = thin_marks(steps, 100_000, places)
    width = 100_000 / places
    assert all(any(abs(step - mark) <= width for mark in found) for step in steps)
    assert set(found) <= set(steps) and len(found) <= max(places + 1, len(steps) if len(steps) <= places else 0)
