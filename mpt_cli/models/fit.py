"""Whether a model that we did not build takes the data's examples and gives the outputs they need."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from mpt_cli.errors import ConfigError, Problem, UserCodeError
from mpt_cli.models.shapes import Shapes


def check_fit(model: keras.Model, shapes: Shapes, key: str) -> keras.Model:
    """The model, built if it was not; ConfigError on `key` where inputs or outputs don't fit.

    UserCodeError for what a `call` of the user's raises itself: Keras says ValueError where shapes don't fit.
    """
    try:
        outputs = _call_symbolically(model, shapes)
    except ValueError as error:
        raise ConfigError(Problem(
            key, "the model must take the data's examples.", shapes.input_shape,
            f"The data gives {shapes}. Keras says: {plain_message(error)}")) from error
    except Exception as error:
        message = f"{key}: calling the model raised {type(error).__name__}: {plain_message(error)}"
        raise UserCodeError(message) from error
    if shapes.num_classes is not None:
        _check_outputs(outputs, shapes, key)
    return model


def _call_symbolically(model: keras.Model, shapes: Shapes) -> Any:
    """Outputs of the model without computing anything; no state of it changes."""
    with warnings.catch_warnings():
        # before an error in the user's `call` Keras warns at length that it can't trace it; the error says it better
        warnings.filterwarnings("ignore", message=".*unbuilt state", category=UserWarning)
        return model(_symbolic(shapes.input_shape, shapes.input_dtype))


def _symbolic(shape: Any, dtype: str) -> Any:
    """Symbolic inputs in the structure of the data; of mixed dtypes ("float32+int32") float32 stands for all."""
    if isinstance(shape, Mapping):
        return {name: _symbolic(part, dtype) for name, part in shape.items()}
    if any(isinstance(part, (tuple, list)) for part in shape):
        return [_symbolic(part, dtype) for part in shape]
    return keras.KerasTensor((None, *shape), dtype="float32" if "+" in dtype else dtype)


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
