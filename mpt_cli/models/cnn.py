"""`model.name: cnn`."""

import keras
from keras import layers

from mpt_cli.models.shapes import Shapes, count_outputs, image_input
from mpt_cli.settings.models import CNN


def build_cnn(settings: CNN, shapes: Shapes) -> keras.Model:
    """Blocks of two 3x3 convolutions and a 2x2 max pooling, then one hidden layer.

    Pooling stops when a side of the image is one pixel, so that any depth works on 8x8 digits.
    """
    inputs, x = image_input(shapes, "cnn")
    for number, filters in enumerate(settings.filters, start=1):
        x = _block(x, filters, f"block_{number}")
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(settings.hidden_units, activation="relu", name="hidden")(x)
    if settings.dropout:
        x = layers.Dropout(settings.dropout, name="dropout")(x)
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="cnn")


def _block(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
    for number in (1, 2):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"{name}_conv_{number}")(x)
    return layers.MaxPooling2D(2, name=f"{name}_pool")(x) if min(x.shape[1:3]) > 1 else x
