"""The arguments of `LossScaleOptimizer`: what is wrong with them, and the rule they stand for."""

import dataclasses
import warnings
from typing import Any

import keras

from mpt_cli.precision.logmax import LogMaxScale
from mpt_cli.precision.rules import DynamicScale, FixedScale, NoScale, ScaleRule

RULES: dict[str, Any] = {rule.__name__: rule for rule in (FixedScale, NoScale, DynamicScale, LogMaxScale)}
INNER_DEFAULTS = {
    "weight_decay": None, "clipnorm": None, "global_clipnorm": None, "clipvalue": None, "use_ema": False,
    "ema_momentum": 0.99, "ema_overwrite_frequency": None, "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}  # fmt: skip
MOVING_ARGUMENTS = {"growth_factor", "backoff_factor", "min_scale", "max_scale", "hysteresis"}


def check_inner(inner: Any) -> None:
    """TypeError or ValueError for what can't be wrapped."""
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise TypeError(f"`inner_optimizer` must be a keras.optimizers.Optimizer. Received: {inner!r}.")
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(f"`inner_optimizer` must not be a LossScaleOptimizer itself. Received: {inner!r}.")
    if getattr(inner, "_mpt_is_wrapped", False):
        raise ValueError(f"`inner_optimizer` is wrapped by another LossScaleOptimizer already. Received: {inner!r}.")


def drop_inner_scaling(inner: Any) -> None:
    """Set `loss_scale_factor` of the inner optimizer to None, as Keras does, but say so."""
    if inner.loss_scale_factor is not None:
        warnings.warn(f"`loss_scale_factor={inner.loss_scale_factor}` of the inner optimizer is ignored: gradients "
                      "would be divided twice. For a fixed scale give dynamic=False and initial_scale.", stacklevel=3)
        inner.loss_scale_factor = None


def check_on_overflow(on_overflow: Any) -> str:
    if on_overflow not in ("skip", "apply"):
        raise ValueError(f"`on_overflow` must be 'skip' or 'apply'. Received: on_overflow={on_overflow!r}.")
    return str(on_overflow)


def check_counting(count_skipped_steps: Any, inner: Any) -> None:
    """TypeError or ValueError for `count_skipped_steps` that is no bool, or that `inner` has no use for."""
    if not isinstance(count_skipped_steps, bool):
        raise TypeError("`count_skipped_steps` must be True or False. Received: "
                        f"count_skipped_steps={count_skipped_steps!r}.")
    if count_skipped_steps and inner.gradient_accumulation_steps:
        raise ValueError("`count_skipped_steps` does not go with `gradient_accumulation_steps`: the inner optimizer "
                         "would end a group of gradients early. Received: gradient_accumulation_steps="
                         f"{inner.gradient_accumulation_steps}.")


def rule_from(dynamic: Any, initial_scale: Any, growth_steps: Any, kwargs: dict[str, Any]) -> ScaleRule:
    """The rule that the constructor's arguments stand for; raises as its docstring says."""
    if not isinstance(dynamic, bool):
        raise TypeError(f"`dynamic` must be True or False. Received: dynamic={dynamic!r}.")
    moving = _moving_arguments(kwargs)
    if dynamic:
        return DynamicScale(2.0**15 if initial_scale is None else initial_scale,
                            2000 if growth_steps is None else growth_steps, **moving)
    given = sorted(moving) + (["dynamic_growth_steps"] if growth_steps is not None else [])
    if given:
        raise ValueError(f"`{given[0]}` must not be given when `dynamic` is False: a fixed scale does not move.")
    if initial_scale is None:
        raise ValueError("`initial_scale` must be given when `dynamic` is False.")
    return FixedScale(initial_scale)


def check_only_rule(dynamic: Any, initial_scale: Any, growth_steps: Any, kwargs: dict[str, Any]) -> None:
    """ValueError for arguments that a given `rule` would silently overrule."""
    given = sorted(_moving_arguments(kwargs)) + [
        name for name, value, default in (("dynamic", dynamic, True), ("initial_scale", initial_scale, None),
                                          ("dynamic_growth_steps", growth_steps, None)) if value is not default
    ]
    if given:
        raise ValueError(f"`{given[0]}` must not be given beside `rule`, which has its own.")


def _moving_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a moving scale; defaults of inner arguments, which old files of Keras hold, are left out."""
    for name, value in kwargs.items():
        if name in INNER_DEFAULTS and value != INNER_DEFAULTS[name]:
            raise ValueError(f"LossScaleOptimizer does not support `{name}`. Instead, set `{name}` on the "
                             f"`inner_optimizer`. Received: {name}={value!r}.")
    moving = {name: value for name, value in kwargs.items() if name not in INNER_DEFAULTS}
    unknown = [name for name in moving if name not in MOVING_ARGUMENTS]
    if unknown:
        raise ValueError(f"LossScaleOptimizer does not support arguments: `{'`, `'.join(unknown)}`.")
    return moving


def config_of(rule: Any) -> dict[str, Any]:
    """Constructor arguments that make `rule` again, under Keras's names where Keras has one."""
    if type(rule) is FixedScale:
        return {"dynamic": False, "initial_scale": rule.initial_scale}
    if type(rule) is DynamicScale:
        config = dataclasses.asdict(rule)
        return {"dynamic": True, "dynamic_growth_steps": config.pop("growth_steps"), **config}
    return {"rule": {"class_name": type(rule).__name__, "config": dataclasses.asdict(rule)}}


def rule_from_config(config: dict[str, Any], custom_objects: Any) -> ScaleRule:
    """The rule that `config_of` described under "rule"; ValueError for a class that isn't known here."""
    known = {**RULES, **(custom_objects or {}), **keras.saving.get_custom_objects()}
    name = config["class_name"]
    if name not in known:
        raise ValueError(f"Unknown scale rule {name!r}. Pass custom_objects={{{name!r}: its class}}.")
    return known[name](**config["config"])  # type: ignore[no-any-return]
