"""`LossScaleOptimizer`: loss scaling around any Keras optimizer, dynamic or fixed."""

import dataclasses
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.delegation import InnerDelegation
from mpt_cli.precision.finite import all_finite
from mpt_cli.precision.rules import RULES, DynamicScale, FixedScale, ScaleRule, check_count
from mpt_cli.precision.scale_state import ScaleState
from mpt_cli.precision.tf_keras_api import ScalingByHand

Tensor = Any
INNER_DEFAULTS = {
    "weight_decay": None, "clipnorm": None, "global_clipnorm": None, "clipvalue": None, "use_ema": False,
    "ema_momentum": 0.99, "ema_overwrite_frequency": None, "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}  # fmt: skip
MOVING_ARGUMENTS = {"growth_factor", "backoff_factor", "min_scale", "max_scale", "hysteresis"}
KERAS_OWN_VARIABLES = 4  # Keras's wrapper stores its iteration, rate, counter and scale before the inner variables


def _tally(name: str, meaning: str) -> property:
    def read(self: "LossScaleOptimizer") -> Tensor:
        return self.scale_state.count(name) if self.scale_state else ops.zeros((), "int32")

    return property(read, doc=f"{meaning}, int32 scalar.")


@keras.saving.register_keras_serializable("mpt")
class LossScaleOptimizer(ScalingByHand, InnerDelegation, keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
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
        growth_factor: factor of a growth, above 1.
        backoff_factor: factor at an overflow, between 0 and 1.
        min_scale, max_scale: the scale stays within them. A floor above 0 keeps S from reaching 0, where a clean step
            would divide 0 by 0; a finite ceiling keeps zero gradients from growing S to inf.
        hysteresis: overflows since the last growth before the scale falls, at least 1.
        rule: a `rules.ScaleRule` of your own instead of all of the above.
        on_overflow: "skip", or "apply" to hand non-finite gradients to the inner optimizer.

    Raises:
        TypeError: `inner_optimizer` is no Keras optimizer; a number is a bool or text.
        ValueError: it is wrapped already; a number is out of range; an argument belongs to the inner optimizer.

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

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        dynamic: bool = True,
        initial_scale: float | None = None,
        dynamic_growth_steps: int | None = None,
        *,
        rule: ScaleRule | None = None,
        on_overflow: str = "skip",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check_inner(inner_optimizer)
        if on_overflow not in ("skip", "apply"):
            raise ValueError(f"`on_overflow` must be 'skip' or 'apply'. Received: on_overflow={on_overflow!r}.")
        rule = rule or _rule_from(dynamic, initial_scale, dynamic_growth_steps, kwargs)
        super(keras.optimizers.LossScaleOptimizer, self).__init__(learning_rate=0.0, name=name)
        self._warned: set[str] = set()
        self._loss_was_scaled = False
        self._scaled_gradients = None
        self._rule = rule
        self._on_overflow = on_overflow
        self.scale_state: ScaleState | None = None  # scale, counters and tally as variables; None before `build`
        inner_optimizer._mpt_is_wrapped = True
        self.inner_optimizer = inner_optimizer

    @property
    def rule(self) -> ScaleRule:
        """How the scale moves, a frozen value."""
        return self._rule

    @property
    def on_overflow(self) -> str:
        """What happens at non-finite gradients: "skip" or "apply"."""
        return self._on_overflow

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return not isinstance(self.rule, FixedScale)

    @property
    def initial_scale(self) -> float:
        """The scale before the first step."""
        return self.rule.initial_scale

    @property
    def loss_scale(self) -> Tensor:
        """The current scale, float32 scalar."""
        return self._value("scale")

    @property
    def dynamic_scale(self) -> Any:
        """Keras 3's name for the variable behind `loss_scale`."""
        return self.scale_state.scale if self.scale_state else self.loss_scale

    @property
    def step_counter(self) -> Any:
        """Keras 3's name for the variable behind `dynamic_counter`."""
        return self.scale_state.counter if self.scale_state else self._value("counter")

    @property
    def dynamic_counter(self) -> Tensor | None:
        """Applied steps since the scale last changed, int32 scalar; None in fixed mode."""
        return self._value("counter") if self.dynamic else None

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Applied steps before a growth, None in fixed mode. Setting it takes effect in compiled steps too."""
        if "growth_steps" not in self.rule.initial():
            return None
        return int(self._value("growth_steps"))

    @dynamic_growth_steps.setter
    def dynamic_growth_steps(self, value: int) -> None:
        if not isinstance(self.rule, DynamicScale):
            raise ValueError("`dynamic_growth_steps` can't be set: this optimizer's loss scale does not grow by steps.")
        self._rule = dataclasses.replace(self.rule, growth_steps=check_count("dynamic_growth_steps", value))
        if self.scale_state:
            self.scale_state.by_name["growth_steps"].assign(value)

    seen_steps = _tally("seen", "Steps so far, applied and skipped")
    applied_steps = _tally("applied", "Steps whose gradients the inner optimizer used")
    skipped_steps = _tally("skipped", "Steps that changed nothing because gradients were not finite")
    consecutive_skips = _tally("consecutive_skips", "Skipped steps since the last applied one")
    growths = _tally("growths", "How often the scale rose")
    backoffs = _tally("backoffs", "How often the scale fell")

    def _value(self, name: str) -> Tensor:
        if self.scale_state:
            return ops.copy(self.scale_state.by_name[name])
        return ops.convert_to_tensor(self.rule.initial()[name])

    @property
    def variables(self) -> list[keras.Variable]:
        """The scale's own variables, then the inner optimizer's."""
        own = self.scale_state.variables if self.scale_state else []
        return own + self.inner_optimizer.variables

    def build(self, var_list: list[Any]) -> None:
        """Create the variables; `var_list` are the variables to train."""
        self.scale_state = ScaleState(self.rule)
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(var_list)
        self._trainable_variables = list(var_list)
        self.built = True

    def check_finite(self, grads: list[Tensor]) -> Tensor:
        """Boolean scalar: no inf or nan in any gradient."""
        return all_finite(grads)

    def apply(self, grads: list[Tensor], trainable_variables: list[Any] | None = None) -> None:
        """Unscale `grads` and hand them to the inner optimizer, or skip the step; then move the scale.

        Raises ValueError when every gradient is None, or in the cross-replica context of a `tf.distribute` strategy.
        """
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if all(g is None for g in grads):
            raise ValueError(f"No gradients provided for any variable: {[v.name for v in variables]}.")
        if not self.built:
            self.build(variables)
        self._apply_where_finite(grads, variables, self._take_unscaled(grads))

    def apply_inner(self, grads: list[Tensor], variables: list[Any], unscaled: bool) -> None:
        """Let the inner optimizer use `grads`, divided by the scale unless they are `unscaled` already."""
        self.inner_optimizer.apply(grads if unscaled else self.unscale(grads, variables), variables)

    def stateless_apply(
        self, optimizer_variables: list[Tensor], grads: list[Tensor], trainable_variables: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """`apply` as a pure function of values, for JAX: new values of the variables and of `self.variables`."""
        if not self.built:
            raise ValueError("`stateless_apply` needs a built optimizer: call `optimizer.build(trainable_variables)`.")
        from mpt_cli.precision import apply_jax

        finite = self.check_finite(grads)
        return apply_jax.stateless_apply(self, optimizer_variables, grads, trainable_variables, finite)

    def _apply_where_finite(self, grads: list[Tensor], variables: list[Any], unscaled: bool) -> None:
        if keras.backend.backend() == "tensorflow":
            from mpt_cli.precision import apply_tensorflow

            apply_tensorflow.apply(self, grads, variables, unscaled)
        else:
            from mpt_cli.precision import apply_jax

            apply_jax.apply(self, grads, variables, unscaled)

    def __dir__(self) -> list[str]:
        # Keras saves what `dir` shows. The inner variables are saved below as the plain optimizer would save them, so
        # that files fit with and without the wrapper; showing `inner_optimizer` would store them a second time.
        return [name for name in super().__dir__() if name != "inner_optimizer"]

    def save_own_variables(self, store: Any) -> None:
        """Store the inner variables under the names the bare inner optimizer uses."""
        self.inner_optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Read what this class, the bare inner optimizer or Keras's own wrapper stored."""
        extra = len(store.keys()) - len(self.inner_optimizer.variables)
        if extra != KERAS_OWN_VARIABLES or self.scale_state is None:
            self.inner_optimizer.load_own_variables(store)
            return
        self.scale_state.counter.assign(store["2"])
        self.scale_state.scale.assign(store["3"])
        shifted = {str(i): store[str(i + extra)] for i in range(len(self.inner_optimizer.variables))}
        self.inner_optimizer.load_own_variables(shifted)

    def get_config(self) -> dict[str, Any]:
        """Everything `from_config` needs, JSON-serialisable."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "on_overflow": self.on_overflow,
            "rule": {"class_name": type(self.rule).__name__, "config": dataclasses.asdict(self.rule)},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "LossScaleOptimizer":
        """Build from `get_config` of this class or of Keras's wrapper; `config` is left as it is."""
        config = dict(config)
        inner = keras.saving.deserialize_keras_object(config.pop("inner_optimizer"), custom_objects=custom_objects)
        if "rule" in config:
            rule = config["rule"]
            config["rule"] = RULES[rule["class_name"]](**rule["config"])
        return cls(inner, **config)


def _check_inner(inner: Any) -> None:
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise TypeError(f"`inner_optimizer` must be a keras.optimizers.Optimizer. Received: {inner!r}.")
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(f"`inner_optimizer` must not be a LossScaleOptimizer itself. Received: {inner!r}.")
    if getattr(inner, "_mpt_is_wrapped", False):
        raise ValueError(f"`inner_optimizer` is wrapped by another LossScaleOptimizer already. Received: {inner!r}.")
    if inner.loss_scale_factor is not None:
        raise ValueError("`inner_optimizer` must not scale by itself: gradients would be divided twice. Received: "
                         f"loss_scale_factor={inner.loss_scale_factor}. Leave it at None.")


def _rule_from(dynamic: Any, initial_scale: Any, growth_steps: Any, kwargs: dict[str, Any]) -> ScaleRule:
    if not isinstance(dynamic, bool):
        raise TypeError(f"`dynamic` must be True or False. Received: dynamic={dynamic!r}.")
    for name, value in kwargs.items():
        if name in INNER_DEFAULTS and value != INNER_DEFAULTS[name]:
            raise ValueError(f"LossScaleOptimizer does not support `{name}`. Instead, set `{name}` on the "
                             f"`inner_optimizer`. Received: {name}={value!r}.")
    moving = {name: value for name, value in kwargs.items() if name not in INNER_DEFAULTS}
    unknown = sorted(set(moving) - MOVING_ARGUMENTS)
    if unknown:
        raise ValueError(f"LossScaleOptimizer does not support arguments: `{'`, `'.join(unknown)}`.")
    if dynamic:
        return DynamicScale(2.0**15 if initial_scale is None else initial_scale,
                            2000 if growth_steps is None else growth_steps, **moving)
    given = sorted(moving) + (["dynamic_growth_steps"] if growth_steps is not None else [])
    if given:
        raise ValueError(f"`{given[0]}` must not be given when `dynamic` is False: a fixed scale does not move.")
    if initial_scale is None:
        raise ValueError("`initial_scale` must be given when `dynamic` is False.")
    return FixedScale(initial_scale)
