"""The gradients of a loss that `LossScaleOptimizer.minimize` and `get_gradients` take, multiplied by the scale."""

from collections.abc import Callable
from typing import Any

import keras

from mpt_cli.precision.gradient_check import Tensor, on_tensorflow

Scale = Callable[[Tensor], Tensor]  # multiplies a loss by the scale


def scaled_gradients(
    scale: Scale, loss: Any, variables: list[Any], tape: Any = None, grad_loss: Any = None
) -> list[Tensor]:
    """Return the gradients of `loss`, each element weighted by `grad_loss`, multiplied by the scale."""
    take = _tape_gradients if on_tensorflow() else _jax_gradients
    return take(scale, loss, variables, tape, grad_loss)


def _tape_gradients(scale: Scale, loss: Any, variables: list[Any], tape: Any, grad_loss: Any) -> list[Tensor]:
    import tensorflow as tf

    native = [v.value if isinstance(v, keras.Variable) else v for v in variables]
    if not callable(loss) and tape is None:
        if tf.executing_eagerly():
            raise ValueError(
                "`tape` is required when `loss` is a tensor. Received: loss="
                f"{loss}, tape=None. Pass a function that returns the loss instead."
            )
        return list(tf.gradients(scale(loss), native, grad_loss))
    tape = tape or tf.GradientTape()
    with tape:
        tape.watch(native)
        scaled = scale(loss() if callable(loss) else loss)
    return list(tape.gradient(scaled, native, grad_loss))


def _jax_gradients(scale: Scale, loss: Any, variables: list[Any], tape: Any, grad_loss: Any) -> list[Tensor]:
    import jax

    if not callable(loss):
        raise ValueError(
            f"On the JAX backend `loss` must be a function without arguments that returns the loss. Received: {loss!r}."
        )

    def scaled(values: list[Tensor]) -> Tensor:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return scale(loss())

    value, backward = jax.vjp(scaled, [v.value for v in variables])
    weights = keras.ops.ones_like(value) if grad_loss is None else keras.ops.cast(grad_loss, value.dtype)
    return list(backward(weights)[0])


def share_of_a_replica(gradient: Any) -> Any:
    """Return the part of a gradient of all replicas that each of them adds to the sum that Keras 3 always takes."""
    if gradient is None or not on_tensorflow():
        return gradient
    import tensorflow as tf

    return tf.math.scalar_mul(1.0 / tf.distribute.get_strategy().num_replicas_in_sync, gradient)


def variables_in(given: Any) -> list[Any]:
    """Return the variables as a list, a single one too: a vector of TensorFlow would be read as its elements."""
    given = given() if callable(given) else given
    return [given] if hasattr(given, "assign") else list(given)
