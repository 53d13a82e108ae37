"""`define_gradient` with keyword arguments, several values and functions that read variables, on both backends."""

import keras
import numpy as np
import pytest
from backends import BACKEND, MODES, compiled, gradients, only_on
from keras import ops

from mpt_cli.precision.gradients import define_gradient


def slopes_of(function, variables, *arguments):
    """Gradients of the sum of `function(*arguments)` by variables and by arguments."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(arguments)
            total = tf.reduce_sum(function(*arguments))
        by_variables, by_arguments = tape.gradient(total, ([v.value for v in variables], arguments))
        return [float(ops.sum(g)) for g in by_variables], [float(ops.sum(g)) for g in by_arguments]
    import jax

    def total(values, arguments):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return ops.sum(function(*arguments))

    by_variables, by_arguments = jax.grad(total, (0, 1))([v.value for v in variables], arguments)
    return [float(ops.sum(g)) for g in by_variables], [float(ops.sum(g)) for g in by_arguments]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_keyword_arguments_go_to_both_functions_and_get_no_gradient(mode):
    """A tensor among them, which is traced, and what is no tensor at all."""

    def forward(x, factor, power="first"):
        return x * factor if power == "first" else x * factor**2

    def backward(upstream, x, factor, power="first"):
        return (upstream * (100.0 if power == "first" else 1000.0) * factor,)

    function = define_gradient(forward, backward)

    def both(x, factor):
        return function(x, factor=factor), function(x, factor=factor, power="second")

    x, factor = ops.array([1.0, 2.0]), ops.array(3.0)
    assert [ops.convert_to_numpy(y).tolist() for y in compiled(both, mode)(x, factor)] == [[3.0, 6.0], [9.0, 18.0]]
    slope = compiled(lambda x, factor: gradients(lambda x: both(x, factor)[1], x)[0], mode)(x, factor)
    assert ops.convert_to_numpy(slope).tolist() == [3000.0, 3000.0]


def test_the_gradient_of_one_tensor_may_stand_alone_and_upstream_is_as_the_value():
    both = define_gradient(lambda x: (x, 2 * x), lambda upstream, x: 10 * upstream[0] + upstream[1])
    (slope,) = gradients(lambda x: both(x)[0] + 7 * both(x)[1], ops.array(1.0))
    assert float(slope) == 17.0


def test_a_variable_among_the_tensors_is_one_of_them():
    double = define_gradient(lambda x: 2 * x, lambda upstream, x: 5 * upstream)
    variable = keras.Variable(3.0)
    assert float(double(variable)) == 6.0
    assert slopes_of(lambda: double(variable), [variable]) == ([5.0], [])


def test_functions_that_read_variables_give_their_gradients():
    first, second = keras.Variable([2.0], name="first"), keras.Variable([3.0], name="second")
    frozen = keras.Variable(5.0, trainable=False)

    def backward(upstream, x, variables=None, shift=0.0):
        assert [v.name.partition(":")[0].rpartition("/")[2] for v in variables] == ["first", "second"]
        return 1000.0 * upstream * ops.ones_like(x), [upstream * 10.0 * x, upstream * 100.0 * frozen]

    function = define_gradient(lambda x, shift=0.0: first * x * second + frozen * 0 + shift, backward)
    x = ops.array([7.0])
    assert float(ops.sum(function(x, shift=1.0))) == 43.0
    assert slopes_of(lambda x: 2 * function(x, shift=1.0), [first, second], x) == ([140.0, 1000.0], [2000.0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_a_layer_whose_call_has_a_gradient_of_its_own_trains_in_fit(dtype):
    """The gradient given for the kernel is its sign, not the true one."""

    class Signed(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 1), initializer="ones")

        def call(self, x):
            def backward(upstream, x, variables):
                sign = ops.cast(ops.sign(ops.sum(upstream)), "float32")
                return ops.zeros_like(x), [ops.ones_like(ops.convert_to_tensor(variables[0])) * sign]

            return define_gradient(lambda x: ops.matmul(x, ops.cast(self.kernel, x.dtype)), backward)(x)

    model = keras.Sequential([keras.Input((2,)), Signed(dtype=dtype)])
    model.compile(keras.optimizers.SGD(0.25), "mse")
    model.fit(np.ones((4, 2)), np.zeros((4, 1)), batch_size=4, epochs=2, verbose=0)
    assert model.get_weights()[0].ravel().tolist() == [0.5, 0.5]


@only_on("tensorflow")
def test_reading_variables_without_taking_them_is_an_error():
    variable = keras.Variable(2.0)
    function = define_gradient(lambda x: x * variable, lambda upstream, x: upstream)
    with pytest.raises(TypeError, match="`backward` must take `variables`, as `forward` reads trainable ones"):
        slopes_of(function, [variable], ops.array(1.0))


def test_a_wrong_number_of_gradients_is_an_error():
    function = define_gradient(lambda x, y: x * y, lambda upstream, x, y: upstream)
    with pytest.raises(ValueError, match=r"a gradient for each of the 2 tensors\. Received: 1\."):
        gradients(function, ops.array(1.0), ops.array(1.0))
