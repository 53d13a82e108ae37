"""Combinations of keys that cannot work, or in which a key would be accepted and ignored. All are collected."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from mpt_cli.errors import Problem
from mpt_cli.settings.check_data import check_keras_dataset, check_synthetic
from mpt_cli.settings.check_expect import check_expect
from mpt_cli.settings.check_optimizer import (
    check_clipping,
    check_clipping_on_replicas,
    check_ema,
    check_ema_in_float8,
    check_schedule,
)
from mpt_cli.settings.check_references import check_builder, check_loader
from mpt_cli.settings.fault import check_fault, check_fault_replica
from mpt_cli.settings.keras_names import check_loss, check_metrics
from mpt_cli.settings.keys import default_of
from mpt_cli.settings.models import ResNet, Transformer
from mpt_cli.settings.schema import Settings

# Adam's beta_2 of 0.999 rounds to 1 in bfloat16 and its epsilon to 0 in effect in float16
_ADAM_FAMILY = ("adam", "adamw", "schedule_free_adamw", "adamax", "nadam", "lamb", "muon")


def check_combinations(settings: Settings, unreliable: set[str]) -> list[Problem]:
    """Every impossible combination; a check whose keys are already reported (`unreliable`) is left out."""
    return [
        problem
        for check, involved in _CHECKS
        if not any(_touches(key, other) for key in involved for other in unreliable)
        for problem in check(settings)
    ]


def _touches(key: str, other: str) -> bool:
    return key == other or key.startswith(other + ".") or other.startswith(key + ".")


def check_scale_bounds(settings: Settings) -> Iterator[Problem]:
    scale = settings.loss_scale
    if not scale.min_scale <= scale.max_scale:
        rule = f"must be <= loss_scale.max_scale, which is {scale.max_scale:g}."
        yield Problem("loss_scale.min_scale", rule, scale.min_scale)
    elif not scale.min_scale <= scale.initial_scale <= scale.max_scale:
        rule = f"must lie within loss_scale.min_scale={scale.min_scale:g} and max_scale={scale.max_scale:g}."
        yield Problem("loss_scale.initial_scale", rule, scale.initial_scale, "Move the bound if you mean it.")


def check_fixed_scale(settings: Settings) -> Iterator[Problem]:
    """A fixed scale never moves: keys that move it would be ignored."""
    scale = settings.loss_scale
    if scale.mode != "fixed":
        return
    for name in _STEP_COUNTING:
        if getattr(scale, name) != _default(scale, name):
            rule = "must be left out with loss_scale.mode=fixed: a fixed scale never moves."
            yield Problem(f"loss_scale.{name}", rule, getattr(scale, name), "Use loss_scale=dynamic.")


def check_logmax(settings: Settings) -> Iterator[Problem]:
    """LogMax has numbers of its own, and none of those that count steps."""
    scale = settings.loss_scale
    is_logmax = scale.mode == "logmax"
    for name in _STEP_COUNTING if is_logmax else _LOGMAX:
        if getattr(scale, name) != _default(scale, name):
            why, use = ("it follows the gradients", "dynamic") if is_logmax else ("only logmax uses it", "logmax")
            rule = f"must be left out with loss_scale.mode={scale.mode}: {why}."
            yield Problem(f"loss_scale.{name}", rule, getattr(scale, name), f"Use loss_scale={use}.")


def check_on_overflow(settings: Settings) -> Iterator[Problem]:
    scale = settings.loss_scale
    if scale.on_overflow != "skip" and scale.mode != "fixed":
        rule = f"must be skip with loss_scale.mode={scale.mode}."
        yield Problem("loss_scale.on_overflow", rule, scale.on_overflow, "Use loss_scale=fixed.")


def check_schedules_follow(settings: Settings) -> Iterator[Problem]:
    scale, accumulated = settings.loss_scale, settings.optimizer.gradient_accumulation_steps
    if scale.schedules_follow == "applied_steps":
        return
    if scale.mode == "none" or scale.on_overflow == "apply":
        chosen = "mode=none" if scale.mode == "none" else "on_overflow=apply"
        rule = f"must be left out with loss_scale.{chosen}: no step is skipped."
        yield Problem("loss_scale.schedules_follow", rule, scale.schedules_follow)
    if accumulated is not None:
        rule = (f"must be applied_steps with optimizer.gradient_accumulation_steps={accumulated}: a skipped step that "
                "counts would end a group of gradients early.")
        yield Problem("loss_scale.schedules_follow", rule, scale.schedules_follow)


def check_skip_window(settings: Settings) -> Iterator[Problem]:
    scale = settings.loss_scale
    if scale.max_skip_rate is None and scale.skip_rate_window != _default(scale, "skip_rate_window"):
        rule = "must be left out when loss_scale.max_skip_rate is null: nothing uses it."
        yield Problem("loss_scale.skip_rate_window", rule, scale.skip_rate_window)


def check_rollback(settings: Settings) -> Iterator[Problem]:
    trainer = settings.trainer
    if trainer.on_unhealthy == "rollback":
        return
    for name in ("max_rollbacks", "rollback_learning_rate_factor", "rollback_scale_factor"):
        if getattr(trainer, name) != _default(trainer, name):
            rule = "must be left out with trainer.on_unhealthy=stop: nothing uses it."
            yield Problem(f"trainer.{name}", rule, getattr(trainer, name), "Set trainer.on_unhealthy=rollback.")


def check_float8(settings: Settings) -> Iterator[Problem]:
    policy = settings.policy
    if policy.float8 and not policy.name.startswith("mixed_"):
        rule = f"must be false with policy.name={policy.name}: float8 works on top of a mixed policy."
        yield Problem("policy.float8", rule, True, "Use policy=float8_mixed_bfloat16 or float8_mixed_float16.")


def check_half_variables(settings: Settings) -> Iterator[Problem]:
    """Weights in half precision under an Adam: bfloat16 never moves, float16 takes steps of 1.5 or none."""
    name, optimizer = settings.policy.name, settings.optimizer.name
    if name in ("float16", "bfloat16") and optimizer in _ADAM_FAMILY:
        happens = "the weights would never move" if name == "bfloat16" else "steps would be about 1.5 or nothing"
        rule = f"must not be {name} with optimizer={optimizer}: with variables in {name} {happens}."
        yield Problem("policy.name", rule, name, f"Use policy.name=mixed_{name}, or optimizer=sgd.")


def check_distribution(settings: Settings) -> Iterator[Problem]:
    chosen, backend = settings.distribute, settings.backend.name
    needed = {"mirrored": "tensorflow", "data_parallel": "jax"}.get(chosen.name, backend)
    other = {"mirrored": "data_parallel", "data_parallel": "mirrored"}.get(chosen.name)
    if backend != needed:
        rule = f"{chosen.name} must have backend={needed}, here it is {backend}."
        yield Problem("distribute.name", rule, chosen.name, f"Use backend={needed} or distribute={other}.")
    if chosen.name == "none" and chosen.devices is not None:
        rule = "must be left out with distribute=none."
        yield Problem("distribute.devices", rule, chosen.devices, "Use distribute=mirrored or data_parallel.")
    if chosen.name != "data_parallel" and chosen.processes is not None:
        rule = f"must be left out with distribute={chosen.name}."
        yield Problem("distribute.processes", rule, chosen.processes, "Use distribute=data_parallel backend=jax.")
    if (chosen.processes or 1) > 1:
        yield from check_several_processes(settings)


def check_several_processes(settings: Settings) -> Iterator[Problem]:
    """What must hold where several processes train one model, whoever started them."""
    if settings.trainer.on_unhealthy == "rollback":
        rule = "must be stop with several processes: only the first has the checkpoints to go back to."
        yield Problem("trainer.on_unhealthy", rule, "rollback", "Resume the run after it has stopped.")


def check_accumulation(settings: Settings) -> Iterator[Problem]:
    steps = settings.optimizer.gradient_accumulation_steps
    if settings.distribute.name == "mirrored" and steps is not None:
        rule = "must be null with distribute=mirrored: Keras cannot accumulate there."
        yield Problem("optimizer.gradient_accumulation_steps", rule, steps, "Raise trainer.batch_size instead.")


def check_model_shape(settings: Settings) -> Iterator[Problem]:
    model = settings.model
    if isinstance(model, Transformer) and model.width % model.heads:
        yield Problem("model.width", f"must be a multiple of model.heads={model.heads}.", model.width)
    if isinstance(model, ResNet) and len(model.filters) != len(model.blocks):
        rule = f"must have as many entries as model.filters={model.filters}, one per stage."
        yield Problem("model.blocks", rule, model.blocks)
    elif isinstance(model, ResNet) and not model.filters:
        yield Problem("model.filters", "must have at least one stage.", model.filters)


def check_steps_per_execution(settings: Settings) -> Iterator[Problem]:
    steps = settings.trainer.steps_per_execution
    if steps != "auto" and not (isinstance(steps, int) and steps >= 1):
        yield Problem("trainer.steps_per_execution", "must be auto or a whole number >= 1.", steps)


def check_recipe_name(settings: Settings) -> Iterator[Problem]:
    name = settings.recipe
    if not name.strip() or name in (".", "..") or set(name) & set('/\\:*?"<>|\0\n'):
        yield Problem("recipe", "must be fit for a folder name: it names the folder under runs/.", name)


def _default(section: Any, name: str) -> Any:
    return next(default_of(declared) for declared in fields(section) if declared.name == name)


_STEP_COUNTING = ("growth_steps", "growth_factor", "backoff_factor", "hysteresis")
_LOGMAX = ("log_max", "beta1", "beta2", "deviations")
_SCALE_MOVES = tuple(f"loss_scale.{name}" for name in _STEP_COUNTING)
_CHECKS: tuple[tuple[Callable[[Settings], Iterator[Problem]], tuple[str, ...]], ...] = (
    (check_recipe_name, ("recipe",)),
    (check_scale_bounds, ("loss_scale.min_scale", "loss_scale.max_scale", "loss_scale.initial_scale")),
    (check_fixed_scale, ("loss_scale.mode", *_SCALE_MOVES)),
    (check_logmax, ("loss_scale.mode", *_SCALE_MOVES, *(f"loss_scale.{name}" for name in _LOGMAX))),
    (check_on_overflow, ("loss_scale.mode", "loss_scale.on_overflow")),
    (check_schedules_follow, ("loss_scale.schedules_follow", "loss_scale.mode", "loss_scale.on_overflow",
                              "optimizer.gradient_accumulation_steps")),
    (check_skip_window, ("loss_scale.max_skip_rate", "loss_scale.skip_rate_window")),
    (check_rollback, ("trainer",)),
    (check_float8, ("policy.name", "policy.float8")),
    (check_half_variables, ("policy.name", "optimizer.name")),
    (check_distribution, ("distribute.name", "distribute.devices", "backend.name")),
    (check_accumulation, ("distribute.name", "optimizer.gradient_accumulation_steps")),
    (check_model_shape, ("model",)),
    (check_builder, ("model.builder",)),
    (check_loader, ("data.loader",)),
    (check_loss, ("trainer.loss",)),
    (check_metrics, ("trainer.metrics",)),
    (check_steps_per_execution, ("trainer.steps_per_execution",)),
    (check_clipping, ("optimizer.clipnorm", "optimizer.clipvalue", "optimizer.global_clipnorm")),
    (check_clipping_on_replicas, ("distribute.name", "optimizer.clipnorm", "optimizer.clipvalue",
                                  "optimizer.global_clipnorm")),
    (check_ema, ("optimizer.use_ema", "optimizer.ema_momentum", "optimizer.ema_overwrite_frequency")),
    (check_ema_in_float8, ("policy", "optimizer.use_ema", "optimizer.ema_overwrite_frequency", "backend.name")),
    (check_schedule, ("optimizer.schedule",)),
    (check_synthetic, ("data",)),
    (check_keras_dataset, ("data",)),
    (check_fault, ("fault", "trainer.feed")),
    (check_fault_replica, ("fault.replica", "fault.place", "distribute")),
    (check_expect, ("expect",)),
)
