"""How a function and its gradient are put together, the same on TensorFlow and JAX, to any order."""

from collections.abc import Callable

import keras

from mpt_cli.precision.gradients.tensors import Tensor


def define_gradient(
    forward: Callable[..., Tensor], backward: Callable[..., tuple[Tensor, ...]]
) -> Callable[..., Tensor]:
    """A function of tensors with the value `forward(*x)` and the gradients `backward(upstream, *x)`, one per x.

    `backward` may itself call functions made here: that is what gives them higher orders. Everything that is traced
    must be an argument, nothing captured. On JAX this is `custom_vjp`, not `keras.ops.custom_gradient`: there the
    second order would differentiate the operations inside `forward` and not the gradient given for it (Keras 3.15:
    a straight-through rounding gets a second-order gradient of 0).

    Example:
        >>> cube = define_gradient(lambda x: x**3, lambda upstream, x: (3 * x**2 * upstream,))
        >>> float(cube(keras.ops.array(2.0)))
        8.0
    """
    if keras.backend.backend() == "jax":
        return _define_on_jax(forward, backward)

    def function(*arguments: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
        return forward(*arguments), lambda upstream: backward(upstream, *arguments)

    defined: Callable[..., Tensor] = keras.ops.custom_gradient(function)
    return defined


def _define_on_jax(
    forward: Callable[..., Tensor], backward: Callable[..., tuple[Tensor, ...]]
) -> Callable[..., Tensor]:
    import jax

    function = jax.custom_vjp(forward)
    # the forward rule calls the function itself, so that an outer derivative meets its gradient again
    function.defvjp(
        lambda *arguments: (function(*arguments), arguments),
        lambda arguments, upstream: backward(upstream, *arguments),
    )
    return function
