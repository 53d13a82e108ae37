"""Put a function and its gradient together, the same on TensorFlow and JAX, to any order; and scale a gradient, which
needs that.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import keras
import numpy as np
from keras import ops

from mpt_cli.precision.gradient_check import Tensor, on_jax
from mpt_cli.precision.keras_internals import reading_values, variables_read


def map_floats(function: Callable[[Tensor], Tensor], structure: Any) -> Any:
    """Return `structure` with `function` applied to each of its float tensors."""
    return keras.tree.map_structure(lambda x: function(x) if is_float_tensor(x) else x, structure)


def is_float_tensor(x: Any) -> bool:
    """Return whether it is a dense tensor with values of floats, traced or not; not a symbolic one of Keras."""
    if isinstance(x, keras.KerasTensor) or not ops.is_tensor(x) or hasattr(x, "indices"):
        return False
    return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)))


def custom_gradient(f: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Decorate `f(*x)`, which returns a value and a function that computes its gradient, as `tf.custom_gradient` does.

    The value is a tensor or a nested structure of tensors, and so is each of `x`. The gradient function gets the
    upstream gradient of each tensor of the value, one argument each, and returns the gradient of each tensor in `x`,
    alone or in a list; None is a gradient of zero. It may call decorated functions itself: they give the second order.
    Keyword arguments get no gradient. On TensorFlow this is `tf.custom_gradient`.

    Where `f` reads trainable variables, the gradient function also gets `variables=`, a list of them (TensorFlow's own
    there, Keras's on JAX), and returns the gradients of the tensors and a list of the gradients of the variables. On
    JAX `f` may read variables but not change them, and runs again where it is differentiated. JAX has no forward mode
    for such functions: write `jax.jacrev(jax.grad(f))` for `jax.hessian(f)`.

    Raises, when the function is called or differentiated:
        TypeError: `f` reads trainable variables and the gradient function takes no `variables`.
        ValueError: the number of gradients is not that of the tensors, or of the variables.

    Source: the documentation of `tf.custom_gradient`.

    Example:
        >>> @custom_gradient
        ... def log1pexp(x):
        ...     e = keras.ops.exp(x)
        ...     return keras.ops.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))
        >>> float(log1pexp(keras.ops.array(0.0)))
        0.6931471824645996
    """
    if f is None:
        return custom_gradient

    @wraps(f)
    def decorated(*arguments: Any, **keywords: Any) -> Any:
        leaves = [ops.copy(x) if isinstance(x, keras.Variable) else x for x in keras.tree.flatten(arguments)]
        indices = [index for index, leaf in enumerate(leaves) if _is_tensor(leaf)]

        def on_tensors(*tensors: Tensor) -> Any:
            values = dict(zip(indices, tensors, strict=True))
            given = [values.get(index, leaf) for index, leaf in enumerate(leaves)]
            return f(*keras.tree.pack_sequence_as(arguments, given), **keywords)

        tensors = [leaves[index] for index in indices]
        if on_jax():
            return _call_on_jax(on_tensors, tensors)
        return ops.custom_gradient(on_tensors)(*tensors)

    return decorated


def _is_tensor(leaf: Any) -> bool:
    """Return whether it counts as a tensor; a flag does not, nor does the instance whose method is decorated."""
    return ops.is_tensor(leaf) or (isinstance(leaf, (float, int, np.ndarray, np.number)) and not isinstance(leaf, bool))


def _call_on_jax(function: Callable[..., Any], x: list[Tensor]) -> Any:
    """Call `function` with its gradient on JAX.

    `jax.custom_gradient` alone would differentiate the operations of `function`, and not the gradient given for it,
    wherever its value is used in a second-order gradient (a straight-through rounding would get one of 0)."""
    import jax

    x = [ops.convert_to_tensor(each) for each in x]
    read, now = variables_read(lambda: function(*x)[0])
    trained = [variable for variable in read if variable.trainable]

    def both(values: list[Tensor], x: list[Tensor]) -> tuple[Any, Callable[..., Any]]:
        with reading_values(read, values):
            value, gradient = function(*x)
        _check_takes(gradient, trained)

        def slopes(upstream: Any) -> Any:
            with reading_values(read, values):
                found = gradient(*keras.tree.flatten(upstream), **({"variables": trained} if trained else {}))
            grads, of_trained = found if trained else (found, [])
            by_id = dict(zip(map(id, trained), _as_many("variables", of_trained, trained), strict=True))
            return [by_id.get(id(variable)) for variable in read], _as_many("tensors", grads, x)

        return value, slopes

    def traced(values: list[Tensor], x: list[Tensor]) -> Any:
        return jax.vjp(jax.custom_gradient(both), values, x)

    # values that `function` captures become arguments: `custom_vjp` may not capture traced ones
    traced, outer = jax.closure_convert(traced, now, x)
    whole = jax.custom_vjp(lambda values, x, outer: traced(values, x, *outer)[0])
    # the forward rule calls the function itself, so that an outer derivative meets its gradient again
    whole.defvjp(
        lambda *given: (whole(*given), traced(*given[:2], *given[2])[1]),
        lambda pull, upstream: (*pull(upstream), [None] * len(outer)),
    )
    return whole(now, x, outer)


def _check_takes(gradient: Callable[..., Any], trained: list[Any]) -> None:
    parameters = signature(gradient).parameters.values()
    if trained and not any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(
            "custom_gradient: the function of the gradient must take `variables`, as the value depends on "
            f"trainable ones. Received: variables {[variable.name for variable in trained]}."
        )


def _as_many(what: str, grads: Any, targets: Sequence[Any]) -> list[Any]:
    several = keras.tree.flatten(grads)
    if len(several) != len(targets):
        raise ValueError(
            f"custom_gradient: there must be a gradient for each of the {len(targets)} {what}. "
            f"Received: {len(several)}."
        )
    return [
        None if grad is None or not keras.backend.is_float_dtype(target.dtype) else ops.cast(grad, target.dtype)
        for grad, target in zip(several, targets, strict=True)
    ]


@custom_gradient
def scale_gradient(x: Tensor, factor: Tensor) -> Any:
    """Return `x` unchanged; in the backward pass return upstream * factor, rounded once to the dtype of x.

    `factor` is any finite number or scalar tensor (0 stops the gradient, -1 reverses it). The product is formed in
    float32 (float64 for float64), so a factor that float16 cannot hold does no harm by itself. The gradient for
    `factor` is zero.

    Example:
        >>> import tensorflow as tf
        >>> x = tf.constant([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = scale_gradient(x, 8.0) ** 2
        >>> [float(slope) for slope in tape.gradient(y, x)]
        [16.0, 32.0]
    """

    def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
        wide = keras.backend.result_type(x.dtype, "float32")
        return ops.cast(ops.cast(upstream, wide) * ops.cast(factor, wide), x.dtype), ops.zeros_like(factor)

    return x, gradient
