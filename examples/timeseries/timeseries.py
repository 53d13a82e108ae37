"""Forecasting: the next value of a noisy seasonal series from the last 24, with an LSTM."""

import keras
import numpy as np
from keras import layers


def load_series(length=600, window=24, seed=0):
    rng = np.random.default_rng(seed)
    hours = np.arange(length)
    series = np.sin(hours * 2 * np.pi / 24) + 0.3 * np.sin(hours * 2 * np.pi / 168) + rng.normal(0, 0.1, length)
    series = series.astype("float32")[:, None]
    x = np.stack([series[start : start + window] for start in range(length - window)])
    y = series[window:]
    split = len(x) * 3 // 4
    return (x[:split], y[:split]), (x[split:], y[split:])


def build_model(input_shape):
    return keras.Sequential([keras.Input(input_shape), layers.LSTM(8), layers.Dense(1)])


class Drift(keras.callbacks.Callback):
    """How far the first forecasts lie above the series on average, as `drift` in the logs of an epoch."""

    def __init__(self, x_val, y_val):
        super().__init__()
        self.x_val, self.y_val = x_val, y_val
        self.largest = 0.0

    def on_epoch_end(self, epoch, logs=None):
        logs["drift"] = float(np.mean(self.model.predict(self.x_val, verbose=0) - self.y_val))
        self.largest = max(self.largest, abs(logs["drift"]))


def drift(examples=32):
    x_val, y_val = load_series()[1]
    return Drift(x_val[:examples], y_val[:examples])
