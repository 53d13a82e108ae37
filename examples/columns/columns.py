"""A table with columns of text and of numbers, which layers of the model look up and scale."""

import keras
import numpy as np
from keras import layers

COLORS, SIZES = ["red", "green", "blue", "white"], ["small", "large"]


def load_table(examples=256):
    rng = np.random.default_rng(0)
    color, size = rng.choice(COLORS, examples), rng.choice(SIZES, examples)
    weight = rng.normal(50, 20, examples).astype("float32")
    sold = (color == "red") | ((size == "large") & (weight > 50))
    return {"color": color[:, None], "size": size[:, None], "weight": weight[:, None]}, sold.astype("int32")


def build_model():
    table, _ = load_table()
    color = keras.Input((1,), dtype="string", name="color")
    size = keras.Input((1,), dtype="string", name="size")
    weight = keras.Input((1,), name="weight")
    colors = layers.StringLookup(output_mode="one_hot", name="colors")
    colors.adapt(table["color"])
    sizes = layers.StringLookup(vocabulary=SIZES, output_mode="one_hot", name="sizes")
    scale = layers.Normalization(axis=None, dtype="float32")
    scale.adapt(table["weight"])
    x = layers.concatenate([colors(color), sizes(size), scale(weight)])
    x = layers.Dense(16, activation="relu")(x)
    return keras.Model({"color": color, "size": size, "weight": weight}, layers.Dense(1, activation="sigmoid")(x))
