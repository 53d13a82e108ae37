"""Super-resolution: images of twice the size, with an efficient sub-pixel network and a PSNR callback."""

import keras
import numpy as np
from keras import layers, ops


def load_images(images=96, size=16, seed=0):
    """Smooth random images, and the same at half the size."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    waves = rng.uniform(1, 4, (images, 2)), rng.uniform(0, 6, (images, 1, 1))
    phase = waves[0][:, 0, None, None] * x + waves[0][:, 1, None, None] * y
    large = (0.5 + 0.5 * np.sin(2 * np.pi * phase + waves[1])).astype("float32")[..., None]
    small = large.reshape(images, size // 2, 2, size // 2, 2, 1).mean((2, 4))
    split = images * 3 // 4
    return (small[:split], large[:split]), (small[split:], large[split:])


def build_model(input_shape, factor=2):
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(16, 5, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(factor**2, 3, padding="same", dtype="float32")(x)
    height, width = input_shape[:2]
    x = layers.Reshape((height, width, factor, factor), dtype="float32")(x)
    x = layers.Permute((1, 3, 2, 4), dtype="float32")(x)
    outputs = layers.Reshape((height * factor, width * factor, 1), dtype="float32")(x)
    return keras.Model(inputs, outputs)


class ESPCNCallback(keras.callbacks.Callback):
    """Mean peak signal-to-noise ratio on the validation images, in decibels."""

    def __init__(self):
        super().__init__()
        self.small, self.large = load_images()[1]
        self.best_psnr = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.psnr = []

    def on_epoch_end(self, epoch, logs=None):
        predicted = np.clip(self.model.predict(self.small, verbose=0), 0, 1)
        errors = ops.convert_to_numpy(ops.mean((predicted - self.large) ** 2, axis=(1, 2, 3)))
        self.psnr = [float(10 * np.log10(1 / error)) for error in errors]
        logs["psnr"] = float(np.mean(self.psnr))
        self.best_psnr = max(self.best_psnr, logs["psnr"])
