"""`LossScaleOptimizer`, loss scaling around any Keras optimizer: checks of its arguments, the rule they stand for, the
attributes of the inner optimizer, how a step is applied or skipped, and what makes it a drop-in for tf.keras's: scaling
by hand and `minimize`.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from inspect import signature
from math import inf
from numbers import Real
from threading import get_ident
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.gradient_check import GradientMeasurement, Tensor, divide, measure, on_tensorflow, unscale
from mpt_cli.precision.keras_internals import reading_values, track_for_tensorflow
from mpt_cli.precision.loss_gradients import scaled_gradients, share_of_a_replica, variables_in
from mpt_cli.precision.optimizer_saving import InnerSavingMixin
from mpt_cli.precision.scale_rules import DynamicScale, FixedScale, ScaleRule, check_count, check_scale
from mpt_cli.precision.scale_state import ScaleAttributesMixin, ScaleState, StepLog

Tensors = list[Any]


BASE_OPTIONS = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "gradient_accumulation_steps": None,
}
COUNTS = {"ema_overwrite_frequency", "gradient_accumulation_steps"}
MOVING_ARGUMENTS = {"growth_factor", "backoff_factor", "min_scale", "max_scale", "hysteresis"}


def check_inner(inner: Any) -> None:
    """Raise ValueError for an optimizer that can't be wrapped."""
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise ValueError(f"`inner_optimizer` must be a keras.optimizers.Optimizer. Received: {inner!r}.")
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(f"`inner_optimizer` must not be a LossScaleOptimizer itself. Received: {inner!r}.")
    if getattr(inner, "_mpt_is_wrapped", False):
        raise ValueError(f"`inner_optimizer` is wrapped by another LossScaleOptimizer already. Received: {inner!r}.")


def drop_inner_scaling(inner: Any) -> None:
    """Set `loss_scale_factor` of the inner optimizer to None, as Keras does, but say so."""
    if inner.loss_scale_factor is not None:
        warnings.warn(
            f"`loss_scale_factor={inner.loss_scale_factor}` of the inner optimizer is ignored: gradients "
            "would be divided twice. Give it to LossScaleOptimizer for a fixed scale.",
            stacklevel=3,
        )
        inner.loss_scale_factor = None


def check_switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}.")


def build_rule(
    rule: Any, factor: Any, dynamic: Any, initial_scale: Any, growth_steps: Any, moving: dict[str, Any]
) -> ScaleRule:
    """Return the rule that the constructor's arguments stand for; raise as its docstring says."""
    if unknown := [name for name in moving if name not in MOVING_ARGUMENTS]:
        raise ValueError(f"LossScaleOptimizer does not support arguments: `{'`, `'.join(unknown)}`.")
    given = {"dynamic": dynamic, "initial_scale": initial_scale, "dynamic_growth_steps": growth_steps, **moving}
    if rule is not None:
        if not isinstance(rule, ScaleRule):
            raise ValueError(f"`rule` must be a ScaleRule. Received: rule={rule!r}.")
        _check_left_out({**given, "loss_scale_factor": factor}, "beside `rule`, which has its own")
        return rule
    if factor is not None:
        _check_left_out(given, "beside `loss_scale_factor`, which stands for a fixed scale")
        return FixedScale(check_scale("loss_scale_factor", factor))
    check_switch("dynamic", True if dynamic is None else dynamic)
    if dynamic is not False:
        return DynamicScale(
            2.0**15 if initial_scale is None else initial_scale,
            2000 if growth_steps is None else growth_steps,
            **moving,
        )
    _check_left_out(
        {"dynamic_growth_steps": growth_steps, **moving}, "when `dynamic` is False: a fixed scale does not move"
    )
    if initial_scale is None:
        raise ValueError("`initial_scale` must be given when `dynamic` is False.")
    return FixedScale(initial_scale)


def _check_left_out(arguments: dict[str, Any], where: str) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"`{name}` must not be given {where}. Received: {name}={value!r}.")


