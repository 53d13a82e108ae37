"""Models with Lambda layers are the user's own objects: their functions are kept as they are."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from mpt_cli.training.model_program import cloned

X = np.linspace(-1, 1, 64 * 4, dtype="float32").reshape(64, 4)
FACTOR = 3.0


def tripled(x):
    return x * FACTOR


def functional():
    inputs = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: ops.tanh(x) * FACTOR)], name="inner")
    return keras.Model(inputs, layers.Dense(1)(inner(ops.relu(layers.Dense(4)(inputs)))))


@pytest.mark.parametrize("build", [
    lambda: keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x * FACTOR), layers.Dense(1)]),
    lambda: keras.Sequential([
        keras.Input((4,)), layers.Lambda(lambda x, by: x * by, (4,), arguments={"by": 2.0}), layers.Dense(1)]),
    functional,
])  # fmt: skip
def test_a_copy_computes_what_the_model_does(build):
    model = build()
    copy = cloned(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy.predict(X, verbose=0), model.predict(X, verbose=0))
    assert [layer.name for layer in copy.layers][1:] == [layer.name for layer in model.layers][1:]
    assert not {*map(id, copy.layers)} & {*map(id, model.layers)}


def test_a_copy_has_dtypes_of_its_own():
    model = keras.Sequential([keras.Input((4,)), layers.Lambda(tripled, dtype="mixed_bfloat16"), layers.Dense(1)])
    assert cloned(model).layers[0].dtype_policy.name == "mixed_bfloat16"
