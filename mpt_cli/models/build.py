"""From the settings of a model to a built `keras.Model` that fits the data.

Shipped networks, a function of the user's or of keras.applications (`model.name: builder`), and a .keras file whose
weights are trained further (`model.name: saved`).
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.models.keras_file import damage_of
from mpt_cli.models.networks import build_cnn, build_mlp, build_resnet, build_transformer
from mpt_cli.models.shapes import Shapes, check_fit, plain_message
from mpt_cli.settings.references import call_user, load_function
from mpt_cli.settings.variants import Builder, ModelSettings, Saved

BUILDER_KEY = "model.builder"


def build_user_model(settings: Builder, shapes: Shapes) -> keras.Model:
    """Whatever the function returns, built on the data's shape and held against it."""
    function = load_function(settings.builder, BUILDER_KEY)
    model = call_user(function, BUILDER_KEY, **builder_arguments(function, settings.kwargs, shapes))
    if not isinstance(model, keras.Model):
        raise ConfigError(Problem(BUILDER_KEY, f"{settings.builder} must return a keras.Model.", type(model).__name__))
    return check_fit(model, shapes, BUILDER_KEY)


def build_installed_model(settings: Any, shapes: Shapes) -> keras.Model:
    """What the method `build` of another package's model returns, called as a function of the user's is."""
    model = call_user(settings.build, "model.name", **builder_arguments(settings.build, {}, shapes))
    if not isinstance(model, keras.Model):
        rule = f"the method build of {settings.name} must return a keras.Model."
        raise ConfigError(Problem("model.name", rule, type(model).__name__))
    return check_fit(model, shapes, "model.name")


def builder_arguments(function: Callable[..., Any], kwargs: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    """`model.kwargs`, and those of input_shape, num_classes and classes (keras.applications) the signature takes.

    A function with `**kwargs` takes the first two. What the user gives in `model.kwargs` wins.
    """
    offered = {"input_shape": shapes.input_shape, "num_classes": shapes.num_classes, "classes": shapes.num_classes}
    parameters = inspect.signature(function).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    taken = set(parameters) | ({"input_shape", "num_classes"} if open_ended else set())
    return {**{name: value for name, value in offered.items() if name in taken}, **kwargs}


def load_saved_model(settings: Saved, shapes: Shapes) -> keras.Model:
    """The model as it was saved: its layers keep the dtype policies in the file, whatever `policy.name` says."""
    path = Path(settings.path)
    if not path.is_file():
        raise DataError(f"model.path: there is no such file. Received: {settings.path!r}.")
    damage = damage_of(path) if path.suffix == ".keras" else None  # of which Keras says that it is not found
    if damage is not None:
        raise DataError(f"model.path: {settings.path!r} is damaged: {damage}.")
    try:
        model = keras.models.load_model(settings.path, compile=False)
    except Exception as error:  # zip, JSON, HDF5 and missing user classes all raise their own
        message = f"model.path: {settings.path!r} can't be read as a Keras model: {plain_message(error)}"
        raise DataError(message) from error
    return check_fit(model, shapes, "model.path")


BUILDERS: dict[str, Callable[[Any, Shapes], keras.Model]] = {
    "mlp": build_mlp,
    "cnn": build_cnn,
    "resnet": build_resnet,
    "transformer": build_transformer,
    "builder": build_user_model,
    "saved": load_saved_model,
}


def build_model(
    settings: ModelSettings,
    input_shape: Any,
    num_classes: int | None,
    input_dtype: str = "float32",
    task: str = "classification",
    input_dtypes: Any = None,
    targets_as_given: bool = False,
) -> keras.Model:
    """A built, uncompiled model under the dtype policy in force; shipped ones end in a linear Dense layer "head".

    `input_shape` has no batch dimension and may be a dict or tuple of shapes; `num_classes` is the number of outputs
    in regression; with `targets_as_given` a builder may leave it. ConfigError where model and data don't fit,
    DataError for a .keras file that can't be read.
    """
    build = BUILDERS.get(settings.name, build_installed_model)
    return build(settings, Shapes(input_shape, num_classes, input_dtype, task, input_dtypes, targets_as_given))
