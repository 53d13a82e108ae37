"""From `loss_scale.*` and a built model to the optimizer that scales the loss, and the words for it."""

from typing import Any

from mpt_cli.precision import (
    DynamicScale,
    FixedScale,
    LogMaxScale,
    LossScaleOptimizer,
    NoScale,
    ScaleRule,
    computes_in_float16,
)
from mpt_cli.settings.schema import LossScale
from mpt_cli.telemetry.console.words import scale_words
from mpt_cli.telemetry.records import Scaling


def resolve_scaling(settings: LossScale, model: Any) -> Scaling:
    """What `mode` comes to for this model: `auto` is dynamic where anything computes in float16, none otherwise."""
    mode = settings.mode
    if mode == "auto":
        mode = "dynamic" if computes_in_float16(model) else "none"
    if mode == "none":
        return Scaling(is_needed=computes_in_float16(model))
    return Scaling(
        mode=mode,
        initial_scale=settings.initial_scale,
        growth_steps=settings.growth_steps if mode == "dynamic" else None,
        min_scale=settings.initial_scale if mode == "fixed" else settings.min_scale,
        on_overflow=settings.on_overflow,
        is_needed=computes_in_float16(model),
    )


def wrap_optimizer(inner: Any, settings: LossScale, scaling: Scaling) -> LossScaleOptimizer:
    """`inner` in loss scaling. No scaling is a rule that applies everything: one path for all modes."""
    if scaling.mode == "none":
        return LossScaleOptimizer(inner, rule=NoScale(), on_overflow="apply")
    on_overflow = "apply" if settings.on_overflow == "apply" else "skip"
    return LossScaleOptimizer(
        inner, rule=_rule(settings, scaling.mode), on_overflow=on_overflow,
        count_skipped_steps=settings.schedules_follow == "all_steps",
    )  # fmt: skip


def _rule(settings: LossScale, mode: str) -> ScaleRule:
    if mode == "dynamic":
        return DynamicScale(
            settings.initial_scale, settings.growth_steps, settings.growth_factor, settings.backoff_factor,
            settings.min_scale, settings.max_scale, settings.hysteresis,
        )  # fmt: skip
    if mode == "logmax":
        return LogMaxScale(
            settings.initial_scale, settings.log_max, settings.beta1, settings.beta2, settings.deviations,
            settings.min_scale, settings.max_scale,
        )  # fmt: skip
    return FixedScale(settings.initial_scale)


def describe_scaling(scaling: Scaling, model: Any) -> str:
    """One line for the header: the mode, its numbers, and why."""
    needed = computes_in_float16(model)
    if scaling.mode == "none":
        return "none, though layers compute in float16" if needed else "none (nothing computes in float16)"
    scale = scale_words(scaling.initial_scale)
    if scaling.mode == "fixed":
        return f"fixed at {scale}, overflow steps are {'applied' if scaling.on_overflow == 'apply' else 'skipped'}"
    if scaling.mode == "logmax":
        return f"logmax from {scale}, follows the largest gradient"
    return f"dynamic from {scale}, grows after {scaling.growth_steps} applied steps"


def warn_of_scaling(scaling: Scaling, model: Any) -> list[str]:
    """What is unusual about scaling or not scaling this model; empty where nothing is."""
    needed = computes_in_float16(model)
    if needed and scaling.mode == "none":
        return ["loss_scale.mode=none: layers compute in float16, where gradients below 2^-24 become 0. "
                "loss_scale=dynamic keeps them."]
    if not needed and scaling.mode != "none":
        return [f"loss_scale.mode={scaling.mode} has no use here: nothing computes in float16. It changes no result "
                "and costs a little; loss_scale=auto leaves it out."]
    return []
