"""A model that mixes float16 with float32 on TensorFlow is told by its layer, its line and what to cast."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from mpt_cli.data.examples import Examples
from mpt_cli.errors import ConfigError, MptError, UserCodeError
from mpt_cli.training.build_run_parts import build_metrics

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX converts between dtypes")

X = np.linspace(-1, 1, 64 * 8, dtype="float32").reshape(64, 8)


class Applied(layers.Layer):
    def __init__(self, function, **kwargs):
        super().__init__(dtype="mixed_float16", **kwargs)
        self.function = function

    def call(self, inputs):
        return self.function(inputs)

    def compute_output_shape(self, shape):
        return shape


MIXED = {
    "Mul": lambda x: x * tf.constant(0.9),
    "MatMul": lambda x: tf.matmul(x, tf.eye(8)),
    "ConcatV2": lambda x: tf.concat([x[:, :4], tf.zeros((tf.shape(x)[0], 4))], -1),
    "Pack": lambda x: tf.reduce_sum(tf.stack([x, tf.cast(x, tf.float32)]), 0),
    "Conv2D": lambda x: tf.nn.conv2d(x[:, :, None, None], tf.ones((3, 1, 1, 1)), 1, "SAME")[..., 0, 0],
    "a conversion": lambda x: tf.convert_to_tensor(tf.cast(x, tf.float32), dtype=x.dtype),
    "a cond": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: tf.cast(x, tf.float32)),
    "a loop": lambda x: tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.cast(a, tf.float32)), (0, x))[1],
}


def said_of(*parts):
    model = keras.Sequential([keras.Input((8,)), *parts])
    return fault_of(model)


def fault_of(model):
    model.compile("sgd", "mse")
    with pytest.raises(MptError) as caught:
        build_metrics(model, Examples(X, X[:, :1]), 32)
    return caught.value


@pytest.mark.parametrize("operation", MIXED)
def test_float16_with_float32_is_told_by_layer_operation_and_line(operation):
    fault = said_of(Applied(MIXED[operation], name="gate"), layers.Dense(1))
    assert isinstance(fault, ConfigError)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if f'    "{operation}": lambda' in text)
    assert str(fault) == (
        f"model: layer gate (Applied) must give {operation} one dtype (test_dtype_mismatch.py, line {line}, in "
        "<lambda>). Received: 'float16 × float32'. TensorFlow converts neither. Cast the constant or the weight, as in "
        "tf.cast(value, x.dtype), or keep the layer in float32: 'policy.overrides={gate: float32}'."
    )


def test_an_activation_is_told_by_the_layer_that_has_it():
    gate = layers.Dense(8, lambda x: tf.nn.relu(x) * tf.constant(0.9), dtype="mixed_float16", name="gate")
    assert str(said_of(gate, layers.Dense(1))).startswith("model: layer gate (Dense) must give Mul one dtype")


def test_a_lambda_layer_and_bfloat16_are_told_alike():
    gate = layers.Lambda(lambda x: x * tf.constant(0.9), dtype="mixed_bfloat16", name="gate")
    assert "layer gate (Lambda)" in str(fault := said_of(gate, layers.Dense(1)))
    assert "Received: 'bfloat16 × float32'" in str(fault)


def test_the_innermost_layer_is_named():
    block = keras.Sequential([layers.Dense(8), Applied(MIXED["Mul"], name="gate")], name="block")
    assert str(said_of(block, layers.Dense(1))).startswith("model: layer gate (Applied)")


def test_a_model_with_a_call_of_its_own_is_named_without_an_override():
    class Scaled(keras.Model):
        def __init__(self):
            super().__init__(name="scaled", dtype="mixed_float16")
            self.dense = layers.Dense(1, dtype="mixed_float16")

        def call(self, inputs):
            return self.dense(inputs) * tf.constant(0.9)

    assert str(fault_of(Scaled())).endswith("as in tf.cast(value, x.dtype).")


def test_what_else_a_layer_raises_is_told_by_the_layer_and_not_by_the_targets():
    fault = said_of(Applied(lambda x: x.shapes, name="gate"), layers.Dense(1))
    assert isinstance(fault, UserCodeError)
    assert str(fault).startswith("model: layer gate (Applied): ") and "has no attribute 'shapes'" in str(fault)


def test_a_fault_of_keras_own_frame_around_it_is_told_without_the_frame():
    fault = said_of(Applied(lambda x: x * tf.range(8), name="gate"), layers.Dense(1))
    assert str(fault).startswith("model: layer gate (Applied): Input 'y' of 'Mul' Op has type int32 that does not")


def test_a_loss_that_does_not_fit_the_targets_is_still_told_as_that():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match=r"^trainer\.loss: .* targets of shape \(5,\)"):
        build_metrics(model, Examples(X, X[:, :5]), 32)
