"""A net with a base of two blocks, BatchNormalization and Dropout, and data for it."""

import keras
import numpy as np
from keras import layers


def load_data(examples=200):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(examples, 6)).astype("float32")
    y = (x[:, 0] * x[:, 1] > 0).astype("int32")
    return (x[:160], y[:160]), (x[160:], y[160:])


def build_model(input_shape, num_classes, dropout=0.2):
    base = keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(12, name="low"),
            layers.BatchNormalization(name="low_norm"),
            layers.ReLU(),
            layers.Dense(8, activation="relu", name="top"),
            layers.BatchNormalization(name="top_norm"),
        ],
        name="base",
    )
    inputs = keras.Input(input_shape)
    x = layers.Dropout(dropout, seed=3)(base(inputs))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))
