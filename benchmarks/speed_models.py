"""The models of `benchmarks.speed` that are no recipe, and their data: numbers that can't be learnt, as speed needs.

Each is small enough for a step of 1 to 50 ms on a core, and deep or wide where that is its kind.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

EXAMPLES = 1024  # 16 steps of 64 an epoch
Shape = tuple[int, ...]


def features(shape: list[int], num_classes: int = 10, examples: int = EXAMPLES) -> tuple[Any, Any]:
    """float32 examples of `shape` from a normal distribution, and labels."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(examples, *shape)).astype("float32"), labels(rng, num_classes, examples)


def tokens(length: int, words: int, num_classes: int = 10, examples: int = EXAMPLES) -> tuple[Any, Any]:
    """int32 indices of `words` words, `length` an example, and labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, words, (examples, length)).astype("int32"), labels(rng, num_classes, examples)


def labels(rng: np.random.Generator, num_classes: int, examples: int) -> Any:
    drawn = rng.integers(0, num_classes, examples).astype("int32")
    drawn[:num_classes] = np.arange(num_classes)
    return drawn


def wide_mlp(input_shape: Shape, num_classes: int) -> keras.Model:
    """Two layers of a million weights each: nearly all is matrix products and the optimizer's passes over memory."""
    hidden = [layers.Dense(1024, "relu") for _ in range(2)]
    return keras.Sequential([keras.Input(input_shape), *hidden, layers.Dense(num_classes)])


def residual_mlp(input_shape: Shape, num_classes: int, blocks: int) -> keras.Model:
    """Pre-norm blocks of one layer each: many small operations and variables."""
    inputs = keras.Input(input_shape)
    x = layers.Dense(96)(inputs)
    for _ in range(blocks):
        x = x + layers.Dense(96, "gelu")(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(num_classes)(x))


def separable_cnn(input_shape: Shape, num_classes: int) -> keras.Model:
    """Depthwise-separable convolutions with BatchNormalization, as in MobileNet."""
    x = inputs = keras.Input(input_shape)
    for filters in (16, 32, 64):
        x = layers.BatchNormalization()(layers.SeparableConv2D(filters, 3, 2, padding="same", use_bias=False)(x))
        x = layers.ReLU()(x)
    return keras.Model(inputs, layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(x)))


def series_cnn(input_shape: Shape, num_classes: int) -> keras.Model:
    """Convolutions over time with BatchNormalization."""
    x = inputs = keras.Input(input_shape)
    for filters in (32, 64):
        x = layers.MaxPooling1D(2)(layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(filters, 5)(x))))
    return keras.Model(inputs, layers.Dense(num_classes)(layers.GlobalAveragePooling1D()(x)))


def lstm(input_shape: Shape, num_classes: int) -> keras.Model:
    return keras.Sequential([keras.Input(input_shape), layers.LSTM(64), layers.Dense(num_classes)])


def bidirectional_gru(input_shape: Shape, num_classes: int) -> keras.Model:
    both = layers.Bidirectional(layers.GRU(48))
    return keras.Sequential([keras.Input(input_shape), both, layers.Dense(num_classes)])


def wide_embedding(input_shape: Shape, num_classes: int, words: int, width: int) -> keras.Model:
    """A table of millions of weights of which a batch reads a few: the update is nearly all there is to do."""
    inputs = keras.Input(input_shape, dtype="int32")
    x = layers.Flatten()(layers.Embedding(words, width)(inputs))
    return keras.Model(inputs, layers.Dense(num_classes)(x))


def pre_norm_transformer(input_shape: Shape, num_classes: int, words: int, blocks: int) -> keras.Model:
    """An encoder of `blocks` layers, width 32, that classifies a sequence."""
    inputs = keras.Input(input_shape, dtype="int32")
    x = layers.Embedding(words, 32)(inputs)
    for _ in range(blocks):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 8)(normed, normed)
        x = x + layers.Dense(32)(layers.Dense(128, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(num_classes)(layers.GlobalAveragePooling1D()(x)))


def mlp(input_shape: Shape, num_classes: int) -> keras.Model:
    """The smallest: a step is nearly all overhead."""
    return keras.Sequential([keras.Input(input_shape), layers.Dense(64, "relu"), layers.Dense(num_classes)])


def cnn(input_shape: Shape, num_classes: int) -> keras.Model:
    """Convolutions, pooling and dropout, as in Keras's first example."""
    stack = [
        layer for filters in (16, 32) for layer in (layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D())
    ]
    head = [layers.Flatten(), layers.Dropout(0.5), layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(input_shape), *stack, *head])


def residual_cnn(input_shape: Shape, num_classes: int, blocks: int) -> keras.Model:
    """Blocks of two convolutions with BatchNormalization."""
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(blocks):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(y)))
        x = x + layers.Conv2D(16, 3, padding="same")(y)
    return keras.Model(inputs, layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(x)))


def text_cnn(input_shape: Shape, num_classes: int, words: int) -> keras.Model:
    """Convolutions of several widths over embedded words."""
    inputs = keras.Input(input_shape, dtype="int32")
    x = layers.Embedding(words, 32)(inputs)
    heads = [layers.GlobalMaxPooling1D()(layers.Conv1D(32, width, activation="relu")(x)) for width in (2, 3, 4)]
    return keras.Model(inputs, layers.Dense(num_classes)(layers.Concatenate()(heads)))
