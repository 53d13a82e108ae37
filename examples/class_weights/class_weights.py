"""Rare frauds among many payments, weighted by class."""

import keras
import numpy as np
from keras import layers


def load_payments(examples=512):
    rng = np.random.default_rng(0)
    fraud = rng.random(examples) < 0.06
    x = rng.normal(size=(examples, 12)).astype("float32")
    x[fraud, :3] += 1.5
    return x, fraud.astype("uint8")[:, None]


def build_model(input_shape):
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Dense(32, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ])
