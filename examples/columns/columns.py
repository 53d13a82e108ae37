"""A table with columns of text and of numbers, looked up and scaled by layers of the model itself."""

import keras
import numpy as np
from keras import layers

COLOURS, SIZES = ["red", "green", "blue", "white"], ["small", "large"]


def load_table(examples=256):
    rng = np.random.default_rng(0)
    colour, size = rng.choice(COLOURS, examples), rng.choice(SIZES, examples)
    weight = rng.normal(50, 20, examples).astype("float32")
    sold = (colour == "red") | ((size == "large") & (weight > 50))
    return {"colour": colour[:, None], "size": size[:, None], "weight": weight[:, None]}, sold.astype("int32")


def build_model():
    table, _ = load_table()
    colour = keras.Input((1,), dtype="string", name="colour")
    size = keras.Input((1,), dtype="string", name="size")
    weight = keras.Input((1,), name="weight")
    colours = layers.StringLookup(output_mode="one_hot", name="colours")
    colours.adapt(table["colour"])
    sizes = layers.StringLookup(vocabulary=SIZES, output_mode="one_hot", name="sizes")
    scale = layers.Normalization(axis=None, dtype="float32")
    scale.adapt(table["weight"])
    x = layers.concatenate([colours(colour), sizes(size), scale(weight)])
    x = layers.Dense(16, activation="relu")(x)
    return keras.Model({"colour": colour, "size": size, "weight": weight}, layers.Dense(1, activation="sigmoid")(x))
