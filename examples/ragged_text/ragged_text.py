"""Texts of different lengths as a ragged tensor, without padding."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

WORDS = 30


def load_reviews(examples=192):
    """Texts of 3 to 12 words; words 1 to 4 praise, 5 to 8 blame."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, examples)
    texts = []
    for label in labels:
        judgement = rng.integers(1, 5, 2) + 4 * (1 - label)
        texts.append([*rng.integers(9, WORDS, rng.integers(1, 10)), *judgement])
    return tf.ragged.constant(texts, dtype="int32"), labels.astype("float32")[:, None]


def build_model():
    words = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, 8)(words)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(8, activation="relu")(x)
    return keras.Model(words, layers.Dense(1, activation="sigmoid")(x))
