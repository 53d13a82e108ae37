"""The state of a run as arrays by name, and back: model, optimizer with its loss scale, metrics."""

from typing import Any

import numpy as np

from mpt_cli.errors import DataError
from mpt_cli.training.checkpoint import Arrays

SCALE = "scale/"


def collect_state(model: Any) -> Arrays:
    """Copies of every variable a step reads: weights, statistics, seed generators, optimizer, scale, metrics."""
    return {name: np.asarray(variable.numpy()) for name, variable in _variables(model).items()}


def collect_weights(model: Any) -> Arrays:
    """Copies of what a model computes with: weights, statistics, seed generators."""
    return {name: np.asarray(variable.numpy()) for name, variable in _model_variables(model).items()}


def restore_weights(model: Any, arrays: Arrays) -> None:
    """Put what `collect_weights` gave into the same model, perhaps read from a file; DataError for another model."""
    _assign(_model_variables(model), arrays)


def restore_state(model: Any, arrays: Arrays, other_scaling: bool = False) -> None:
    """Put `arrays` into the model's variables.

    With `other_scaling` the loss scale and its counters keep their fresh values, because the mode is another one now.
    DataError when the arrays are those of another model or optimizer; nothing is changed then.
    """
    variables = _variables(model)
    if other_scaling:
        variables = {name: variable for name, variable in variables.items() if not name.startswith(SCALE)}
        arrays = {name: array for name, array in arrays.items() if not name.startswith(SCALE)}
    _assign(variables, arrays)


def _assign(variables: dict[str, Any], arrays: Arrays) -> None:
    for name in sorted(set(variables) ^ set(arrays)):
        where = "this run" if name in variables else "the checkpoint"
        raise DataError(f"the checkpoint is of another model or optimizer: only {where} has variable {name!r}.")
    for name, variable in variables.items():
        if tuple(variable.shape) != arrays[name].shape or _dtype(variable) != str(arrays[name].dtype):
            raise DataError(
                f"the checkpoint is of another model or policy: variable {name!r} is {_dtype(variable)} "
                f"{tuple(variable.shape)} here and {arrays[name].dtype} {arrays[name].shape} there."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _dtype(variable: Any) -> str:
    return str(variable.numpy().dtype)


def _variables(model: Any) -> dict[str, Any]:
    optimizer = model.optimizer
    named = _numbered("optimizer", optimizer.inner_optimizer.variables) | _numbered("metric", model.metrics_variables)
    named |= {f"{SCALE}{name}": variable for name, variable in optimizer.scale_state.by_name.items()}
    return _model_variables(model) | named


def _model_variables(model: Any) -> dict[str, Any]:
    return _numbered("weight", model.trainable_variables) | _numbered("frozen", model.non_trainable_variables)


def _numbered(kind: str, variables: Any) -> dict[str, Any]:
    """By number within their kind: names and paths of Keras variables are not unique and change between processes."""
    return {f"{kind}/{i}": variable for i, variable in enumerate(variables)}
