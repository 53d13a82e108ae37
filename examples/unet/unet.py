"""A U-Net predicts what each pixel belongs to: background, outline or body."""

import keras
import numpy as np
from keras import layers

SIZE, CLASSES = 16, 3


def load_masks(examples=96, seed=0):
    """Noisy discs of random places and sizes, a byte for each pixel, and the class of each pixel."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    centre, radius = rng.uniform(5, 11, (examples, 2, 1, 1)), rng.uniform(2.5, 5, (examples, 1, 1))
    distance = np.hypot(rows - centre[:, 0], columns - centre[:, 1]) - radius
    masks = np.select([distance < -1, distance < 1], [2, 1], 0)
    images = np.array([30, 220, 130])[masks][..., None] + rng.normal(0, 12, (examples, SIZE, SIZE, 3))
    split = examples * 3 // 4
    x, y = np.clip(images, 0, 255).astype("uint8"), masks[..., None].astype("uint8")
    return (x[:split], y[:split]), (x[split:], y[split:])


def build_model(input_shape):
    inputs = keras.Input(input_shape)
    x = layers.Rescaling(1 / 255)(inputs)
    x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x)))
    skips = []
    for filters in (16, 24):  # down
        skips.append(x)
        x = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.MaxPooling2D(2)(layers.Activation("relu")(layers.BatchNormalization()(x)))
    for filters, skip in zip((16, 8), reversed(skips), strict=True):  # up
        x = layers.UpSampling2D(2)(layers.Conv2DTranspose(filters, 3, padding="same", use_bias=False)(x))
        x = layers.Concatenate()([layers.Activation("relu")(layers.BatchNormalization()(x)), skip])
    return keras.Model(inputs, layers.Conv2D(CLASSES, 3, padding="same", activation="softmax")(x))
