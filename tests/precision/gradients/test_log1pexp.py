"""log1pexp: exact values, its derivatives, and that no mode of execution changes them."""

import keras
import numpy as np
import pytest
from backends import MODES, central_difference, compiled, float64_allowed, gradients
from keras import ops

from mpt_cli.precision.gradients import log1pexp

POINTS = np.array([-30.0, -3.0, -0.5, 0.0, 0.25, 4.0, 30.0])


def slope(x):
    return gradients(log1pexp, x)[0]


def numpy_of(x):
    return ops.convert_to_numpy(x)


@pytest.mark.parametrize("mode", MODES)
def test_slope_at_100_is_one_where_plain_autodiff_gives_nan(mode):
    at_100 = ops.convert_to_tensor(np.float32([100.0]))
    naive = compiled(lambda x: gradients(lambda v: ops.log(1 + ops.exp(v)), x)[0], mode)(at_100)
    assert np.isnan(numpy_of(naive)[0])
    assert numpy_of(compiled(slope, mode)(at_100))[0] == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_slope_at_minus_100_is_tiny_or_flushed_but_a_number(mode):
    value = numpy_of(compiled(slope, mode)(ops.convert_to_tensor(np.float32([-100.0]))))[0]
    assert value == 0.0 or value == pytest.approx(np.exp(-100.0), rel=0.02)  # subnormal: 27 times 2**-149


@pytest.mark.parametrize(
    ("x", "value", "first"), [(0.0, np.log(2.0), 0.5), (100.0, 100.0, 1.0), (1e4, 1e4, 1.0), (-1e4, 0.0, 0.0)]
)
def test_values_by_hand(x, value, first):
    point = ops.convert_to_tensor(np.float32([x]))
    assert numpy_of(log1pexp(point))[0] == pytest.approx(value, rel=1e-7)
    assert numpy_of(slope(point))[0] == first


def test_infinite_arguments_have_the_limits():
    ends = ops.convert_to_tensor(np.float32([-np.inf, np.inf]))
    assert numpy_of(log1pexp(ends)).tolist() == [0.0, np.inf]
    assert numpy_of(slope(ends)).tolist() == [0.0, 1.0]


def test_slope_agrees_with_finite_differences_in_float64():
    with float64_allowed():
        exact = numpy_of(slope(ops.convert_to_tensor(POINTS)))
        assert exact.dtype == np.float64
        np.testing.assert_allclose(exact, central_difference(log1pexp, POINTS), rtol=1e-5, atol=1e-10)


def test_second_derivative_agrees_with_finite_differences_of_the_first():
    with float64_allowed():
        second = numpy_of(gradients(slope, ops.convert_to_tensor(POINTS))[0])
        difference = central_difference(lambda x: slope(ops.convert_to_tensor(x)), POINTS)
        np.testing.assert_allclose(second, difference, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("mode", MODES)
def test_second_derivative_survives_where_one_minus_the_sigmoid_rounds_to_zero(mode):
    at_20 = ops.convert_to_tensor(np.float32([20.0]))
    second = compiled(lambda x: gradients(slope, x)[0], mode)(at_20)
    assert numpy_of(second)[0] == pytest.approx(np.exp(-20.0), rel=1e-6)  # s(20) is 1.0 in float32


def test_third_derivative_at_zero_is_zero_and_odd_around_it():
    points = ops.convert_to_tensor(np.float32([-1.0, 0.0, 1.0]))
    third = numpy_of(gradients(lambda x: gradients(slope, x)[0], points)[0])
    assert third[1] == 0.0
    assert third[0] == -third[2] == pytest.approx(0.0908578, rel=1e-5)  # s(1 - s)(1 - 2s) at s = 0.268941


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_of_value_and_gradient_is_that_of_x(dtype):
    x = ops.cast(ops.convert_to_tensor([100.0]), dtype)
    assert keras.backend.standardize_dtype(log1pexp(x).dtype) == dtype
    assert keras.backend.standardize_dtype(slope(x).dtype) == dtype
    assert float(ops.cast(slope(x), "float32")[0]) == 1.0


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"log1pexp: x must be floating. Received: dtype=int32. Cast it first."):
        log1pexp(ops.convert_to_tensor([1, 2]))


def test_symbolic_tensors_are_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"not a symbolic Keras tensor.*call it from a layer's `call`"):
        log1pexp(keras.Input((3,)))
