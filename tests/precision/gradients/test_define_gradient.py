"""`define_gradient` with several values and with variables among its arguments, on both backends."""

import keras
import numpy as np
import pytest
from backends import BACKEND, gradients
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


def test_the_gradient_of_one_tensor_may_stand_alone_and_upstream_is_as_the_value():
    both = define_gradient(lambda x: (x, 2 * x), lambda upstream, x: 10 * upstream[0] + upstream[1])
    (slope,) = gradients(lambda x: both(x)[0] + 7 * both(x)[1], ops.array(1.0))
    assert float(slope) == 17.0


def test_a_variable_among_the_tensors_is_one_of_them():
    double = define_gradient(lambda x: 2 * x, lambda upstream, x: 5 * upstream)
    variable = keras.Variable(3.0)
    assert float(double(variable)) == 6.0
    assert slopes_of(lambda: double(variable), [variable]) == ([5.0], [])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_a_layer_whose_call_has_a_gradient_of_its_own_trains_in_fit(dtype):
    """The gradient given for the kernel is its sign, not the true one."""

    class Signed(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 1), initializer="ones")

        def call(self, x):
            def backward(upstream, x, kernel):
                return ops.zeros_like(x), ops.ones_like(kernel) * ops.cast(ops.sign(ops.sum(upstream)), kernel.dtype)

            return define_gradient(lambda x, kernel: ops.matmul(x, ops.cast(kernel, x.dtype)), backward)(x, self.kernel)

    model = keras.Sequential([keras.Input((2,)), Signed(dtype=dtype)])
    model.compile(keras.optimizers.SGD(0.25), "mse")
    model.fit(np.ones((4, 2)), np.zeros((4, 1)), batch_size=4, epochs=2, verbose=0)
    assert model.get_weights()[0].ravel().tolist() == [0.5, 0.5]


def test_a_wrong_number_of_gradients_is_an_error():
    function = define_gradient(lambda x, y: x * y, lambda upstream, x, y: upstream)
    with pytest.raises(ValueError, match=r"a gradient for each of the 2 tensors\. Received: 1\."):
        gradients(function, ops.array(1.0), ops.array(1.0))
