"""What makes `LossScaleOptimizer` a drop-in for tf.keras's and Keras's: the attributes of the optimizer inside it,
scaling by hand, and `minimize`.
"""

import warnings
from collections.abc import Callable
from threading import get_ident
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.finite import divide

INNER_ARGUMENTS = (
    "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency",
    "gradient_accumulation_steps",
)  # fmt: skip


class InnerDelegationMixin:
    """Mixin for a Keras optimizer that holds another one in `inner_optimizer`.

    Keras's own wrapper keeps the base attributes twice, so that `wrapper.clipnorm = 1.0` changes nothing. Here each of
    them is the inner optimizer's. A public name that neither of the two has can't be set by mistake.
    """

    inner_optimizer: Any

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's current learning rate, a float32 scalar."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    lr = learning_rate

    @property
    def loss_scale_factor(self) -> None:
        """None: the inner optimizer's own scaling is off. ValueError for any other value."""
        return None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        if value is not None:
            raise ValueError("`loss_scale_factor` can't be set: gradients would be divided twice. Received: "
                             f"loss_scale_factor={value}. For a fixed scale give dynamic=False and initial_scale.")

    @property
    def iterations(self) -> Any:
        """The inner optimizer's count of updates, which schedules follow; `count_skipped_steps` says of which."""
        return self.inner_optimizer.iterations

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Tell the inner optimizer which variables not to decay."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner_optimizer":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("inner_optimizer")
        known = name.startswith("_") or inner is None or name in self.__dict__ or hasattr(type(self), name)
        if known:
            super().__setattr__(name, value)
        elif hasattr(inner, name):
            setattr(inner, name, value)
        else:
            raise AttributeError(
                f"Neither {type(self).__name__} nor its inner {type(inner).__name__} has an attribute {name!r} to set."
            )


def _inner_property(name: str) -> property:
    def read(self: InnerDelegationMixin) -> Any:
        return getattr(self.inner_optimizer, name)

    def write(self: InnerDelegationMixin, value: Any) -> None:
        if "inner_optimizer" in self.__dict__:  # before that, the base class is only setting its own defaults
            setattr(self.inner_optimizer, name, value)

    return property(read, write, doc=f"`{name}` of the inner optimizer.")


for _name in INNER_ARGUMENTS:
    setattr(InnerDelegationMixin, _name, _inner_property(_name))


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
