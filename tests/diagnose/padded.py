"""Models that float16 breaks where no single layer tells it, for `model.builder`."""

from typing import Any

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable(package="mpt_tests")
class Attention(layers.Layer):
    """Masks padding by -1e9 in its own `call`, which is -inf in float16, and 0 times that nan."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.query, self.key, self.value = (layers.Dense(8, name=name) for name in ("query", "key", "value"))

    def call(self, inputs: Any) -> Any:
        keep = ops.cast(ops.any(ops.not_equal(inputs, 0), axis=-1), inputs.dtype)
        scores = ops.matmul(self.query(inputs), ops.transpose(self.key(inputs), (0, 2, 1)))
        scores = scores + (1 - keep[:, None, :]) * ops.cast(-1e9, inputs.dtype)
        return ops.matmul(ops.softmax(scores), self.value(inputs))

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], 8)


def attention(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    x = Attention(name="attention")(layers.Reshape((8, 8), name="rows")(inputs))
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))


def outlier(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """`up` puts out more than float16 holds, and `down` casts that to float16 again."""
    huge, small = keras.initializers.Constant(1e5), keras.initializers.Constant(1e-6)
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(name="flatten"),
            layers.Dense(8, bias_initializer=huge, name="up"),
            layers.Dense(8, kernel_initializer=small, name="down"),
            layers.LayerNormalization(name="norm"),
            layers.Dense(num_classes, name="head"),
        ],
        name="net",
    )


def plain(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    hidden = [layers.Dense(32, "relu", name=name) for name in ("one", "two")]
    head = layers.Dense(num_classes, name="head")
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(name="flatten"), *hidden, head], name="net")
