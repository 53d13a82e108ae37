"""Reading the counts: against what rounding itself does, and the window of safe scales."""

import numpy as np
import pytest
from keras import ops

from mpt_cli.precision.gradients.exponent_counts import (
    SafeScales,
    largest_exponent,
    safe_scales,
    share_flushed,
    statistics_of_each,
)

RNG = np.random.default_rng(11)
# log-normal over sixty binades, as gradients are; none within rounding of a bin's edge
SPREAD = (RNG.uniform(1.01, 1.99, 4000) * 2.0 ** RNG.integers(-45, 15, 4000) * RNG.choice([-1, 1], 4000)).astype("f4")


def counts_of(values):
    return ops.convert_to_numpy(statistics_of_each([ops.convert_to_tensor(np.float32(values))])[0])


@pytest.mark.parametrize("power", [-12, 0, 1, 3, 8, 20])
def test_shares_are_what_rounding_flushes_at_every_scale(power):
    with np.errstate(over="ignore"):
        rounded = (SPREAD * np.float32(2.0**power)).astype("float16")
    assert share_flushed(counts_of(SPREAD), 2.0**power) == np.mean(rounded == 0)


def test_zeros_and_non_finite_values_are_in_no_share():
    counts = counts_of([0.0, 0.0, np.nan, np.inf, 1.0, 1e-9])
    assert share_flushed(counts) == 0.5


def test_shares_of_a_gradient_of_zeros_are_zero():
    counts = counts_of([0.0, 0.0])
    assert (share_flushed(counts), largest_exponent(counts)) == (0.0, None)
    assert safe_scales(counts) is None


@pytest.mark.parametrize(("value", "exponent"), [(1.0, 0), (0.999, -1), (-6.0, 2), (2.0**-20, -20), (3e38, 127)])
def test_largest_exponent(value, exponent):
    assert largest_exponent(counts_of([value, 2.0**-30, np.inf, 0.0])) == exponent


@pytest.mark.parametrize(
    ("values", "share", "lowest", "highest"),
    [
        ([3.0, 2.0**-20], 0.0, -5, 14),  # 2**-25 is kept by the count, and 3 * 2**14 < 65504 < 3 * 2**15
        ([2.0**10, 2.0**-40], 0.0, 15, 5),  # more than the format spans
        ([1.0] * 99 + [2.0**-40], 0.0, 15, 15),
        ([1.0] * 99 + [2.0**-40], 0.01, -25, 15),
        ([2.0**-120], 0.0, 95, 127),  # within float32
    ],
)
def test_windows(values, share, lowest, highest):
    window = safe_scales(counts_of(values), largest_share_flushed=share)
    assert (window, window.empty) == (SafeScales(lowest, highest), lowest > highest)


def test_of_a_float32_subnormal_nothing_can_be_said():
    assert safe_scales(counts_of([2.0**-130])).empty


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_no_window_is_read_off_a_gradient_that_overflowed(value):
    with pytest.raises(ValueError, match=r"finite gradients only. Received: inf or nan 2 times. Measure in float32"):
        safe_scales(counts_of([1.0, value, value]))
