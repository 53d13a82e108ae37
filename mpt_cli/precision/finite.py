"""Are gradients finite, and if not, what is wrong with them."""

from typing import Any

import keras
from keras import ops

Tensor = Any


def dense(gradient: Tensor) -> Tensor:
    """The values of a gradient; of a `tf.IndexedSlices` (embeddings) the rows that it holds."""
    return getattr(gradient, "values", gradient) if is_sparse(gradient) else gradient


def is_sparse(gradient: Tensor) -> bool:
    return keras.backend.backend() == "tensorflow" and type(gradient).__name__ == "IndexedSlices"


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


def all_finite(gradients: list[Tensor]) -> Tensor:
    """Boolean scalar: no inf or nan in any of `gradients`, which may hold None (no gradient) and IndexedSlices."""
    flags = [ops.all(ops.isfinite(dense(g))) for g in gradients if g is not None]
    return ops.all(ops.stack(flags))


def describe_non_finite(gradients: list[Tensor]) -> Tensor:
    """int32 vector `[nan elements, inf elements, index of the first gradient that holds one or -1]`."""
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
    return ops.stack([nan, inf, first])
