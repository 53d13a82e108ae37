"""Every value is counted in the slot of its exponent, in every mode."""

import numpy as np
import pytest
from backends import MODES, compiled
from keras import ops

from mpt_cli.precision.gradients.exponent_counts import (
    EXPONENT_BIAS,
    INFS,
    NANS,
    SLOTS,
    SUBNORMALS,
    ZEROS,
    statistics_of_each,
)

# value -> the slot it must be counted in
CASES = {
    0.0: ZEROS,
    1.0: EXPONENT_BIAS,
    -1.99: EXPONENT_BIAS,
    2.0: EXPONENT_BIAS + 1,
    0.99: EXPONENT_BIAS - 1,
    65504.0: EXPONENT_BIAS + 15,
    2.0**-24: EXPONENT_BIAS - 24,
    2.0**-126: EXPONENT_BIAS - 126,
    3e38: EXPONENT_BIAS + 127,
    2.0**-130: SUBNORMALS,
    np.inf: INFS,
    -np.inf: INFS,
    np.nan: NANS,
}


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_value_is_counted_in_its_slot(mode):
    found = compiled(lambda x: statistics_of_each([x])[0], mode)(ops.convert_to_tensor(np.float32([*CASES, 1.0, -0.0])))
    expected = np.bincount([*CASES.values(), EXPONENT_BIAS, ZEROS], minlength=SLOTS)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_subnormals_of_float16_are_told_from_zero(dtype):
    upstream = ops.cast(ops.convert_to_tensor([2.0**-24, 0.0, 1.0]), dtype)
    counts = ops.convert_to_numpy(statistics_of_each([upstream])[0])
    assert (counts[EXPONENT_BIAS - 24], counts[ZEROS], counts[EXPONENT_BIAS]) == (1, 1, 1)
    assert counts.sum() == 3


@pytest.mark.slow
def test_counts_do_not_stop_at_2_to_the_24_where_float32_additions_of_one_do():
    size = 2**24 + 2
    counts = ops.convert_to_numpy(statistics_of_each([ops.ones((size,), dtype="float16")])[0])
    assert counts[EXPONENT_BIAS] == size


def test_an_empty_tensor_counts_nothing():
    assert ops.convert_to_numpy(statistics_of_each([ops.zeros((0, 3))])[0]).sum() == 0
