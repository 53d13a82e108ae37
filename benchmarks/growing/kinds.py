"""Models of different kinds and depths, for `model.builder`, and data that fits each, for `data.loader`."""

from typing import Any

import keras
import numpy as np
from keras import layers

CLASSES = 10


def residual_mlp(input_shape: tuple[int, ...], num_classes: int, depth: int, width: int = 96) -> keras.Model:
    """Blocks `x + Dense(width, gelu)(LayerNormalization()(x))` under a head."""
    inputs = keras.Input(input_shape)
    x = layers.Dense(width)(inputs)
    for _ in range(depth):
        x = layers.add([x, layers.Dense(width, "gelu")(layers.LayerNormalization()(x))])
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))


def mlp(input_shape: tuple[int, ...], num_classes: int, hidden: list[int], normalized: bool = False) -> keras.Model:
    """Dense layers, each followed by a BatchNormalization where `normalized`."""
    inputs = x = keras.Input(input_shape)
    for width in hidden:
        x = layers.Dense(width, "relu")(x)
        x = layers.BatchNormalization()(x) if normalized else x
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))


def transformer(
    input_shape: tuple[int, ...], num_classes: int, depth: int, width: int = 64, heads: int = 4
) -> keras.Model:
    """Pre-norm encoder blocks over a series of vectors, and the mean over it."""
    inputs = keras.Input(input_shape)
    x = layers.Dense(width)(inputs)
    for _ in range(depth):
        normed = layers.LayerNormalization()(x)
        x = layers.add([x, layers.MultiHeadAttention(heads, width // heads)(normed, normed)])
        hidden = layers.Dense(2 * width, "gelu")(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Dense(width)(hidden)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))


def resnet(input_shape: tuple[int, ...], num_classes: int, depth: int, width: int = 8) -> keras.Model:
    """`depth` residual blocks of two 3x3 convolutions with BatchNormalization; the second and third third of them have
    twice and four times the channels on half and a quarter of the sides."""
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(width, 3, padding="same", use_bias=False)(inputs)
    for block in range(depth):
        third, before = 3 * block // depth, 3 * max(block - 1, 0) // depth
        channels, starts = width * 2**third, third > before
        y = _normed_convolution(x, channels, 2 if starts else 1)
        y = _normed_convolution(layers.Activation("relu")(y), channels, 1)
        short = _normed_convolution(x, channels, 2, 1) if starts else x
        x = layers.Activation("relu")(layers.add([y, short]))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(layers.GlobalAveragePooling2D()(x)))


def _normed_convolution(x: Any, channels: int, strides: int, size: int = 3) -> Any:
    return layers.BatchNormalization()(layers.Conv2D(channels, size, strides, padding="same", use_bias=False)(x))


def convnet(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Two convolutions with pooling, then Dense."""
    inputs = keras.Input(input_shape)
    x = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation="relu")(inputs))
    x = layers.Flatten()(layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu")(x)))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(layers.Dense(64, "relu")(x)))


def series(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Three convolutions with BatchNormalization over a series."""
    inputs = x = keras.Input(input_shape)
    for _ in range(3):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(32, 3, padding="same")(x)))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(layers.GlobalAveragePooling1D()(x)))


def lstm(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    x = layers.LSTM(64)(layers.LSTM(64, return_sequences=True)(inputs))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))


def bidirectional_gru(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(layers.Bidirectional(layers.GRU(48))(inputs)))


def embedding(input_shape: tuple[int, ...], num_classes: int, words: int = 50_000, width: int = 64) -> keras.Model:
    """A mean of word vectors."""
    inputs = keras.Input(input_shape, dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(words, width)(inputs))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))


def examples(shape: list[int], steps: int, batch_size: int = 64, words: int = 0) -> Any:
    """`((x, y), (x_val, y_val))` for `steps` training steps and a tenth of it; integers below `words` where given.

    The class depends on the first numbers of an example, so that there is something to learn.
    """
    rng = np.random.default_rng(0)
    count, held_out = steps * batch_size, max(1, steps // 10) * batch_size
    size = (count + held_out, *shape)
    x = rng.integers(0, words, size, dtype="int32") if words else rng.standard_normal(size, dtype="float32")
    first = x.reshape(len(x), -1)[:, 0]
    classes = first * CLASSES // words if words else np.clip(np.floor(2 * first + CLASSES / 2), 0, CLASSES - 1)
    y = classes.astype("int32")
    return (x[:count], y[:count]), (x[count:], y[count:])
