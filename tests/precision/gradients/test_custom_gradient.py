"""`custom_gradient` beyond what its page has: keyword arguments, layers, methods and traced values from around it."""

import keras
import pytest
from backends import MODES, compiled, gradients, only_on
from keras import ops

from mpt_cli.precision.gradients.custom_gradients import custom_gradient


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_keyword_arguments_get_no_gradient(mode):
    """A tensor among them, which is traced, and what is no tensor at all."""

    @custom_gradient
    def function(x, factor, power="first"):
        slope = 100.0 if power == "first" else 1000.0
        return x * factor if power == "first" else x * factor**2, lambda upstream: upstream * slope * factor

    def both(x, factor):
        return function(x, factor=factor), function(x, factor=factor, power="second")

    x, factor = ops.array([1.0, 2.0]), ops.array(3.0)
    assert [ops.convert_to_numpy(y).tolist() for y in compiled(both, mode)(x, factor)] == [[3.0, 6.0], [9.0, 18.0]]
    slope = compiled(lambda x, factor: gradients(lambda x: both(x, factor)[1], x)[0], mode)(x, factor)
    assert ops.convert_to_numpy(slope).tolist() == [3000.0, 3000.0]


def test_a_variable_among_the_tensors_is_one_of_them_and_an_instance_is_none():
    class Doubling:
        @custom_gradient
        def __call__(self, x, flag=True):
            return 2 * x if flag else x, lambda upstream: 5 * upstream

    double = Doubling()
    assert float(double(keras.Variable(3.0))) == 6.0
    assert [float(slope) for slope in gradients(lambda x: double(x, False), ops.array(3.0))] == [5.0]


@only_on("jax")
def test_what_is_traced_around_it_may_be_captured():
    import jax

    def cubed(x):
        doubled = 2 * x
        return custom_gradient(lambda y: (y**3 + doubled, lambda upstream: 3 * y**2 * upstream))(x)

    slope = jax.grad(jax.jit(cubed))  # of what is captured there is none
    assert (float(slope(2.0)), float(jax.jit(jax.grad(slope))(2.0))) == (12.0, 12.0)


def test_a_second_order_uses_the_gradient_given_where_the_value_is_used_too():
    """Of round(x)**2, straight through: 2 round(x), and 2."""
    rounded = custom_gradient(lambda x: (ops.round(x), lambda upstream: upstream))
    (second,) = gradients(lambda x: gradients(lambda v: rounded(v) ** 2, x)[0], ops.array(2.25))
    assert float(second) == 2.0
