"""From `optimizer.*` to a Keras optimizer, not yet wrapped in loss scaling.

Keras evaluates a schedule at its counter of applied batches. With gradient accumulation that counter still moves with
every batch, not with every update, so warm-up and decay are counted in batches throughout and end with the run.
The moving average (EMA) is likewise taken after every batch, while `ema_overwrite_frequency` counts updates.
"""

from dataclasses import fields
from typing import Any

import keras
from keras.optimizers import schedules

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.optimizers import OPTIMIZERS, OptimizerSettings, Schedule

KEY = "optimizer.schedule"


def build_optimizer(settings: OptimizerSettings, total_steps: int | None) -> keras.optimizers.Optimizer:
    """The Keras optimizer of that name with its arguments; `total_steps` are the batches of the run, None if unknown.

    ConfigError where the schedule doesn't fit the run, or where this Keras is too old for the optimizer.
    """
    class_name = OPTIMIZERS[settings.name].__name__
    if not hasattr(keras.optimizers, class_name):
        raise ConfigError(Problem("optimizer.name", f"Keras {keras.__version__} has no {class_name}.", settings.name,
                                  "Choose another, or a newer Keras."))
    arguments = {field.name: getattr(settings, field.name) for field in fields(settings)}
    del arguments["name"], arguments["schedule"]
    arguments["learning_rate"] = build_learning_rate(settings.schedule, float(settings.learning_rate), total_steps)
    return getattr(keras.optimizers, class_name)(**arguments)


def set_learning_rate(optimizer: Any, settings: OptimizerSettings, total_steps: int | None, factor: float) -> bool:
    """Give a built optimizer `factor` times the learning rate of `settings`, the whole of its schedule included.

    Returns whether steps compiled before must be compiled again: a schedule is part of the program.
    """
    rate = build_learning_rate(settings.schedule, float(settings.learning_rate) * factor, total_steps)
    optimizer.learning_rate = rate
    return not isinstance(rate, float)


def warn_of_learning_rate(settings: OptimizerSettings) -> list[str]:
    """A sentence where the learning rate is 0 from the first step to the last; a schedule may well end at 0."""
    values = settings.schedule.values if settings.schedule.name == "piecewise" else None
    if settings.learning_rate > 0 and (values is None or any(values)):
        return []
    what = "optimizer.learning_rate=0" if settings.learning_rate == 0 else "optimizer.schedule.values are all 0"
    return [f"{what}: no weight moves in this run, whatever its losses and verdict say."]


def build_learning_rate(
    schedule: Schedule, learning_rate: float, total_steps: int | None
) -> float | schedules.LearningRateSchedule:
    """A constant as a float, which can be set later; anything else as a Keras schedule.

    >>> float(build_learning_rate(Schedule(warmup_steps=4), 1.0, None)(1))
    0.25
    """
    if schedule.name == "constant" and not schedule.warmup_steps:
        return learning_rate
    return _BUILDERS[schedule.name](schedule, learning_rate, total_steps)


def _warmup(schedule: Schedule, learning_rate: float, total_steps: int | None) -> schedules.LearningRateSchedule:
    # A cosine that ends where it starts: constant after the warm-up, without a schedule class of our own in the file.
    return schedules.CosineDecay(0.0, decay_steps=1, alpha=1.0, warmup_target=learning_rate,
                                 warmup_steps=schedule.warmup_steps)


def _cosine(schedule: Schedule, learning_rate: float, total_steps: int | None) -> schedules.LearningRateSchedule:
    decay_steps = schedule.decay_steps or _steps_after_warmup(schedule, total_steps)
    alpha = schedule.final_factor or 0.0
    if not schedule.warmup_steps:
        return schedules.CosineDecay(learning_rate, decay_steps, alpha)
    return schedules.CosineDecay(0.0, decay_steps, alpha, warmup_target=learning_rate,
                                 warmup_steps=schedule.warmup_steps)


def _steps_after_warmup(schedule: Schedule, total_steps: int | None) -> int:
    if total_steps is None:
        raise ConfigError(Problem(
            f"{KEY}.decay_steps", "must be given where the length of the run isn't known in advance.", None,
            "Set it, or trainer.max_steps."))
    if not schedule.warmup_steps < total_steps:
        raise ConfigError(Problem(
            f"{KEY}.warmup_steps", f"must be below the {total_steps} steps of the run.", schedule.warmup_steps,
            f"Lower it, train longer, or set {KEY}.decay_steps."))
    return total_steps - schedule.warmup_steps


def _exponential(schedule: Schedule, learning_rate: float, total_steps: int | None) -> schedules.LearningRateSchedule:
    return schedules.ExponentialDecay(learning_rate, schedule.decay_steps, schedule.decay_rate,
                                      staircase=bool(schedule.staircase))


def _piecewise(schedule: Schedule, learning_rate: float, total_steps: int | None) -> schedules.LearningRateSchedule:
    values = [learning_rate * value for value in schedule.values or []]
    return schedules.PiecewiseConstantDecay(schedule.boundaries, values)


_BUILDERS = {"constant": _warmup, "cosine": _cosine, "exponential": _exponential, "piecewise": _piecewise}
