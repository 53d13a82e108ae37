"""Brings whatever a source returned to the few dtypes that are trained on."""

from typing import Any

import numpy as np

from mpt_cli.data.examples import Array, Arrays, Examples, leaves, map_arrays
from mpt_cli.errors import DataError

_INT32 = np.iinfo(np.int32)
_PIXEL_MAX = 255


def to_numbers(examples: Examples, where: str) -> Examples:
    """Inputs as float32 or int32, targets as float32 or int64, weights as float32.

    uint8 inputs are pixels: they are divided by 255. Other integers are tokens. bool becomes 0 and 1. A float64 that
    float32 can't hold becomes inf, which `check_examples` reports. DataError for text, objects, complex numbers.
    """
    x = map_arrays(lambda a: _as_array(a, f"{where}: x"), examples.x)
    y = map_arrays(lambda a: _as_array(a, f"{where}: y"), examples.y)
    weight = examples.sample_weight
    return Examples(
        _each(_input, x, f"{where}: x"),
        _each(_target, y, f"{where}: y"),
        None if weight is None else _target(_as_array(weight, f"{where}: sample_weight"), where).astype(np.float32),
    )


def divisors(x: Arrays) -> dict[str, Any]:
    """What `to_numbers` divides raw inputs by, as DataSet.preprocessing says it; empty where no input is uint8."""
    pixels = {name: _PIXEL_MAX for name, array in leaves(x, "x") if np.asarray(array).dtype == np.uint8}
    return {"divided_by": pixels} if pixels else {}


def _each(function: Any, arrays: Arrays, name: str) -> Arrays:
    names = iter([name for name, _ in leaves(arrays, name)])
    return map_arrays(lambda a: function(a, next(names)), arrays)


def _as_array(value: Any, name: str) -> Array:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} is not an array of numbers: {error}") from error
    if array.dtype.name == "bfloat16" or array.dtype.name.startswith("float8"):
        return array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold numbers. Received: dtype {array.dtype}.")
    return array


def _input(array: Array, name: str) -> Array:
    if array.dtype == np.uint8:
        return np.divide(array, np.float32(_PIXEL_MAX), dtype=np.float32)
    if array.dtype.kind in "fb":
        return _to_float32(array)
    if array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
        raise DataError(f"{name} has integers beyond 32 bits; the largest is {array.max()}. "
                        "Tokens are small integers; make measurements floats.")
    return array.astype(np.int32, copy=False)


def _target(array: Array, name: str) -> Array:
    return _to_float32(array) if array.dtype.kind == "f" else array.astype(np.int64)


def _to_float32(array: Array) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)
