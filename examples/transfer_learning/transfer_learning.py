"""Transfer learning: a trained base is frozen under a new head; a second run also trains the top block of the base."""

import keras
import numpy as np
from keras import layers


def load_shapes(examples=256, seed=0):
    """Noisy images of a bar that is upright or lies flat: two classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, examples).astype("int32")
    x = rng.normal(0, 0.3, (examples, 8, 8, 1)).astype("float32")
    for image, label in zip(x, labels, strict=True):
        place = rng.integers(1, 7)
        if label:
            image[:, place] += 1
        else:
            image[place, :] += 1
    split = examples * 3 // 4
    return (x[:split], labels[:split]), (x[split:], labels[split:])


def build_base(input_shape):
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Conv2D(8, 3, use_bias=False, name="stem"),
        layers.BatchNormalization(name="stem_norm"),
        layers.ReLU(),
        layers.Conv2D(8, 3, use_bias=False, name="top_conv"),
        layers.BatchNormalization(name="top_norm"),
        layers.ReLU(),
        layers.GlobalMaxPooling2D(),
    ], name="base")  # fmt: skip


def build_model(input_shape, num_classes):
    """`keras.applications` would give the base with its weights; this one is small and fresh."""
    inputs = keras.Input(input_shape)
    features = layers.Dropout(0.1)(build_base(input_shape)(inputs))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(features))
