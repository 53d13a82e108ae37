"""Transfer learning: a base trained on one task, frozen under a new head for another."""

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


def build_model(input_shape, num_classes):
    base = keras.Sequential([
        keras.Input(input_shape),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.GlobalMaxPooling2D(),
    ], name="base")  # fmt: skip
    inputs = keras.Input(input_shape)
    features = base(inputs, training=False)  # its statistics stay as they are, also when it is trained on
    return keras.Model(inputs, layers.Dense(num_classes)(features))