def base_options(inner: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options in `given` that must be set on `inner`.

    A value that is Keras's default counts as not given, as old files of Keras hold all of them. Raise ValueError for a
    value of the wrong kind, and for one that `inner` does not take or has another value for.
    """
    said = {name: value for name, value in given.items() if value is not None and value != BASE_OPTIONS[name]}
    for name, value in said.items():
        _check_option(name, value)
    changed = {name: value for name, value in said.items() if value != getattr(inner, name)}
    arguments = signature(type(inner)).parameters
    for name, value in changed.items():
        own, kind = getattr(inner, name), type(inner).__name__
        usual = arguments[name].default if name in arguments else BASE_OPTIONS[name]
        if own not in (usual, BASE_OPTIONS[name]) or inner.built or name not in inner.get_config():
            raise ValueError(
                f"`{name}` must be given to {kind} itself. Received: {name}={value!r}, and {own!r} in {kind}."
            )
    return changed


def _check_option(name: str, value: Any) -> None:
    if name == "use_ema":
        check_switch(name, value)
    elif name in COUNTS:
        check_count(name, value)
    elif isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < inf:
        raise ValueError(f"`{name}` must be a finite number of at least 0. Received: {name}={value!r}.")


def backend_step() -> Any:
    """Return the module with the steps of the running backend: `apply_or_skip_tensorflow` or `apply_or_skip_jax`."""
    return import_module(f"mpt_cli.precision.apply_or_skip_{keras.backend.backend()}")


class InnerDelegationMixin:
    """Mixin for a Keras optimizer that holds another one in `inner_optimizer`.

    Keras's own wrapper keeps the base attributes twice, so that `wrapper.clipnorm = 1.0` changes nothing. Here each of
    them is the inner optimizer's. A public name that neither of the two has can't be set by mistake.
    """

    inner_optimizer: Any

    lr = keras.optimizers.LossScaleOptimizer.learning_rate  # which is the inner optimizer's, as its `iterations` are

    @property
    def loss_scale_factor(self) -> None:
        """Return None: the inner optimizer's own scaling is off. Setting another value raises ValueError."""
        return None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        if value is not None:
            raise ValueError(
                "`loss_scale_factor` can't be set: gradients would be divided twice. Received: "
                f"loss_scale_factor={value}. For a fixed scale give it to the constructor."
            )

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Tell the inner optimizer which variables not to decay."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    @property
    def weights(self) -> list[Any]:
        """Return the variables of the inner optimizer."""
        return list(self.inner_optimizer.variables)

    def get_weights(self) -> list[Any]:
        """Return the values of `weights` as NumPy arrays, as `set_weights` takes them."""
        return [ops.convert_to_numpy(variable) for variable in self.weights]

    def __getattr__(self, name: str) -> Any:
        if name in ("get_slot", "get_slot_names", "add_slot"):
            raise AttributeError(f"`{name}`: Keras 3 has no slots. Read `variables` instead.")
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


for _name in BASE_OPTIONS:
    setattr(InnerDelegationMixin, _name, _inner_property(_name))


@keras.saving.register_keras_serializable("mpt")
class LossScaleOptimizer(
    ScaleAttributesMixin,
    InnerSavingMixin,
    InnerDelegationMixin,
    keras.optimizers.LossScaleOptimizer,  # type: ignore[misc]
):
    """Scales the loss so that float16 gradients neither vanish nor overflow, and skips the steps that overflow.

    The loss is multiplied by a scale S before the backward pass and the gradients are divided by it before the inner
    optimizer sees them, so that clipping, weight decay and moving averages act on true gradients. A step whose
    gradients hold inf or nan changes nothing but the scale and the counters; learning-rate schedules follow the applied
    steps, as in Keras 3. Dynamic mode halves S at such a step and
    doubles it after `dynamic_growth_steps` applied ones (`DynamicScale` has the formula); fixed mode keeps S.

    Args:
        inner_optimizer: the `keras.optimizers.Optimizer` that does the work. It may be wrapped only once.
        dynamic: True (the default) for a moving scale, False for a fixed one.
        initial_scale: first scale, a finite number above 0; 2**15 in dynamic mode, required in fixed mode.
        dynamic_growth_steps: applied steps before a growth, at least 1; 2000 in dynamic mode, not for fixed mode.
        growth_factor: factor of a growth, above 1; 2.0.
        backoff_factor: factor at an overflow, between 0 and 1; 0.5.
        min_scale, max_scale: the scale stays within them; 2**-14 and 2**32. A floor above 0 keeps S from reaching 0,
            where a clean step would divide 0 by 0; a finite ceiling keeps zero gradients from growing S to inf.
        hysteresis: overflows since the last growth before the scale falls, at least 1; 1.
        loss_scale_factor: a fixed scale: short for dynamic=False and this initial_scale.
        rule: a `ScaleRule` instead of all of the above, `LogMaxScale` or one of your own. Under `NoScale` every step is
            applied, whatever its gradients hold, as without this class.
        weight_decay, clipnorm, clipvalue, global_clipnorm, use_ema, ema_momentum, ema_overwrite_frequency,
            gradient_accumulation_steps: as in `keras.optimizers.Optimizer`; they are set on the inner optimizer.
        name: of the optimizer.

    Raises:
        ValueError: an argument is of the wrong kind or out of range; two contradict each other, or what the inner
            optimizer has; that one is in a LossScaleOptimizer already, or built where it is to take an option.

    Model files and weights files hold everything once, and fit with and without the wrapper. A `tf.train.Checkpoint`
    (TensorFlow) holds it too; restored before `build`, as with any Keras 3 optimizer, values arrive at `build`. There
    the inner state lies under `inner_optimizer`: for a checkpoint of the bare optimizer, restore `inner_optimizer`.
    `keras.models.load_model` knows the class in a process that has imported any part of `mpt_cli`, before or after
    Keras. `copy.deepcopy` and `pickle` take one that is not built, and refuse another (TypeError): `set_weights` takes
    `variables` of another one, or those of a bare optimizer.

    Source: tf.keras.mixed_precision.LossScaleOptimizer and keras.optimizers.LossScaleOptimizer, whose documented
    attributes and methods it has; Micikevicius et al. 2018, arXiv:1710.03740.

    >>> import keras
    >>> optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.25), initial_scale=2.0**10)
    >>> weight = keras.Variable(1.0)
    >>> _ = optimizer.minimize(lambda: weight**2, [weight])
    >>> float(weight.value), int(optimizer.applied_steps), float(optimizer.loss_scale)
    (0.5, 1, 1024.0)
    >>> optimizer.apply([keras.ops.ones(()) * float("inf")], [weight])
    >>> float(weight.value), int(optimizer.skipped_steps), float(optimizer.loss_scale)
    (0.5, 1, 512.0)
    """

    built: bool

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        dynamic: bool | None = None,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        *,
        loss_scale_factor: float | None = None,
        rule: ScaleRule | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_inner(inner_optimizer)
        given = {option: kwargs.pop(option) for option in BASE_OPTIONS if option in kwargs}
        rule = build_rule(rule, loss_scale_factor, dynamic, initial_scale, dynamic_growth_steps, kwargs)
        changed = base_options(inner_optimizer, given)
        options = {option: getattr(inner_optimizer, option) for option in BASE_OPTIONS} | changed
        # Keras checks here whether the options go together; they are set on the inner optimizer below
        super(keras.optimizers.LossScaleOptimizer, self).__init__(
            learning_rate=0.0, name=name, **(options if changed else {})
        )
        drop_inner_scaling(inner_optimizer)
        self._warned: set[str] = set()
        self._loss_was_scaled = False
        self._scaled_gradients: Tensors | None = None
        self._unscaled: bool | None = None  # whether gradients come divided by the scale, as last noted
        self._rule = rule
        self.scale_state: ScaleState | None = None  # scale, counters and tally as variables; None before `build`
        self.step_log: StepLog | None = None  # of the latest steps; None unless `keep_step_log` was called
        self._noted_losses: dict[int, Tensor] = {}  # of the step being traced, for the step log on TensorFlow
        self.allows_unscaled = False  # whether gradients of a step that scales no loss are taken as they are
        self.was_unscaled = False  # whether a traced step had such gradients
        inner_optimizer._mpt_is_wrapped = True
        self.inner_optimizer = inner_optimizer
        for option, value in changed.items():
            setattr(inner_optimizer, option, value)

    @property
    def variables(self) -> list[keras.Variable]:
        """Return the scale's own variables, the inner optimizer's, then those of a step log."""
        own = self.scale_state.variables if self.scale_state else []
        return [*own, *self.inner_optimizer.variables, *(self.step_log.variables if self.step_log else [])]

    def keep_step_log(self, capacity: int) -> StepLog:
        """Record the latest `capacity` steps from now on; functions compiled before must be compiled again."""
        if self.step_log is None or self.step_log.capacity < capacity:
            self.step_log = StepLog(capacity)
        return self.step_log

    def build(self, var_list: list[Any]) -> None:
        """Create the variables; `var_list` are the variables to train. A second call changes nothing.

        Raises ValueError for gradient accumulation under a `tf.distribute` strategy of several replicas.
        """
        if self.built:
            return
        self.scale_state = self.scale_state or ScaleState(self.rule)
        if on_tensorflow():
            backend_step().check_accumulation(self.inner_optimizer)
            for variable in self.scale_state.variables:  # from an earlier restored checkpoint they get values here
                track_for_tensorflow(self, variable)
        var_list = list(var_list)
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(var_list)
        self._trainable_variables = var_list
        self.built = True

    def measure(self, grads: Tensors, variables: list[Any], unscaled: bool = False) -> GradientMeasurement:
        """Measure whether `grads` are finite and how large, scaled gradients of `variables` unless they are
        `unscaled`."""
        measured = measure(grads, variables, self.rule.reads_largest)
        return measured._replace(largest=measured.largest * self.loss_scale) if unscaled else measured

    @property
    def trained_variables(self) -> list[Any]:
        """Return the variables it was built for, in the order of its gradients; empty before `build`."""
        return list(self._trainable_variables) if self.built else []

    def applies(self, finite: Tensor) -> Tensor:
        """Return whether a step whose gradients are `finite`, or not, will be applied: a boolean scalar."""
        return finite if self.scales else ops.logical_or(finite, True)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        unscaled: bool | None = None,
    ) -> Any:
        """Apply pairs (gradient, variable); return `iterations`, as tf.keras does.

        `name` is the name scope of the operations. With `experimental_aggregate_gradients` False the gradients are
        already summed over the replicas of a `tf.distribute` strategy, so that they are the same in each.
        """
        grads, variables = zip(*grads_and_vars, strict=True)
        if not experimental_aggregate_gradients:
            unscaled = self._take_unscaled(grads) if unscaled is None else unscaled
            grads = tuple(share_of_a_replica(g) for g in grads)
        given = {} if unscaled is None else {"unscaled": unscaled}  # a subclass may have an `apply` without it
        with keras.name_scope(name) if name else nullcontext():
            self.apply(list(grads), list(variables), **given)
        return self.iterations

    def apply(self, grads: Tensors, trainable_variables: list[Any] | None = None, unscaled: bool | None = None) -> None:
        """Unscale `grads` and hand them to the inner optimizer, or skip the step; then move the scale.

        `unscaled` says whether they are divided by the scale already; None: as `scale_loss`, `get_scaled_loss` and
        `get_unscaled_gradients` tell it, the latest of them. A compiled function that calls them tells it while it is
        traced only, so say it where a program mixes both ways.

        Raises ValueError when every gradient is None, or in the cross-replica context of a `tf.distribute` strategy.
        """
        grads, variables = self._matched(grads, trainable_variables)
        told = self._take_unscaled(grads) if unscaled is None else unscaled
        backend_step().apply(self, grads, variables, told)

    def _matched(self, grads: Tensors, variables: list[Any] | None) -> tuple[Tensors, list[Any]]:
        grads, variables = list(grads), list(self._trainable_variables if variables is None else variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"Gradients and variables must match one to one. Received: {len(grads)} gradients for "
                f"{len(variables)} variables. Pass the variables, or build the optimizer with them."
            )
        if all(g is None for g in grads):
            raise ValueError(f"No gradients provided for any variable: {[v.name for v in variables]}.")
        if not self.built and on_tensorflow():
            backend_step().build_outside(lambda: self.build(variables), variables)
        self.build(variables)
        return grads, variables

    def apply_inner(self, grads: Tensors, variables: list[Any], unscaled: bool) -> None:
        """Let the inner optimizer use `grads`, divided by the scale unless they are `unscaled` already."""
        if not unscaled:
            grads = unscale(grads, variables, self.loss_scale if self.scales else None)
        self.inner_optimizer.apply(grads, variables)

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        """Put the inner optimizer's moving averages, if any, into the variables.

        Does nothing before a step was applied, when the averages are zeros, nor after a `fit` on JAX that an exception
        ended while it held the values: Keras calls this even then, and must not hide the exception.
        """
        try:
            if self.scale_state is not None and not int(self.applied_steps):
                return
        except RuntimeError:
            return
        self.inner_optimizer.finalize_variable_values(var_list)

    def stateless_apply(
        self,
        optimizer_variables: Tensors,
        grads: Tensors,
        trainable_variables: Tensors,
        unscaled: bool = False,
    ) -> tuple[Tensors, Tensors]:
        """Apply as a pure function, for JAX; return new values of the trainable variables and of `self.variables`.

        It knows nothing but its arguments: `unscaled` for gradients that are divided by the scale already.
        """
        if on_tensorflow():
            raise ValueError("stateless_apply is not supported with the TensorFlow backend. Use `apply`.")
        if not self.built:
            raise ValueError("`stateless_apply` needs a built optimizer: call `optimizer.build(trainable_variables)`.")
        if self.allows_unscaled and not self._loss_was_scaled:
            unscaled = self.was_unscaled = True
        variables = self._trainable_variables
        for name, received, own in (
            ("optimizer_variables", optimizer_variables, self.variables),
            ("grads", grads, variables),
            ("trainable_variables", trainable_variables, variables),
        ):
            if len(received) != len(own):
                raise ValueError(
                    f"`{name}` must have one value for each of the {len(own)} variables. Received: {len(received)}."
                )
        with reading_values(self.variables, optimizer_variables):
            measured = self.measure(grads, variables, unscaled)
        step = backend_step()
        gradients = step.StepGradients(list(grads), variables, measured, unscaled)
        applied: tuple[Tensors, Tensors] = step.stateless_apply(
            self, optimizer_variables, gradients, trainable_variables
        )
        return applied

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return `loss * loss_scale` in float32 at least: a float16 loss of 3.0 times 2**15 would be inf."""
        self._tell(unscaled=False)
        return self.multiply_by_scale(loss)

    def multiply_by_scale(self, loss: Tensor) -> Tensor:
        """Scale the loss for a caller that says `unscaled` itself when it applies the gradients."""
        self._loss_was_scaled = True
        loss = ops.convert_to_tensor(loss)
        if self.step_log is not None and on_tensorflow():
            self.note_loss(loss)  # on JAX a loss is traced inside the gradient and known only there
        if keras.backend.standardize_dtype(loss.dtype) != "float64":
            loss = ops.cast(loss, "float32")
        return ops.multiply(loss, ops.cast(self.loss_scale, loss.dtype)) if self.scales else loss

    def note_loss(self, loss: Tensor) -> None:
        """Keep the loss whose gradients are applied next, for the step log. Each replica has its own thread."""
        self._noted_losses[get_ident()] = loss

    def take_noted_loss(self) -> Tensor | None:
        """Return the loss noted for this step and forget it; None if none was noted."""
        return self._noted_losses.pop(get_ident(), None)

    def get_scaled_loss(self, loss: Tensor | Callable[[], Tensor]) -> Tensor | Callable[[], Tensor]:
        """Return `loss * loss_scale`; for a loss function, return a function that returns this.

        The gradients of it are for you to divide: by `get_unscaled_gradients`, or by `loss_scale` itself. After either,
        `apply_gradients` takes what it is given as it is, as in tf.keras, also when something (clipping, say) was
        computed from the gradients, in several parts. Only the very gradients that were handed to
        `get_unscaled_gradients` are still divided.
        """
        if callable(loss):
            function = loss
            return lambda: self.get_scaled_loss(function())
        self._tell(unscaled=True)
        return self.multiply_by_scale(loss)

    def get_unscaled_gradients(self, grads: Tensors) -> Tensors:
        """Return `grads / loss_scale` in float32; None stays None, and sparse gradients stay sparse."""
        if not self._loss_was_scaled:
            self._warn("get_scaled_loss", "gradients are unscaled, but the loss they came from was not scaled")
        self._scaled_gradients = list(grads)
        self._tell(unscaled=True)
        scale = self.loss_scale if self.scales else None
        return [None if g is None else divide(g, scale) for g in grads]

    def minimize(
        self, loss: Any, var_list: Any, grad_loss: Any = None, name: str | None = None, tape: Any = None
    ) -> Any:
        """Scale `loss`, differentiate it with respect to `var_list`, apply; returns `iterations`.

        `loss` is a function without arguments that returns the loss, or (TensorFlow) a tensor recorded on `tape`;
        `var_list` holds variables, is a single one, or a function that returns either. `grad_loss`, of the loss's
        shape, is the gradient of what is minimized with respect to the loss (ones by default); `name` is the name
        scope of the operations.
        """
        variables = variables_in(var_list)
        with keras.name_scope(name) if name else nullcontext():
            gradients = scaled_gradients(self.multiply_by_scale, loss, variables, tape, grad_loss)
            self.apply(gradients, variables, unscaled=False)
        return self.iterations

    def get_gradients(self, loss: Any, params: Any) -> Tensors:
        """Return the gradients of `loss` with respect to the variables `params`, unscaled, for `apply_gradients`.

        `loss` is a function without arguments that returns a scalar, or (in a `tf.function`) a tensor. Raise ValueError
        where it does not depend on a variable (TensorFlow).
        """
        variables = variables_in(params)
        grads = scaled_gradients(self.multiply_by_scale, loss, variables)
        if without := [v.name for v, g in zip(variables, grads, strict=True) if g is None]:
            raise ValueError(f"`loss` must depend on all of `params`. Received: no gradient for {', '.join(without)}.")
        return self.get_unscaled_gradients(grads)

    def get_updates(self, loss: Any, params: Any) -> list[Any]:
        """Apply `get_gradients`; return `iterations` in a list."""
        variables = variables_in(params)
        return [self.apply_gradients(zip(self.get_gradients(loss, variables), variables, strict=True))]

    def _take_unscaled(self, grads: Sequence[Tensor]) -> bool:
        """Return whether `grads` have been unscaled by hand."""
        given, self._scaled_gradients = self._scaled_gradients, None
        if not self.scales:
            return True
        still_scaled = {id(g) for g in given or [] if g is not None}
        if not self._loss_was_scaled:
            if self.allows_unscaled:
                self.was_unscaled = True
                return True
            self._warn(
                "scale_loss (or get_scaled_loss)",
                "gradients are divided by the loss scale, but no loss was multiplied by it",
            )
        return False if any(id(g) in still_scaled for g in grads) else bool(self._unscaled)

    def _tell(self, unscaled: bool) -> None:
        if self._unscaled == (not unscaled) and "both" not in self._warned:
            self._warned.add("both")
            warnings.warn(
                "scale_loss and get_scaled_loss are both called: `apply` goes by the latest, which a compiled function "
                "tells while it is traced only. Say which by `apply(unscaled=…)`.",
                stacklevel=3,
            )
        self._unscaled = unscaled

    def _warn(self, method: str, what: str) -> None:
        if method not in self._warned:
            self._warned.add(method)
            warnings.warn(
                f"{what}. Call {type(self).__name__}.{method} on the loss before taking gradients.", stacklevel=4
            )
