"""scale_gradient: an identity forward, a product backward."""

import numpy as np
import pytest
from backends import MODES, compiled, gradients
from keras import ops

from mpt_cli.precision.gradients.custom_gradients import scale_gradient


def square_after(factor):
    return lambda x: scale_gradient(x, factor) ** 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("factor", [8.0, -1.0, 0.0, 0.3])
def test_gradient_is_multiplied(factor, mode):
    x = ops.convert_to_tensor(np.float32([1.5, -2.0]))
    slopes = compiled(lambda v: gradients(square_after(factor), v)[0], mode)(x)
    np.testing.assert_array_equal(ops.convert_to_numpy(slopes), np.float32([3.0, -4.0]) * np.float32(factor))


def test_forward_is_bit_identical_for_every_float16():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    passed = ops.convert_to_numpy(scale_gradient(ops.convert_to_tensor(every), 3.0))
    np.testing.assert_array_equal(passed.view(np.uint16), every.view(np.uint16))


def test_gradient_for_the_factor_is_zero():
    x, factor = ops.convert_to_tensor(np.float32([2.0])), ops.convert_to_tensor(np.float32(5.0))
    by_x, by_factor = gradients(lambda v, f: scale_gradient(v, f), x, factor)
    assert (float(by_x[0]), float(by_factor)) == (5.0, 0.0)


def test_a_factor_beyond_float16_scales_a_small_float16_gradient():
    x = ops.cast(ops.convert_to_tensor([1.0]), "float16")
    upstream = np.float16(2.0**-20)
    slope = gradients(lambda v: scale_gradient(v, 2.0**20) * upstream, x)[0]
    assert float(ops.cast(slope, "float32")[0]) == 1.0  # 2**20 is inf in float16


@pytest.mark.parametrize("mode", MODES)
def test_second_order_gradient_is_scaled_twice(mode):
    x = ops.convert_to_tensor(np.float32([2.0]))
    # y = x**3: dy/dx = 3 f x**2, whose x passes the identity again: 6 x f**2
    second = compiled(
        lambda w: gradients(lambda v: gradients(lambda u: scale_gradient(u, 10.0) ** 3, v)[0], w)[0], mode
    )
    assert float(second(x)[0]) == 1200.0
