"""Metric learning on batches that a PyDataset makes: pairs of images, one of each class."""

import random

import keras
import numpy as np
from keras import layers, ops

CLASSES = 6


class AnchorPositivePairs(keras.utils.PyDataset):
    def __init__(self, batches, **kwargs):
        super().__init__(**kwargs)
        self.batches = batches
        rng = np.random.default_rng(0)
        centres = rng.random((CLASSES, 1, 8, 8, 1))
        self.images = (centres + rng.normal(0, 0.1, (CLASSES, 20, 8, 8, 1))).astype("float32")

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        chosen = [random.sample(range(20), 2) for _ in range(CLASSES)]
        anchors, positives = np.transpose(chosen)
        rows = np.arange(CLASSES)
        return (self.images[rows, anchors], self.images[rows, positives]), rows


def load_pairs(batches=8):
    return AnchorPositivePairs(batches)


def build_model():
    encoder = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, 3, strides=2, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(8),
        layers.UnitNormalization(dtype="float32"),
    ])
    anchor, positive = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    similarities = ops.einsum("ae,pe->ap", encoder(anchor), encoder(positive))
    return keras.Model([anchor, positive], layers.Activation("linear", dtype="float32")(similarities / 0.2))


@keras.saving.register_keras_serializable("metric_learning")
class MatchLoss(keras.losses.Loss):
    """Each anchor is to be nearest to the positive of its class."""

    def call(self, y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
