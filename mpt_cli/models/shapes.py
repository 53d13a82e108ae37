"""What the data asks of a model: the inputs that shipped networks start from, and whether a model of others fits."""

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from mpt_cli.data.examples import RAGGED
from mpt_cli.errors import ConfigError, Problem, UserCodeError, tracing_problem
from mpt_cli.precision.keras_fit import has_own_train_step
from mpt_cli.precision.own_step import can_be_called


@dataclass(frozen=True)
class Shapes:
    """Shape of one example without the batch (a dict or tuple of shapes for several inputs), outputs and dtype.

    `num_classes` is the number of classes, of tokens, or of regression outputs; None where the data doesn't say.
    """

    input_shape: Any
    num_classes: int | None
    input_dtype: str = "float32"
    task: str = "classification"
    input_dtypes: Any = None  # in the structure of input_shape; None: all are input_dtype
    targets_as_given: bool = False  # then what outputs must be is the loss's to say

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
    if not shape:
        raise unfit("a shipped model needs a dimension beside the examples, which x[:, None] gives", shapes)
    if math.prod(shape) == 0:
        raise unfit("an input needs at least one element", shapes)
    return tuple(shape)


def unfit(rule: str, shapes: Shapes) -> ConfigError:
    """The error for data that the chosen model can't take."""
    return ConfigError(Problem("model.name", rule, shapes.input_shape,
                               f"The data gives {shapes}. Choose another model or other data."))


def check_fit(model: keras.Model, shapes: Shapes, key: str) -> keras.Model:
    """The model, built if it was not; ConfigError on `key` where inputs or outputs don't fit.

    UserCodeError for what a `call` of the user's raises itself: Keras says ValueError where shapes don't fit. A model
    that has a train_step of its own is taken as it is where it has no `call`, or one that is for other inputs, as of a
    GAN whose call generates.
    """
    own_step = has_own_train_step(model)
    if own_step and not can_be_called(model):
        model.built = True
        return model
    try:
        outputs = _call_symbolically(model, shapes)
    except ValueError as error:
        if own_step:
            model.built = True
            return model
        raise ConfigError(Problem(
            key, "the model must take the data's examples.", shapes.input_shape,
            f"The data gives {shapes}. Keras says: {plain_message(error)}")) from error
    except Exception as error:
        if (problem := tracing_problem(key, error)) is not None:
            raise ConfigError(problem) from error
        message = f"{key}: calling the model raised {type(error).__name__}: {plain_message(error)}"
        raise UserCodeError(message) from error
    if shapes.num_classes is not None and not own_step and not shapes.targets_as_given:
        _check_outputs(outputs, shapes, key)
    return model


def _call_symbolically(model: keras.Model, shapes: Shapes) -> Any:
    """Outputs of the model without computing anything; no state of it changes."""
    with warnings.catch_warnings():
        # before an error in the user's `call` Keras warns at length that it can't trace it; the error says it better
        warnings.filterwarnings("ignore", message=".*unbuilt state", category=UserWarning)
        return model(symbolic_inputs(shapes.input_shape, shapes.input_dtypes or shapes.input_dtype))


def symbolic_inputs(shape: Any, dtype: Any) -> Any:
    """Symbolic inputs in the structure of the data, each of its dtype where `dtype` has that structure."""
    if isinstance(shape, Mapping):
        return {name: symbolic_inputs(part, _part_of(dtype, name)) for name, part in shape.items()}
    if any(isinstance(part, (tuple, list, Mapping)) for part in shape):
        return [symbolic_inputs(part, _part_of(dtype, place)) for place, part in enumerate(shape)]
    return symbol((None, *shape), "float32" if "+" in dtype else dtype)


def symbol(shape: tuple[int | None, ...], dtype: str) -> keras.KerasTensor:
    """A symbolic input; "ragged int32" is one with rows of different lengths, where the backend has them."""
    plain = dtype.removeprefix(RAGGED)
    if plain == dtype or keras.backend.backend() != "tensorflow":
        return keras.KerasTensor(shape, dtype=plain)
    return keras.KerasTensor(shape, dtype=plain, ragged=True, ragged_rank=1)


def _part_of(dtype: Any, name: Any) -> Any:
    return dtype if isinstance(dtype, str) else dtype[name]


def _check_outputs(outputs: Any, shapes: Shapes, key: str) -> None:
    if not isinstance(outputs, keras.KerasTensor):
        raise ConfigError(Problem(key, "the model must have one output.", type(outputs).__name__))
    count = outputs.shape[-1] if len(outputs.shape) > 1 else 1
    binary = shapes.task == "classification" and shapes.num_classes == 2
    if count != shapes.num_classes and not (binary and count == 1):
        raise ConfigError(Problem(
            key, f"the model has {count} outputs, the data {shapes.num_classes} {_unit(shapes)}; they must agree.",
            remedy="Give the last layer that many units, or set data.num_classes where the data can't tell."))


def _unit(shapes: Shapes) -> str:
    return "targets" if shapes.task == "regression" else "classes"


def plain_message(error: Exception) -> str:
    """What an exception says, without Keras's colours, its frame around the message and its list of arguments."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    text = re.sub(r"^Exception encountered when calling .*\n+", "", text).split("\n\nArguments received by")[0]
    text = text.rsplit("Error encountered:\n\n", 1)[-1]
    return " ".join(text.split()) or type(error).__name__
