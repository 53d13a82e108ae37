"""`model.name: builder`: a function of the user's, or of keras.applications, that returns a Keras model."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.models.fit import check_fit
from mpt_cli.models.shapes import Shapes
from mpt_cli.settings.models import Builder
from mpt_cli.settings.references import call_user, load_function

KEY = "model.builder"


def build_user_model(settings: Builder, shapes: Shapes) -> keras.Model:
    """Whatever the function returns, built on the data's shape and held against it."""
    function = load_function(settings.builder, KEY)
    model = call_user(function, KEY, **builder_arguments(function, settings.kwargs, shapes))
    if not isinstance(model, keras.Model):
        raise ConfigError(Problem(KEY, f"{settings.builder} must return a keras.Model.", type(model).__name__))
    return check_fit(model, shapes, KEY)


def builder_arguments(function: Callable[..., Any], kwargs: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    """`model.kwargs`, and those of input_shape, num_classes and classes (keras.applications) the signature takes.

    A function with `**kwargs` takes the first two. What the user gives in `model.kwargs` wins.
    """
    offered = {"input_shape": shapes.input_shape, "num_classes": shapes.num_classes, "classes": shapes.num_classes}
    parameters = inspect.signature(function).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    taken = set(parameters) | ({"input_shape", "num_classes"} if open_ended else set())
    return {**{name: value for name, value in offered.items() if name in taken}, **kwargs}
