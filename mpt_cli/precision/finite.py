"""Are gradients finite, how large are they, and if they are not finite, what is wrong with them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

Tensor = Any


class Measured(NamedTuple):
    """What a scale rule learns of a step's gradients.

    `finite` is a boolean scalar; `largest` the largest magnitude among the scaled gradients, float32 scalar (nan or inf
    where they are not finite), or None for rules that don't ask for it (`ScaleRule.needs_largest`).
    """

    finite: Tensor
    largest: Tensor | None = None


def dense(gradient: Tensor) -> Tensor:
    """The values of a gradient; of a `tf.IndexedSlices` (embeddings) the rows that it holds."""
    return getattr(gradient, "values", gradient) if is_sparse(gradient) else gradient


def is_sparse(gradient: Tensor) -> bool:
    return keras.backend.backend() == "tensorflow" and type(gradient).__name__ == "IndexedSlices"


def is_overwritten(variable: Any) -> bool:
    """Whether the "gradient" of `variable` is its next value (float8 statistics, probes) and not to be divided."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def divide(gradient: Tensor, scale: Tensor) -> Tensor:
    """`gradient / scale`, computed in float32 at least; a sparse gradient stays sparse.

    A float16 gradient is widened first: 2**-24 divided by 2**15 would be 0 in float16.
    """
    values = dense(gradient)
    if keras.backend.standardize_dtype(values.dtype) in ("float16", "bfloat16"):
        values = ops.cast(values, "float32")
    values = ops.divide(values, ops.cast(scale, values.dtype))
    if not is_sparse(gradient):
        return values
    return type(gradient)(values, gradient.indices, gradient.dense_shape)


def unscale(gradients: list[Tensor], variables: list[Any], scale: Tensor) -> list[Tensor]:
    """`gradients / scale`; None stays None, and what overwrites its variable stays as it is."""
    return [
        g if g is None or is_overwritten(v) else divide(g, scale)
        for g, v in zip(gradients, variables, strict=True)
    ]


def all_finite(gradients: list[Tensor]) -> Tensor:
    """Boolean scalar: no inf or nan in any of `gradients`, which may hold None (no gradient) and IndexedSlices."""
    flags = [ops.all(ops.isfinite(dense(g))) for g in gradients if g is not None]
    return ops.all(ops.stack(flags))


def largest_magnitude(gradients: list[Tensor], variables: list[Any]) -> Tensor:
    """float32 scalar; nan or inf where a gradient holds one. Statistics that overwrite their variable don't count."""
    largest = [
        ops.cast(ops.max(ops.abs(dense(g)), initial=0), "float32")
        for g, v in zip(gradients, variables, strict=True)
        if g is not None and not is_overwritten(v)
    ]
    return ops.max(ops.stack(largest)) if largest else ops.zeros((), "float32")


def describe_non_finite(gradients: list[Tensor]) -> Tensor:
    """int32 vector `[nan elements, inf elements, index of the first gradient that holds one or -1, 0]`."""
    zero = ops.zeros((), dtype="int32")
    nan, inf, first = zero, zero, zero - 1
    for index, gradient in enumerate(gradients):
        if gradient is None:
            continue
        values = dense(gradient)
        nan_here = ops.sum(ops.cast(ops.isnan(values), "int32"))
        inf_here = ops.sum(ops.cast(ops.isinf(values), "int32"))
        first = ops.where(ops.logical_and(first < 0, nan_here + inf_here > 0), zero + index, first)
        nan, inf = nan + nan_here, inf + inf_here
    return ops.stack([nan, inf, first, zero])


def describe_finite(gradients: list[Tensor], variables: list[Any], cond: Callable[..., Any] = ops.cond) -> Tensor:
    """The same vector for gradients without nan and inf: `[0, 0, -1, 1 where every element of all of them is 0]`."""
    nothing = ops.convert_to_tensor([0, 0, -1, 0], dtype="int32")
    return nothing + ops.cast(all_zero(gradients, variables, cond), "int32") * ops.convert_to_tensor([0, 0, 0, 1])


def all_zero(gradients: list[Tensor], variables: list[Any], cond: Callable[..., Any] = ops.cond) -> Tensor:
    """Boolean scalar: no gradient has an element other than 0; statistics that overwrite their variable don't count.

    The smallest gradient is read first, and the others only where that one is all zero: most steps pay for a bias.
    """
    trained = [g for g, v in zip(gradients, variables, strict=True) if g is not None and not is_overwritten(v)]
    if not trained:
        return ops.convert_to_tensor(False)
    smallest = min(range(len(trained)), key=lambda index: _known_size(trained[index]))
    rest = [g for index, g in enumerate(trained) if index != smallest]
    return cond(_any_nonzero([trained[smallest]]), lambda: ops.convert_to_tensor(False),
                lambda: ops.logical_not(_any_nonzero(rest)))


def _any_nonzero(gradients: list[Tensor]) -> Tensor:
    flags = [ops.any(ops.not_equal(dense(g), 0)) for g in gradients]
    return ops.any(ops.stack(flags)) if flags else ops.convert_to_tensor(False)


def _known_size(gradient: Tensor) -> float:
    """Elements; infinite where their number is only known on the device, as that of a sparse gradient."""
    shape = dense(gradient).shape
    return float("inf") if any(length is None for length in shape) else math.prod(shape)
