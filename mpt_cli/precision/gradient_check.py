"""Check whether gradients are finite, how large they are, and if they are not finite, what is wrong with them."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

NARROW = ("float16", "bfloat16")
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
Tensor = Any  # of the backend in use; keras has no common type for them
Cond = Callable[[Tensor, Callable[[], Any], Callable[[], Any]], Any]


class GradientMeasurement(NamedTuple):
    """The result of one pass over a step's gradients.

    `finite` is a boolean scalar: none of them has inf or nan. `largest` is the largest magnitude among the scaled ones,
    a float32 scalar: inf if one has inf or nan, and 0 if no rule needs it. Statistics that overwrite their variable are
    left out of it.
    """

    finite: Tensor
    largest: Tensor


SPARSE = {"tensorflow": ("IndexedSlices", "values"), "jax": ("BCOO", "data")}  # the class, and what holds its rows


def on_jax() -> bool:
    return bool(keras.backend.backend() == "jax")


def on_tensorflow() -> bool:
    return bool(keras.backend.backend() == "tensorflow")


def dense(gradient: Tensor) -> Tensor:
    """Return the values of a gradient; for a `tf.IndexedSlices` (embeddings) or a JAX `BCOO`, the rows that it has."""
    return getattr(gradient, SPARSE[keras.backend.backend()][1]) if is_sparse(gradient) else gradient


def is_sparse(gradient: Tensor) -> bool:
    return type(gradient).__name__ == SPARSE[keras.backend.backend()][0]


def reinterpret(x: Tensor, dtype: Any) -> Tensor:
    """Return the bits of `x` as another dtype of its size; `keras.ops.view` fails on a TensorFlow batch of unknown
    size."""
    if on_jax():
        return x.view(dtype)
    import tensorflow as tf

    return tf.bitcast(x, dtype)


def is_overwritten(variable: Any) -> bool:
    """Return whether the "gradient" of `variable` is its next value (float8 statistics, probes) and not to be
    divided."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def divide(gradient: Tensor, scale: Tensor | None) -> Tensor:
    """Return `gradient / scale`, computed at least in float32; a sparse gradient stays sparse. None means a scale of 1.

    A float16 gradient is widened first: 2**-24 divided by 2**15 would be 0 in float16.
    """
    values = dense(gradient)
    if keras.backend.standardize_dtype(values.dtype) in NARROW:
        values = ops.cast(values, "float32")
    if scale is not None:
        values = ops.divide(values, ops.cast(scale, values.dtype))
    if not is_sparse(gradient):
        return values
    if on_tensorflow():
        return type(gradient)(values, gradient.indices, gradient.dense_shape)
    return type(gradient)((values, gradient.indices), shape=gradient.shape)


def unscale(gradients: list[Tensor], variables: list[Any], scale: Tensor | None) -> list[Tensor]:
    """Divide each gradient; None stays None, and what overwrites its variable is not divided."""
    return [
        g if g is None or is_overwritten(v) else divide(g, scale) for g, v in zip(gradients, variables, strict=True)
    ]


def magnitude(gradient: Tensor) -> Tensor:
    """Return the largest magnitude in a gradient as a float32 scalar: inf if it has inf or nan, 0 if it is empty."""
    size = ops.abs(dense(gradient))
    largest = ops.minimum(ops.cast(ops.max(size, initial=0), "float32"), FLOAT32_MAX)  # of a larger float64
    return ops.where(ops.all(ops.isfinite(size)), largest, float("inf"))  # XLA's maximum loses nan


def all_finite(gradients: list[Tensor]) -> Tensor:
    """Return whether there is no inf or nan in any of `gradients`, which may hold None (no gradient) and
    IndexedSlices."""
    flags = [_is_finite(dense(g)) for g in gradients if g is not None]
    return ops.all(ops.stack(flags)) if flags else ops.convert_to_tensor(True)


def _is_finite(values: Tensor) -> Tensor:
    """Return a boolean scalar. On a CPU a matrix is reduced in two steps, since XLA reads a whole array element by
    element: by columns on JAX, and on TensorFlow by rows, which without XLA take a sixth of the time of columns.

    The second reduction differs from the first, since XLA makes one of two that are alike. A GPU takes both at once.
    """
    flags = ops.isfinite(values)
    if len(values.shape) == 2 and _on_cpu():
        flags = ops.all(flags, axis=0 if on_jax() else 1)
    return ops.logical_not(ops.any(ops.logical_not(flags)))


