"""`LossScaleOptimizer`: loss scaling around any Keras optimizer, dynamic or fixed."""

from typing import Any

import keras

from mpt_cli.precision.arguments import (
    check_counting,
    check_inner,
    check_on_overflow,
    check_only_rule,
    drop_inner_scaling,
    rule_from,
)
from mpt_cli.precision.delegation import InnerDelegation
from mpt_cli.precision.finite import Measured, all_finite, measure, unscale
from mpt_cli.precision.rules import ScaleRule
from mpt_cli.precision.saving import SavedLikeInner
from mpt_cli.precision.scale_reading import ScaleReading
from mpt_cli.precision.scale_state import ScaleState
from mpt_cli.precision.tf_keras_api import ScalingByHand

Tensor = Any


@keras.saving.register_keras_serializable("mpt")
class LossScaleOptimizer(
    ScalingByHand, ScaleReading, SavedLikeInner, InnerDelegation, keras.optimizers.LossScaleOptimizer  # type: ignore[misc]
):
    """Scales the loss so that float16 gradients neither vanish nor overflow, and skips the steps that overflow.

    The loss is multiplied by a scale S before the backward pass and the gradients are divided by it before the inner
    optimizer sees them, so that clipping, weight decay and moving averages act on true gradients. A step whose
    gradients hold inf or nan changes nothing but the scale and the counters. Dynamic mode halves S at such a step and
    doubles it after `dynamic_growth_steps` applied ones (`rules.DynamicScale` has the formula); fixed mode keeps S.

    Args:
        inner_optimizer: the `keras.optimizers.Optimizer` that does the work. It may be wrapped only once.
        dynamic: True for a moving scale, False for a fixed one.
        initial_scale: first scale, a finite number above 0; 2**15 in dynamic mode, required in fixed mode.
        dynamic_growth_steps: applied steps before a growth, at least 1; 2000 in dynamic mode, not for fixed mode.
        growth_factor: factor of a growth, above 1; 2.0.
        backoff_factor: factor at an overflow, between 0 and 1; 0.5.
        min_scale, max_scale: the scale stays within them; 2**-14 and 2**32. A floor above 0 keeps S from reaching 0,
            where a clean step would divide 0 by 0; a finite ceiling keeps zero gradients from growing S to inf.
        hysteresis: overflows since the last growth before the scale falls, at least 1; 1.
        rule: a `rules.ScaleRule` instead of all of the above, `LogMaxScale` or one of your own.
        on_overflow: "skip", or "apply" to hand non-finite gradients to the inner optimizer.
        count_skipped_steps: whether a skipped step moves `iterations`, and with it learning-rate schedules and Adam's
            bias correction, as in tf.keras. False, as in Keras 3: they follow the applied steps.

    Raises:
        TypeError: `inner_optimizer` is no Keras optimizer; a number is a bool or text.
        ValueError: it is wrapped already; a number is out of range; an argument belongs to the inner optimizer.

    Model files and weights files hold everything once, and fit with and without the wrapper. A `tf.train.Checkpoint`
    (TensorFlow) holds it too; restored before `build`, as with any Keras 3 optimizer, values arrive at `build`. There
    the inner state lies under `inner_optimizer`: for a checkpoint of the bare optimizer, restore `inner_optimizer`.

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
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        *,
        rule: ScaleRule | None = None,
        on_overflow: str = "skip",
        count_skipped_steps: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_inner(inner_optimizer)
        if rule is None:
            rule = rule_from(dynamic, initial_scale, dynamic_growth_steps, kwargs)
        else:
            check_only_rule(dynamic, initial_scale, dynamic_growth_steps, kwargs)
        on_overflow = check_on_overflow(on_overflow)
        check_counting(count_skipped_steps, inner_optimizer)
        drop_inner_scaling(inner_optimizer)
        super(keras.optimizers.LossScaleOptimizer, self).__init__(learning_rate=0.0, name=name)
        self._warned: set[str] = set()
        self._loss_was_scaled = False
        self._scaled_gradients: list[Tensor] | None = None
        self._unscales_by_hand = False
        self._rule = rule
        self._on_overflow = on_overflow
        self._count_skipped_steps = count_skipped_steps
        self.scale_state: ScaleState | None = None  # scale, counters and tally as variables; None before `build`
        inner_optimizer._mpt_is_wrapped = True
        self.inner_optimizer = inner_optimizer

    @property
    def on_overflow(self) -> str:
        """What happens at non-finite gradients: "skip" or "apply"."""
        return self._on_overflow

    @property
    def count_skipped_steps(self) -> bool:
        """Whether a skipped step moves `iterations`."""
        return self._count_skipped_steps

    @property
    def variables(self) -> list[keras.Variable]:
        """The scale's own variables, then the inner optimizer's."""
        own = self.scale_state.variables if self.scale_state else []
        return [*own, *self.inner_optimizer.variables]

    def build(self, var_list: list[Any]) -> None:
        """Create the variables; `var_list` are the variables to train. A second call changes nothing.

        Raises ValueError for gradient accumulation under a `tf.distribute` strategy of several replicas, and together
        with `count_skipped_steps`.
        """
        if self.built:
            return
        check_counting(self.count_skipped_steps, self.inner_optimizer)
        self.scale_state = ScaleState(self.rule)
        if keras.backend.backend() == "tensorflow":
            from mpt_cli.precision import apply_tensorflow

            apply_tensorflow.check_accumulation(self.inner_optimizer)
            apply_tensorflow.track_in_checkpoints(self, self.scale_state)
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(var_list)
        self._trainable_variables = list(var_list)
        self.built = True

    def check_finite(self, grads: list[Tensor]) -> Tensor:
        """Boolean scalar: no inf or nan in any gradient."""
        return all_finite(grads)

    def measure(self, grads: list[Tensor], variables: list[Any], unscaled: bool = False) -> Measured:
        """Whether `grads` are finite and how large, scaled gradients of `variables` unless they are `unscaled`."""
        measured = measure(grads, variables)
        return Measured(measured.finite, measured.largest * self.loss_scale) if unscaled else measured

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """`apply` of pairs (gradient, variable); returns `iterations`, as tf.keras does."""
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(list(grads), list(variables))
        return self.iterations

    def apply(self, grads: list[Tensor], trainable_variables: list[Any] | None = None) -> None:
        """Unscale `grads` and hand them to the inner optimizer, or skip the step; then move the scale.

        Raises ValueError when every gradient is None, or in the cross-replica context of a `tf.distribute` strategy.
        """
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(f"Gradients and variables must match one to one. Received: {len(grads)} gradients for "
                             f"{len(variables)} variables. Pass the variables, or build the optimizer with them.")
        if all(g is None for g in grads):
            raise ValueError(f"No gradients provided for any variable: {[v.name for v in variables]}.")
        if not self.built:
            self.build(variables)
        self._apply_where_finite(grads, variables, self._take_unscaled(grads))

    def apply_inner(self, grads: list[Tensor], variables: list[Any], unscaled: bool) -> None:
        """Let the inner optimizer use `grads`, divided by the scale unless they are `unscaled` already."""
        if not unscaled:
            grads = unscale(grads, variables, self.loss_scale if self.scales else None)
        self.inner_optimizer.apply(grads, variables)

    def stateless_apply(
        self, optimizer_variables: list[Tensor], grads: list[Tensor], trainable_variables: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """`apply` as a pure function of values, for JAX: new values of the variables and of `self.variables`."""
        if keras.backend.backend() == "tensorflow":
            raise ValueError("stateless_apply is not supported with the TensorFlow backend. Use `apply`.")
        if not self.built:
            raise ValueError("`stateless_apply` needs a built optimizer: call `optimizer.build(trainable_variables)`.")
        from mpt_cli.precision import apply_jax

        variables = self._trainable_variables
        for name, received, own in (
            ("optimizer_variables", optimizer_variables, self.variables), ("grads", grads, variables),
            ("trainable_variables", trainable_variables, variables),
        ):  # fmt: skip
            if len(received) != len(own):
                raise ValueError(f"`{name}` must have one value for each of the {len(own)} variables. Received: "
                                 f"{len(received)}.")
        gradients = apply_jax.Gradients(list(grads), variables, self.measure(grads, variables))
        return apply_jax.stateless_apply(self, optimizer_variables, gradients, trainable_variables)

    def _apply_where_finite(self, grads: list[Tensor], variables: list[Any], unscaled: bool) -> None:
        if keras.backend.backend() == "tensorflow":
            from mpt_cli.precision import apply_tensorflow

            apply_tensorflow.apply(self, grads, variables, unscaled)
        else:
            from mpt_cli.precision import apply_jax

            apply_jax.apply(self, grads, variables, unscaled)
