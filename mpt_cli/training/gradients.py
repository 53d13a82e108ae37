"""Gradients of one batch at any loss scale, without a trace left in the model, and what two sets of them say."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from mpt_cli.precision import layers_of
from mpt_cli.precision.finite import dense, is_overwritten

Tensor = Any
SMALLEST_NORMAL = 2.0**-14  # of float16
MEASURES = ("nonzero", "flushed", "subnormal", "squares", "largest", "non_finite")


def pure_loss(model: Any, state: Sequence[list[Tensor]], batch: Any) -> Tensor:
    """float32 scalar: the loss of a training step on `batch`, as a pure function.

    `state` holds the values of the trainable, non-trainable and metric variables, in the order of the model's own
    lists. What the step would change (statistics, seeds, metrics) is computed and thrown away, on both backends.
    """
    variables = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
    mapping = [pair for group, values in zip(variables, state, strict=True) for pair in zip(group, values, strict=True)]
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    # as each backend's own step does it: only the former casts the inputs of a subclassed model
    forward = model if keras.backend.backend() == "tensorflow" else model.call
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True):
        y_pred = forward(x, training=True) if model._call_has_training_arg else forward(x)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=True)
    return ops.cast(loss, "float32")


def kept_gradients(gradients: list[Tensor], variables: list[Any]) -> list[Tensor]:
    """The values of those gradients that are some; statistics that overwrite their variable are none."""
    return [dense(g) for g, v in zip(gradients, variables, strict=True) if g is not None and not is_overwritten(v)]


def compare(model: Any, base: list[Tensor], raised: list[Tensor]) -> Tensor:
    """float32 vector of `MEASURES` for gradients of one batch at a loss scale (`base`) and at a higher one (`raised`).

    Elements that are not 0 at either scale; that are 0 in `base` only, which float16 flushed; subnormal ones in `base`
    of layers that compute in float16; sum of squares and largest magnitude of `base`; inf and nan in `raised`. A nan
    there says nothing of an element, since 0 times inf is nan; inf stands for a number.
    """
    narrow = {id(v) for layer in layers_of(model) if layer.compute_dtype == "float16" for v in layer.variables}
    trained = [v for v in model.trainable_variables if not is_overwritten(v)]
    is_narrow = [id(v) in narrow for v in trained] if len(trained) == len(base) else [True] * len(base)
    rows = [_measure(low, high, half) for low, high, half in zip(base, raised, is_narrow, strict=True)]
    table = ops.stack(rows)
    return ops.where(ops.arange(len(MEASURES)) == MEASURES.index("largest"), ops.max(table, 0), ops.sum(table, 0))


def _measure(base: Tensor, raised: Tensor, is_narrow: bool) -> Tensor:
    low, high = ops.abs(ops.cast(base, "float32")), ops.abs(ops.cast(raised, "float32"))
    known = ops.logical_and(ops.not_equal(high, 0), ops.logical_not(ops.isnan(high)))
    flushed = _count(ops.logical_and(ops.equal(low, 0), known))
    present = _count(ops.not_equal(low, 0))
    small = _count(ops.logical_and(ops.not_equal(low, 0), low < SMALLEST_NORMAL)) if is_narrow else 0.0 * present
    bad = _count(ops.logical_not(ops.isfinite(high)))
    return ops.stack([present + flushed, flushed, small, ops.sum(ops.square(low)), ops.max(low, initial=0.0), bad])


def _count(flags: Tensor) -> Tensor:
    return ops.cast(ops.sum(ops.cast(flags, "int32")), "float32")  # float32 additions of 1 would stop at 2**24
