"""Float8 statistics that are measured on scaled gradients, and must move when the scale does.

Keras's float8 layers quantise the gradient of their output with a scale that they take from the largest magnitudes of
the last steps. Those magnitudes are S times the true ones (measured: 0.029, 29.7 and 951 at S = 1, 2**10 and 2**15).
Left alone after S changed, they saturate or flush gradients until the history has passed.
"""

from typing import Any

from keras import ops

from mpt_cli.precision.finite import is_overwritten

Tensor = Any
HISTORY, SCALE = "outputs_grad_amax_history", "outputs_grad_scale"  # as keras.layers.Dense names them
ALL = {f"{what}_{kind}" for what in ("inputs", "kernel", "outputs_grad") for kind in ("amax_history", "scale")}


def scaled_statistics(variables: list[Any]) -> list[int]:
    """Indices of those `variables` whose values are proportional to the loss scale."""
    return [
        index for index, v in enumerate(variables)
        if is_overwritten(v) and (v.name.endswith(HISTORY) or v.name.endswith(SCALE))
    ]


def largest_magnitudes(variables: list[Any]) -> list[int]:
    """Indices of those `variables` that are float8 statistics: over several replicas the largest value counts.

    Each replica sees its share of the batch. Keras assigns what each one saw to its own copy, so that the copies of
    one variable differ, and a model saved or evaluated elsewhere gets the first one's.
    """
    return [index for index, v in enumerate(variables) if is_overwritten(v) and v.name in ALL]


def follow_scale(variables: list[Any], values: list[Tensor], scale_before: Tensor, scale_after: Tensor) -> list[Tensor]:
    """`values` of `variables` with the float8 statistics among them brought from one loss scale to the next."""
    ratio = scale_after / scale_before
    followed = list(values)
    for index in scaled_statistics(variables):
        followed[index] = values[index] * ops.cast(ratio, values[index].dtype)
    return followed