def are_finite(variables: Iterable[Any]) -> bool:
    """Return whether no variable holds inf or nan, for the host.

    On a CPU NumPy reads them: to compile that takes a second for the 157 of a MobileNet on JAX. A GPU keeps them.
    """
    values = [variable.value for variable in variables]
    if _on_cpu():
        return all(bool(np.isfinite(on_host(each)).all()) for each in values)
    return bool(all_finite(values))


def on_host(value: Tensor) -> NDArray[Any]:
    """Return the array of a tensor, or of a TensorFlow variable, of which `np.asarray` takes twice as long."""
    array: NDArray[Any] = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    return array


def _on_cpu() -> bool:
    if on_jax():
        import jax

        return jax.default_backend() == "cpu"
    import tensorflow as tf

    return not tf.config.list_logical_devices("GPU")


def measure(gradients: list[Tensor], variables: list[Any], with_largest: bool = True) -> GradientMeasurement:
    """Measure `gradients` of `variables`; they may hold None (no gradient) and IndexedSlices."""
    finite, zero = all_finite(gradients), ops.zeros((), "float32")
    if not with_largest:
        return GradientMeasurement(finite, zero)
    pairs = zip(gradients, variables, strict=True)
    sizes = [magnitude(g) for g, v in pairs if g is not None and not is_overwritten(v)]
    return GradientMeasurement(finite, ops.max(ops.stack([zero, *sizes])))


class GradientDefects(NamedTuple):
    """The defects of a step's gradients, as int32 scalars on the device.

    The number of elements that are `nan` and `inf`; the index of the `nearest` gradient with one, or -1; whether that
    gradient or another of its layer `holds_inf` (0 or 1), rather than nan alone; and whether every element of all is
    `zero` (0 or 1). Nearest means to the fault: inf and nan spread backwards, so it is the last in the order of the
    forward pass.
    """

    nan: Tensor
    inf: Tensor
    nearest: Tensor
    holds_inf: Tensor
    zero: Tensor


def describe_gradients(
    gradients: list[Tensor], measured: GradientMeasurement, cond: Cond = ops.cond, ranks: Sequence[int] | None = None
) -> GradientDefects:
    """Return the defects of the gradients. Elements are counted only if some are not finite, or the smallest gradient
    is zero.

    `ranks` are the places of the variables in the order of the forward pass, by default their given order.
    """
    present = {index: g for index, g in enumerate(gradients) if g is not None and 0 not in dense(g).shape}
    if not present:
        return GradientDefects(*_none_bad(zero=1))
    smallest = min(
        reversed([dense(g) for g in present.values()]),
        key=lambda g: math.inf if None in g.shape else math.prod(g.shape),
    )
    order = list(range(len(gradients))) if ranks is None else list(ranks)
    return GradientDefects(
        *cond(
            ops.logical_and(measured.finite, ops.any(smallest)),
            lambda: _none_bad(zero=0),
            lambda: [*_describe_non_finite(present, order), _are_zero(present.values())],
        )
    )


def _none_bad(zero: int) -> list[Tensor]:
    return [ops.convert_to_tensor(number, dtype="int32") for number in (0, 0, -1, 0, zero)]


def _are_zero(gradients: Iterable[Tensor]) -> Tensor:
    return ops.cast(ops.logical_not(ops.any(ops.stack([ops.any(dense(g)) for g in gradients]))), "int32")


def _describe_non_finite(present: dict[int, Tensor], ranks: Sequence[int]) -> list[Tensor]:
    """Return the first four of `GradientDefects`; of a sparse gradient the elements are those of its rows."""
    # backwards through the forward pass; of one layer's variables the first is named
    indices = sorted(present, key=lambda index: (-ranks[index], index))
    arrays = [dense(present[i]) for i in indices]
    nan, inf = (
        ops.stack([ops.sum(ops.cast(kind(values), "int32")) for values in arrays]) for kind in (ops.isnan, ops.isinf)
    )
    # one maximum: in a chain of `where(bad, index, last)` XLA's simplifier follows both uses of `last`, and the time to
    # compile doubles with each gradient
    is_bad = nan + inf > 0
    first_bad = ops.argmax(ops.cast(is_bad, "int32"))  # the first that is
    layers = ops.convert_to_tensor([ranks[index] for index in indices], dtype="int32")
    in_layer = ops.logical_and(inf > 0, layers == ops.take(layers, first_bad))
    nearest = ops.where(ops.any(is_bad), ops.take(ops.convert_to_tensor(indices, dtype="int32"), first_bad), -1)
    # cast, as sums of int32 are int64 where JAX computes in float64
    return [ops.cast(each, "int32") for each in (ops.sum(nan), ops.sum(inf), nearest, ops.any(in_layer))]
