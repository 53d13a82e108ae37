"""Long curves get fewer points and lose nothing that matters."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpt_cli.report.picture import thin

NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])


@pytest.mark.slow
@given(st.lists(NUMBERS, min_size=1, max_size=300), st.integers(3, 60))
def test_extremes_ends_and_order_stay(ys, most):
    xs = list(range(len(ys)))
    kept_xs, kept_ys = thin(xs, ys, most)
    assert kept_xs == sorted(set(kept_xs)) and len(kept_xs) <= most + 2
    assert all(ys[int(x)] == y or math.isnan(y) for x, y in zip(kept_xs, kept_ys, strict=True))
    finite = [y for y in ys if math.isfinite(y)]
    kept = [y for y in kept_ys if math.isfinite(y)]
    assert (min(kept, default=None), max(kept, default=None)) == (min(finite, default=None), max(finite, default=None))


def test_a_gap_stays_a_gap():
    ys = [1.0] * 500 + [math.nan] * 300 + [1.0] * 500
    _, kept = thin(range(len(ys)), ys, 60)
    gap = [math.isnan(y) for y in kept]
    assert any(gap) and not gap[0] and not gap[-1]
