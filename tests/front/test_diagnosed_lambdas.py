"""Models with Lambda layers are the user's own objects: their functions are kept as they are."""

import keras
import numpy as np
from keras import layers, ops

from mpt_cli.training.run_from_model import cloned

X = np.linspace(-1, 1, 64 * 4, dtype="float32").reshape(64, 4)
FACTOR = 3.0


def test_a_copy_computes_what_the_model_does_and_has_its_dtypes():
    """A Lambda in a model within, which reads a global, and one with arguments and a dtype of its own."""
    inputs = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: ops.tanh(x) * FACTOR)], name="inner")
    x = inner(ops.relu(layers.Dense(4)(inputs)))
    half = layers.Lambda(lambda x, by: x * by, (4,), arguments={"by": 2.0}, dtype="mixed_bfloat16", name="half")
    model = keras.Model(inputs, layers.Dense(1)(half(x)))
    copy = cloned(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy.predict(X, verbose=0), model.predict(X, verbose=0))
    assert [layer.name for layer in copy.layers][1:] == [layer.name for layer in model.layers][1:]
    assert not {*map(id, copy.layers)} & {*map(id, model.layers)}
    assert copy.get_layer("half").dtype_policy.name == "mixed_bfloat16"
