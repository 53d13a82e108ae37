"""What the data asks of a model, and the input tensors the shipped networks start from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from mpt_cli.errors import ConfigError, Problem


@dataclass(frozen=True)
class Shapes:
    """Shape of one example without the batch (a dict or tuple of shapes for several inputs), outputs and dtype.

    `num_classes` is the number of classes, of tokens, or of regression outputs; None where the data doesn't say.
    """

    input_shape: Any
    num_classes: int | None
    input_dtype: str = "float32"
    task: str = "classification"

    def __str__(self) -> str:
        return f"inputs of shape {self.input_shape} and dtype {self.input_dtype}, {self.num_classes} outputs"


def float_input(shapes: Shapes) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """The input and a floating-point view of it: uint8 is an image and goes to 0…1, other integers keep their value."""
    array = keras.Input(single_shape(shapes), dtype=shapes.input_dtype, name="input")
    if "float" in shapes.input_dtype:
        return array, array
    scale = 1 / 255 if shapes.input_dtype == "uint8" else 1.0
    return array, layers.Rescaling(scale, name="to_float")(array)


def image_input(shapes: Shapes, model: str) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """As `float_input`, for (height, width) or (height, width, channels); the image always has channels."""
    array, image = float_input(shapes)
    if len(array.shape) == 3:
        image = layers.Reshape((*array.shape[1:], 1), name="add_channel")(image)
    if len(image.shape) != 4:
        raise unfit(f"model {model} needs images: (height, width) or (height, width, channels)", shapes)
    return array, image


def token_input(shapes: Shapes) -> keras.KerasTensor:
    """The input (sequence_length,) of whole numbers, each below the number of tokens."""
    shape = single_shape(shapes)
    if len(shape) != 1 or "int" not in shapes.input_dtype:
        raise unfit("model transformer needs sequences of whole numbers: (sequence_length,) of int32", shapes)
    return keras.Input(shape, dtype=shapes.input_dtype, name="input")


def count_outputs(shapes: Shapes) -> int:
    """Units of the head."""
    if shapes.num_classes is None:
        raise ConfigError(Problem(
            "data.num_classes", "must be known, to size the head of a shipped model", None,
            "Set it, or build the model yourself with model=builder."))
    return shapes.num_classes


def single_shape(shapes: Shapes) -> tuple[int, ...]:
    """The shape, where the data has one input of fixed size."""
    shape = shapes.input_shape
    if isinstance(shape, Mapping) or not all(isinstance(size, int) for size in shape):
        raise unfit("a shipped model needs one input of fixed shape", shapes)
    if math.prod(shape) == 0:
        raise unfit("an input needs at least one element", shapes)
    return tuple(shape)


def unfit(rule: str, shapes: Shapes) -> ConfigError:
    """The error for data that the chosen model can't take."""
    return ConfigError(Problem("model.name", rule, shapes.input_shape,
                               f"The data gives {shapes}. Choose another model or other data."))
