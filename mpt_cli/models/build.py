"""From the settings of a model to a built `keras.Model` that fits the data."""

from collections.abc import Callable
from typing import Any

import keras

from mpt_cli.models.builder import build_user_model
from mpt_cli.models.cnn import build_cnn
from mpt_cli.models.mlp import build_mlp
from mpt_cli.models.resnet import build_resnet
from mpt_cli.models.saved import load_saved_model
from mpt_cli.models.shapes import Shapes
from mpt_cli.models.transformer import build_transformer
from mpt_cli.settings.models import ModelSettings

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
) -> keras.Model:
    """A built, uncompiled model under the dtype policy in force; shipped ones end in a linear Dense layer "head".

    `input_shape` has no batch dimension and may be a dict or tuple of shapes; `num_classes` is the number of outputs
    in regression. ConfigError where model and data don't fit, DataError for a .keras file that can't be read.
    """
    return BUILDERS[settings.name](settings, Shapes(input_shape, num_classes, input_dtype, task))
