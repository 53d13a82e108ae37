"""A convnet on one-hot labels, with the loss that Keras has for them."""

import keras
import numpy as np
from keras import layers


def load_digits(examples=256, seed=0):
    """Noisy squares, each in one of ten places."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, examples)
    x = rng.normal(0, 0.3, (examples, 12, 12, 1)).astype("float32")
    for image, label in zip(x, labels, strict=True):
        row, column = divmod(label, 4)
        image[row * 4 : row * 4 + 3, column * 3 : column * 3 + 3] += 1
    y = keras.utils.to_categorical(labels, 10)
    split = examples * 3 // 4
    return (x[:split], y[:split]), (x[split:], y[split:])


def build_model(input_shape):
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ])
