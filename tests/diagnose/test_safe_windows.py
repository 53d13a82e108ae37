"""The scales that the gradients of one kind bear, from their counts."""

import numpy as np
import pytest

from mpt_cli.diagnose.safe_windows import GradientCounts
from mpt_cli.precision.gradients.exponent_counts import EXPONENT_BIAS, SLOTS, SafeScales


def of_outputs(values: dict[int, int]):
    """In float16, by exponent how many."""
    counts = np.zeros(SLOTS, np.float32)
    for exponent, number in values.items():
        counts[exponent + EXPONENT_BIAS] = number
    return GradientCounts(counts, "float16", of_weights=False)


@pytest.mark.parametrize("exponent", [0, -20, -40, -60])
def test_the_window_of_output_gradients_moves_with_their_magnitude(exponent):
    gradients = of_outputs({exponent: 3, exponent - 4: 1})  # the smaller one, 1/49 of the sum, is kept from 2**-25 on
    assert gradients.window == SafeScales(-25 - (exponent - 4), 15 - exponent)


def test_tiny_output_gradients_beside_large_ones_bind_no_scale():
    assert of_outputs({0: 1, -40: 1000}).window == of_outputs({0: 1}).window == SafeScales(-25, 15)
