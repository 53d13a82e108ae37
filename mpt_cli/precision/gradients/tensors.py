"""What every function of this package does with the tensor it is given: check it, widen it, look at its bits."""

from typing import Any

import keras

Tensor = Any  # of the backend in use; keras has no common type for them


def check_float_tensor(x: Any, function: str) -> Tensor:
    """`x` as a tensor of the backend; TypeError if it is symbolic or not floating."""
    if isinstance(x, keras.KerasTensor):
        raise TypeError(
            f"{function}: x must be a value, not a symbolic Keras tensor. Received: {x}. "
            "In a functional model call it from a layer's `call`, or use a layer of this package."
        )
    tensor = keras.ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" not in dtype:
        raise TypeError(f"{function}: x must be floating. Received: dtype={dtype}. Cast it first.")
    return tensor


def wide_dtype(x: Tensor) -> str:
    """The dtype to compute in for values of `x`: float64 for float64, else float32."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return "float64" if dtype == "float64" else "float32"


def reinterpret(x: Tensor, dtype: Any) -> Tensor:
    """The bits of `x` as another dtype of its size; `keras.ops.view` fails on a TensorFlow batch of unknown size."""
    if keras.backend.backend() == "jax":
        return x.view(dtype)
    import tensorflow as tf

    return tf.bitcast(x, dtype)
