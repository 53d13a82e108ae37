"""A siamese network with a contrastive loss: are two vectors of the same kind?"""

import keras
import numpy as np
from keras import layers, ops


def load_pairs(examples=256):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 16))
    first, second = rng.integers(0, 5, examples), rng.integers(0, 5, examples)
    second = np.where(rng.random(examples) < 0.5, first, second)
    left = (centres[first] + rng.normal(0, 0.2, (examples, 16))).astype("float32")
    right = (centres[second] + rng.normal(0, 0.2, (examples, 16))).astype("float32")
    return [left, right], (first != second).astype("float32")[:, None]


def build_model():
    tower = keras.Sequential([keras.Input((16,)), layers.BatchNormalization(), layers.Dense(8, activation="tanh")])
    left, right = keras.Input((16,)), keras.Input((16,))
    difference = layers.Subtract()([tower(left), tower(right)])
    distance = ops.sqrt(ops.sum(ops.square(difference), axis=1, keepdims=True) + 1e-3)
    distance = layers.BatchNormalization()(distance)
    return keras.Model([left, right], layers.Dense(1, activation="sigmoid")(distance))


def loss(margin=1):
    """Contrastive loss over pairs that are alike (0) or not (1)."""

    def contrastive_loss(y_true, y_pred):
        alike = ops.square(y_pred)
        different = ops.square(ops.maximum(margin - y_pred, 0))
        return ops.mean((1 - y_true) * alike + y_true * different)

    return contrastive_loss


def accuracy(y_true, y_pred):
    return ops.mean(ops.cast(ops.equal(y_true, ops.round(y_pred)), "float32"), axis=-1)
