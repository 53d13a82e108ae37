"""How a function and its gradient are put together, the same on TensorFlow and JAX, to any order, and a function that
needs it: a scaled gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

Tensor = Any  # of the backend in use; keras has no common type for them


def check_float_tensor(x: Any, function: str) -> Tensor:
    """`x` as a tensor of the backend; TypeError if it is symbolic or not floating."""
    if isinstance(x, keras.KerasTensor):
        raise TypeError(
            f"{function}: x must be a value, not a symbolic Keras tensor. Received: {x}. "
            "In a functional model call it from a layer's `call`."
        )
    tensor = keras.ops.convert_to_tensor(x)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" not in dtype:
        raise TypeError(f"{function}: x must be floating. Received: dtype={dtype}. Cast it first.")
    return tensor


def map_floats(function: Callable[[Tensor], Tensor], structure: Any) -> Any:
    """`structure` with `function` of each of its float tensors."""
    return keras.tree.map_structure(lambda x: function(x) if is_float_tensor(x) else x, structure)


def is_float_tensor(x: Any) -> bool:
    """Whether it is a dense tensor with values of floats, traced or not; not a symbolic one of Keras."""
    if isinstance(x, keras.KerasTensor) or not ops.is_tensor(x) or hasattr(x, "indices"):
        return False
    return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)))


def wide_dtype(x: Tensor) -> str:
    """The dtype to compute in for values of `x`: float64 for float64, else float32."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return "float64" if dtype == "float64" else "float32"


def define_gradient(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors with the value `forward(*x)` and the gradients `backward(upstream, *x)`, one per x.

    `upstream` has the structure of the value: a tensor or a tuple of them. Of a function of one tensor the gradient may
    stand alone, of several ones they are a tuple; None is a gradient of zero. `backward` may itself call functions made
    here: that is what gives them higher orders. Everything that is traced, and every variable that is to get a
    gradient, must be an argument, nothing captured.

    On JAX this is `custom_vjp`, not `keras.ops.custom_gradient`: there the second order would differentiate the
    operations inside `forward` and not the gradient given for it (Keras 3.15: a straight-through rounding gets a
    second-order gradient of 0).

    Raises ValueError, when the function is differentiated, where `backward` returns another number of gradients than
    there are tensors.

    Example:
        >>> cube = define_gradient(lambda x: x**3, lambda upstream, x: (3 * x**2 * upstream,))
        >>> float(cube(keras.ops.array(2.0)))
        8.0
    """

    def slopes(x: Sequence[Tensor], upstream: Any) -> tuple[Tensor, ...]:
        grads = backward(upstream, *x)
        several = tuple(grads) if isinstance(grads, (tuple, list)) else (grads,)
        if len(several) != len(x):
            raise ValueError(f"define_gradient: `backward` must return a gradient for each of the {len(x)} tensors. "
                             f"Received: {len(several)}.")
        return several

    def on_tensorflow(*x: Tensor) -> tuple[Any, Callable[..., Any]]:
        return forward(*x), lambda *upstream: slopes(x, upstream[0] if len(upstream) == 1 else upstream)

    def defined(*arguments: Any) -> Any:
        x = [ops.copy(each) if isinstance(each, keras.Variable) else each for each in arguments]
        if keras.backend.backend() == "tensorflow":
            return ops.custom_gradient(on_tensorflow)(*x)
        import jax

        function = jax.custom_vjp(lambda *x: forward(*x))
        # the forward rule calls the function itself, so that an outer derivative meets its gradient again
        function.defvjp(lambda *x: (function(*x), x), slopes)
        return function(*x)

    return defined


def scale_gradient(x: Tensor, factor: float | Tensor) -> Tensor:
    """`x` unchanged, in its shape and dtype; backward: upstream * factor, rounded once to x's dtype.

    `factor` is any finite number or scalar tensor (0 stops the gradient, -1 reverses it, 2**10 scales from here down
    while 2**-10 further down undoes it). The product is formed in float32 (float64 for float64), so a factor that
    float16 cannot hold does no harm by itself. The gradient for `factor` is zero.

    Raises:
        TypeError: x is not floating, or symbolic.
        ValueError: factor is not a scalar.

    Example:
        >>> import tensorflow as tf
        >>> x = tf.constant([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = scale_gradient(x, 8.0) ** 2
        >>> [float(slope) for slope in tape.gradient(y, x)]
        [16.0, 32.0]
    """
    x = check_float_tensor(x, "scale_gradient")
    factor = ops.cast(factor, wide_dtype(x))
    if len(factor.shape):
        raise ValueError(f"scale_gradient: factor must be a scalar. Received: shape={tuple(factor.shape)}.")
    # the factor is an argument, not a captured value: a traced one could not be captured on JAX
    return define_gradient(lambda x, factor: x, _scaled)(x, factor)


def _scaled(upstream: Tensor, x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    scaled = ops.cast(upstream, factor.dtype) * factor
    return ops.cast(scaled, x.dtype), ops.zeros_like(factor)
