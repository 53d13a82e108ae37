"""What makes `LossScaleOptimizer` a drop-in for tf.keras's, beside its attributes: scaling by hand, and `minimize`."""

import warnings
from collections.abc import Callable
from threading import get_ident
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.finite import divide

Tensor = Any


class UnscaledFlag:
    """Whether gradients come divided by the scale already: what the optimizer was told last.

    Python's own memory, which is all that JAX has: a function compiled by `jax.jit` tells it while it is traced only,
    and who mixes both ways says it to `apply(unscaled=…)` or `stateless_apply(unscaled=…)`.
    On TensorFlow `step_tensorflow.UnscaledVariable` remembers it at run time.
    """

    def __init__(self) -> None:
        self._told = False

    def tell(self, unscaled: bool) -> None:
        self._told = unscaled

    def ask(self) -> bool | Tensor:
        """A bool where it is known, else a boolean scalar of the graph."""
        return self._told


class ManualScalingMixin:
    """Mixin with `get_scaled_loss`, `get_unscaled_gradients` and `minimize`.

    After `get_scaled_loss` or `get_unscaled_gradients`, `apply_gradients` takes what it is given as it is, as in
    tf.keras: gradients from `get_unscaled_gradients`, also when something (clipping, say) was computed from them, or
    divided by `loss_scale` by hand, in several parts, and out of a `tf.function` that was traced long before. Only the
    very gradients that were handed to `get_unscaled_gradients` are still divided. After `scale_loss`, which Keras's
    `fit` calls, gradients are divided. `minimize` does all of it itself.
    """

    _loss_was_scaled: bool
    _warned: set[str]
    _scaled_gradients: list[Tensor] | None  # what the last `get_unscaled_gradients` was given, until they are applied
    _step_log: Any
    _noted_losses: dict[int, Tensor]
    _unscaled: UnscaledFlag
    refuse_unscaled: Callable[[], None] | None
    loss_scale: Tensor
    scales: bool
    iterations: Any

    def scale_loss(self, loss: Tensor) -> Tensor:
        """`loss * loss_scale`, widened to float32 first: a float16 loss of 3.0 times 2**15 would be inf."""
        self._unscaled.tell(False)
        return self.multiply_by_scale(loss)

    def multiply_by_scale(self, loss: Tensor) -> Tensor:
        """`scale_loss` for a caller that says itself, when it applies the gradients, that they are scaled."""
        self._loss_was_scaled = True
        loss = ops.convert_to_tensor(loss)
        if self._step_log is not None and keras.backend.backend() == "tensorflow":
            self.note_loss(loss)  # on JAX a loss is traced inside the gradient and known only there
        if keras.backend.standardize_dtype(loss.dtype) != "float64":
            loss = ops.cast(loss, "float32")
        return ops.multiply(loss, ops.cast(self.loss_scale, loss.dtype)) if self.scales else loss

    def note_loss(self, loss: Tensor) -> None:
        """For the step log: the loss whose gradients will be applied next. Replicas are traced in threads of their own.
        """
        self._noted_losses[get_ident()] = loss

    def take_noted_loss(self) -> Tensor | None:
        """The loss of this step, of which the next one must be told anew; None where nobody told it."""
        return self._noted_losses.pop(get_ident(), None)

    def get_scaled_loss(self, loss: Tensor | Callable[[], Tensor]) -> Tensor | Callable[[], Tensor]:
        """`loss * loss_scale` of a tensor, or a function that returns that of a loss function.

        The gradients of it are for you to divide: by `get_unscaled_gradients`, or by `loss_scale` itself.
        """
        if callable(loss):
            function = loss
            return lambda: self.get_scaled_loss(function())
        self._unscaled.tell(True)
        return self.multiply_by_scale(loss)

    def get_unscaled_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """`grads / loss_scale`, float32; None stays None and sparse gradients stay sparse."""
        if not self._loss_was_scaled:
            self._warn("get_scaled_loss", "gradients are unscaled, but the loss they came from was not scaled")
        self._scaled_gradients = list(grads)
        self._unscaled.tell(True)
        scale = self.loss_scale if self.scales else None
        return [None if g is None else divide(g, scale) for g in grads]

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Scale `loss`, differentiate it with respect to `var_list`, apply; returns `iterations`.

        `loss` is a function without arguments that returns a scalar, or (TensorFlow) a tensor recorded on `tape`;
        `var_list` holds variables, is a single one, or a function that returns either.
        """
        given = var_list() if callable(var_list) else var_list
        variables = [given] if hasattr(given, "assign") else list(given)
        if keras.backend.backend() == "tensorflow":
            gradients = _tape_gradients(self, loss, variables, tape)
        else:
            gradients = _jax_gradients(self, loss, variables)
        self.apply_scaled(gradients, variables)  # type: ignore[attr-defined]
        return self.iterations

    def _take_unscaled(self, grads: list[Tensor]) -> bool | Tensor:
        """Whether `grads` have been unscaled by hand."""
        given, self._scaled_gradients = self._scaled_gradients, None
        still_scaled = {id(g) for g in given or [] if g is not None}
        if not self._loss_was_scaled:
            if self.refuse_unscaled is not None:
                self.refuse_unscaled()
            self._warn("scale_loss (or get_scaled_loss)",
                       "gradients are divided by the loss scale, but no loss was multiplied by it")
        return False if any(id(g) in still_scaled for g in grads) else self._unscaled.ask()

    def _warn(self, method: str, what: str) -> None:
        if method not in self._warned:
            self._warned.add(method)
            warnings.warn(f"{what}. Call {type(self).__name__}.{method} on the loss before taking gradients.",
                          stacklevel=4)


def _tape_gradients(optimizer: ManualScalingMixin, loss: Any, variables: list[Any], tape: Any) -> list[Tensor]:
    import tensorflow as tf

    if not callable(loss) and tape is None:
        raise ValueError("`tape` is required when `loss` is a tensor. Received: loss="
                         f"{loss}, tape=None. Pass a function that returns the loss instead.")
    tape = tape or tf.GradientTape()
    with tape:
        native = [v.value if isinstance(v, keras.Variable) else v for v in variables]
        tape.watch(native)
        scaled = optimizer.multiply_by_scale(loss() if callable(loss) else loss)
    return list(tape.gradient(scaled, native))


def _jax_gradients(optimizer: ManualScalingMixin, loss: Any, variables: list[Any]) -> list[Tensor]:
    import jax

    if not callable(loss):
        raise ValueError("On the JAX backend `loss` must be a function without arguments that returns a scalar. "
                         f"Received: {loss!r}.")

    def scaled(values: list[Tensor]) -> Tensor:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return optimizer.multiply_by_scale(loss())

    return list(jax.grad(scaled)([v.value for v in variables]))
