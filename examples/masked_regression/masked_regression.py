"""Regression over sequences of different lengths: padding is masked in the model and has weight 0 in the loss."""

import keras
import numpy as np
from keras import layers

STEPS = 10


def load_sequences(examples=160):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, STEPS + 1, examples)
    present = np.arange(STEPS) < lengths[:, None]
    x = rng.normal(0, 1, (examples, STEPS, 2)) * present[..., None]
    y = np.cumsum(x.sum(-1), axis=1)[..., None]
    return x.astype("float32"), y.astype("float32"), present.astype("float32")


def build_model(input_shape):
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Masking(),
        layers.LSTM(12, return_sequences=True),
        layers.TimeDistributed(layers.Dense(1)),
    ])
