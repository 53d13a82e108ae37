"""The half of tf.keras's documented API that Keras 3 dropped: scaling by hand and `minimize`."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.finite import divide

Tensor = Any


class ScalingByHand:
    """Mixin with `get_scaled_loss`, `get_unscaled_gradients` and `minimize`.

    After `get_unscaled_gradients`, `apply_gradients` takes what it is given as it is, as in tf.keras, also when
    something (clipping, say) was computed from it in between, when it comes out of a `tf.function` that was traced
    before, or in several parts. Only the very gradients that were handed to `get_unscaled_gradients` are still divided.
    After `scale_loss`, which Keras's `fit` and `minimize` call, gradients are divided.
    """

    _loss_was_scaled: bool
    _warned: set[str]
    _scaled_gradients: list[Tensor] | None  # what the last `get_unscaled_gradients` was given, until they are applied
    _unscales_by_hand: bool
    loss_scale: Tensor
    scales: bool

    def scale_loss(self, loss: Tensor) -> Tensor:
        """`loss * loss_scale`, widened to float32 first: a float16 loss of 3.0 times 2**15 would be inf."""
        self._unscales_by_hand = False
        return self._scale(loss)

    def _scale(self, loss: Tensor) -> Tensor:
        self._loss_was_scaled = True
        loss = ops.convert_to_tensor(loss)
        if keras.backend.standardize_dtype(loss.dtype) != "float64":
            loss = ops.cast(loss, "float32")
        return ops.multiply(loss, ops.cast(self.loss_scale, loss.dtype)) if self.scales else loss

    def get_scaled_loss(self, loss: Tensor | Callable[[], Tensor]) -> Tensor | Callable[[], Tensor]:
        """As `scale_loss`, of a tensor, or a function that returns the scaled value of a loss function."""
        if callable(loss):
            function = loss
            return lambda: self._scale(function())
        return self._scale(loss)

    def get_unscaled_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """`grads / loss_scale`, float32; None stays None and sparse gradients stay sparse."""
        if not self._loss_was_scaled:
            self._warn("get_scaled_loss", "gradients are unscaled, but the loss they came from was not scaled")
        self._scaled_gradients, self._unscales_by_hand = list(grads), True
        scale = self.loss_scale if self.scales else None
        return [None if g is None else divide(g, scale) for g in grads]

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Scale `loss`, differentiate it with respect to `var_list`, apply; returns `iterations`.

        `loss` is a function without arguments that returns a scalar, or (TensorFlow) a tensor recorded on `tape`.
        """
        variables = list(var_list() if callable(var_list) else var_list)
        if keras.backend.backend() == "tensorflow":
            gradients = _tape_gradients(self, loss, variables, tape)
        else:
            gradients = _jax_gradients(self, loss, variables)
        return self.apply_gradients(zip(gradients, variables, strict=True))  # type: ignore[attr-defined]

    def _take_unscaled(self, grads: list[Tensor]) -> bool:
        """Whether `grads` have been unscaled by hand."""
        given, self._scaled_gradients = self._scaled_gradients, None
        still_scaled = {id(g) for g in given or [] if g is not None}
        if not self._loss_was_scaled:
            self._warn("scale_loss (or get_scaled_loss)",
                       "gradients are divided by the loss scale, but no loss was multiplied by it")
        return self._unscales_by_hand and not any(id(g) in still_scaled for g in grads)

    def _warn(self, method: str, what: str) -> None:
        if method not in self._warned:
            self._warned.add(method)
            warnings.warn(f"{what}. Call {type(self).__name__}.{method} on the loss before taking gradients.",
                          stacklevel=4)


def _tape_gradients(optimizer: ScalingByHand, loss: Any, variables: list[Any], tape: Any) -> list[Tensor]:
    import tensorflow as tf

    if not callable(loss) and tape is None:
        raise ValueError("`tape` is required when `loss` is a tensor. Received: loss="
                         f"{loss}, tape=None. Pass a function that returns the loss instead.")
    tape = tape or tf.GradientTape()
    with tape:
        native = [v.value if isinstance(v, keras.Variable) else v for v in variables]
        tape.watch(native)
        scaled = optimizer.scale_loss(loss() if callable(loss) else loss)
    return list(tape.gradient(scaled, native))


def _jax_gradients(optimizer: ScalingByHand, loss: Any, variables: list[Any]) -> list[Tensor]:
    import jax

    if not callable(loss):
        raise ValueError("On the JAX backend `loss` must be a function without arguments that returns a scalar. "
                         f"Received: {loss!r}.")

    def scaled(values: list[Tensor]) -> Tensor:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return optimizer.scale_loss(loss())

    return list(jax.grad(scaled)([v.value for v in variables]))
