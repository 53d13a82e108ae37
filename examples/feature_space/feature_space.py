"""Columns of text, whole numbers and numbers by keras.utils.FeatureSpace, in the model or in the tf.data pipeline."""

import functools

import keras
import numpy as np
import tensorflow as tf
from keras.utils import FeatureSpace


def load_table(examples=288):
    rng = np.random.default_rng(0)
    thal = rng.choice(["normal", "fixed", "reversible"], examples)
    age, sex = rng.integers(29, 77, examples), rng.integers(0, 2, examples)
    oldpeak = rng.uniform(0, 4, examples).astype("float32")
    ill = (thal == "fixed") | (oldpeak > 3)
    return {"age": age, "sex": sex, "thal": thal, "oldpeak": oldpeak}, ill.astype("int32")


@functools.cache
def adapted():
    """Adapted once, for the loader and the builder."""
    space = FeatureSpace(
        features={
            "sex": FeatureSpace.integer_categorical(num_oov_indices=0),
            "thal": FeatureSpace.string_categorical(num_oov_indices=1),
            "age": FeatureSpace.float_discretized(num_bins=6),
            "oldpeak": FeatureSpace.float_normalized(),
        },
        crosses=[FeatureSpace.cross(("sex", "thal"), crossing_dim=16)],
        output_mode="concat",
    )
    space.adapt(tf.data.Dataset.from_tensor_slices(load_table()[0]))
    return space


def load_encoded():
    space, batches = adapted(), tf.data.Dataset.from_tensor_slices(load_table()).batch(32)
    encoded = batches.map(lambda x, y: (space(x), y), num_parallel_calls=tf.data.AUTOTUNE)
    return encoded.take(7), encoded.skip(7)


def build_model(encoded=False):
    columns = adapted().get_encoded_features()
    x = keras.layers.Dense(16, activation="relu")(columns)
    outputs = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Dropout(0.2)(x))
    return keras.Model(columns if encoded else adapted().get_inputs(), outputs)
