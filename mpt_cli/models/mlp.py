"""`model.name: mlp`."""

import keras
from keras import layers

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.models.shapes import Shapes, count_outputs, float_input
from mpt_cli.settings.models import MLP
from mpt_cli.settings.suggest import did_you_mean


def build_mlp(settings: MLP, shapes: Shapes) -> keras.Model:
    """Fully connected layers on flattened input."""
    _check_activation(settings.activation)
    inputs, x = float_input(shapes)
    x = layers.Flatten(name="flatten")(x)
    for number, units in enumerate(settings.hidden_units, start=1):
        x = _hidden(x, units, number, settings)
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="mlp")


def _hidden(x: keras.KerasTensor, units: int, number: int, settings: MLP) -> keras.KerasTensor:
    x = layers.Dense(units, use_bias=not settings.batch_norm, name=f"hidden_{number}")(x)
    if settings.batch_norm:
        x = layers.BatchNormalization(momentum=0.9, name=f"batch_norm_{number}")(x)
    x = layers.Activation(settings.activation, name=f"activation_{number}")(x)
    return layers.Dropout(settings.dropout, name=f"dropout_{number}")(x) if settings.dropout else x


def _check_activation(name: str) -> None:
    names = [known for known in vars(keras.activations) if not known.startswith("_") and "serialize" not in known]
    try:
        keras.activations.get(name)
    except ValueError as error:
        raise ConfigError(Problem("model.activation", "Keras has no activation of this name.", name,
                                  did_you_mean(name, names) or f"There are {', '.join(names)}.")) from error
