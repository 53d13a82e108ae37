"""What `model.compile` is given: loss and metrics that compute in float32, and the optimizer in its loss scaling.

Losses and metrics cast predictions up themselves, so that neither a float16 logit nor a mean over many examples loses
bits; a float64 model keeps float64. Keras evaluates a schedule at its counter of applied batches. With gradient
accumulation that counter still moves with every batch, not with every update, so warm-up and decay are counted in
batches throughout and end with the run. The moving average (EMA) is likewise taken after every batch, while
`ema_overwrite_frequency` counts updates.
"""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import keras
from keras.optimizers import schedules

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision import LossScaleOptimizer, Policy, computes_in_float16, head_layers
from mpt_cli.settings.loss_scale import LossScaleSettings
from mpt_cli.settings.references import canonical_name, no_such_keras_name
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.settings.variants import OPTIMIZERS, OptimizerSettings, Schedule
from mpt_cli.telemetry.format import format_scale
from mpt_cli.telemetry.records import Scaling

PROBABILITIES = ("softmax", "sigmoid")
NEED_PROBABILITIES = (
    "KLDivergence", "CategoricalGeneralizedCrossEntropy", "Dice", "Tversky", "Precision", "Recall", "BinaryIoU",
    "TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives",
)  # and have no from_logits of their own
ACCURACY_OF_LOSS = {
    keras.losses.SparseCategoricalCrossentropy: keras.metrics.SparseCategoricalAccuracy,
    keras.losses.CategoricalCrossentropy: keras.metrics.CategoricalAccuracy,
    keras.losses.CategoricalFocalCrossentropy: keras.metrics.CategoricalAccuracy,
    keras.losses.CategoricalHinge: keras.metrics.CategoricalAccuracy,
    keras.losses.BinaryCrossentropy: keras.metrics.BinaryAccuracy,
    keras.losses.BinaryFocalCrossentropy: keras.metrics.BinaryAccuracy,
}


@dataclass(frozen=True)
class LossAndMetrics:
    """What is minimised, and what is shown beside it."""

    loss: keras.losses.Loss
    metrics: list[keras.metrics.Metric]


@dataclass(frozen=True)
class _LossContext:
    """What decides how a named loss or metric is made."""

    task: str
    outputs: int
    from_logits: bool
    dtype: str


def build_loss_and_metrics(trainer: TrainerSettings, model: keras.Model, task: str, policy_name: str) -> LossAndMetrics:
    """The loss and metrics of a built model; ConfigError for names that Keras doesn't have.

    `auto` is cross-entropy over integer labels with "accuracy" (binary where the model has a single output), or mean
    squared error with "mean_absolute_error".
    """
    from_logits = gives_logits(model) if trainer.from_logits == "auto" else bool(trainer.from_logits)
    context = _LossContext(task, _count_outputs(model), from_logits, Policy(policy_name).loss_dtype)
    loss = _build_loss(trainer, context)
    names = [name for word in trainer.metrics for name in ([word] if word != "auto" else _auto_metrics(loss, context))]
    return LossAndMetrics(loss, [_build_metric(name, loss, context) for name in dict.fromkeys(names)])


def gives_logits(model: keras.Model) -> bool:
    """Whether the model ends without softmax or sigmoid; of a subclassed model, whether its last layer does."""
    return not any(_gives_probabilities(part) for part in _last_parts(model))


def _last_parts(part: Any) -> Iterator[Any]:
    """The layers and operations that give the output of a model or layer, looked for inside models and wrappers."""
    if isinstance(part, keras.Model):
        last = [*(head_layers(part) or part.layers[-1:]), *getattr(part, "operations", [])[-1:]]
    elif isinstance(part, keras.layers.Wrapper):
        last = [part.layer]
    else:
        yield part
        return
    for inner in last:
        yield from _last_parts(inner)


def _gives_probabilities(operation: Any) -> bool:
    activation = getattr(getattr(operation, "activation", None), "__name__", "")
    return activation in PROBABILITIES or type(operation).__name__.lower() in PROBABILITIES


def _count_outputs(model: keras.Model) -> int:
    # a subclassed model has only the output of its last symbolic call, a cloned one only `outputs`
    shape = keras.tree.flatten(getattr(model, "outputs", None) or model.output)[-1].shape
    return int(shape[-1]) if len(shape) > 1 else 1


def _build_loss(trainer: TrainerSettings, context: _LossContext) -> keras.losses.Loss:
    kind = _auto_loss(context) if trainer.loss == "auto" else _find("trainer.loss", trainer.loss, keras.losses)
    if "from_logits" in inspect.signature(kind).parameters:
        return kind(from_logits=context.from_logits, dtype=context.dtype)
    if trainer.from_logits is True:
        raise ConfigError(Problem("trainer.from_logits", f"must be auto with {kind.__name__}, which takes no logits.",
                                  True))
    _check_probabilities("trainer.loss", kind, context)
    return kind(dtype=context.dtype)


def _auto_loss(context: _LossContext) -> Any:
    if context.task == "regression":
        return keras.losses.MeanSquaredError
    if context.task == "classification":
        single = context.outputs == 1
        return keras.losses.BinaryCrossentropy if single else keras.losses.SparseCategoricalCrossentropy
    raise ConfigError(Problem("trainer.loss", "must be named for data that is neither labels nor numbers.", "auto",
                              "For example trainer.loss=categorical_crossentropy for one-hot targets."))


def _auto_metrics(loss: keras.losses.Loss, context: _LossContext) -> list[str]:
    """Accuracy where the loss says how targets are coded; the absolute error in regression; else none."""
    if context.task == "regression":
        return ["mean_absolute_error"]
    return ["accuracy"] if type(loss) in ACCURACY_OF_LOSS else []


def _build_metric(name: str, loss: keras.losses.Loss, context: _LossContext) -> keras.metrics.Metric:
    kind = _accuracy(loss) if name == "accuracy" else _find("trainer.metrics", name, keras.metrics)
    parameters = inspect.signature(kind).parameters
    # without `average` the scores F1Score and FBetaScore are one number per class
    missing = [key for key, value in parameters.items() if value.default is value.empty or key == "average"]
    if missing:
        raise ConfigError(Problem("trainer.metrics", f"{kind.__name__} needs {', '.join(missing)}, which a name alone "
                                  "can't give.", name, "Choose a metric without."))
    _check_probabilities("trainer.metrics", kind, context)
    arguments: dict[str, Any] = {"name": name, "dtype": context.dtype}
    if "from_logits" in parameters:
        arguments["from_logits"] = context.from_logits
    if kind is keras.metrics.BinaryAccuracy:
        arguments["threshold"] = 0.0 if context.from_logits else 0.5
    return kind(**arguments)


def _check_probabilities(key: str, kind: Any, context: _LossContext) -> None:
    """Keras would take logits for probabilities and say nothing."""
    if kind.__name__ in NEED_PROBABILITIES and context.task != "regression" and context.from_logits:
        raise ConfigError(Problem(
            key, f"{kind.__name__} needs probabilities, and the model ends without softmax or sigmoid.", None,
            "End it with one, or set trainer.from_logits=false if it gives probabilities all the same."))


def _accuracy(loss: keras.losses.Loss) -> Any:
    if type(loss) not in ACCURACY_OF_LOSS:
        raise ConfigError(Problem(
            "trainer.metrics", f"accuracy can't be told from loss {loss.name}.", "accuracy",
            "Name sparse_categorical_accuracy, categorical_accuracy or binary_accuracy."))
    return ACCURACY_OF_LOSS[type(loss)]


def _find(key: str, name: str, module: Any) -> Any:
    """The class of that name in keras.losses or keras.metrics; snake_case and short names (mse) count too."""
    kinds = {canonical_name(kind.__name__): kind for kind in vars(module).values() if can_be_named(kind)}
    kind = kinds.get(canonical_name(name))
    if kind is None:
        raise ConfigError(no_such_keras_name(key, name, tuple(kind.__name__ for kind in kinds.values())))
    return kind


def can_be_named(kind: Any) -> bool:
    """Whether it is a loss, or a metric of predictions against targets (not of plain values, as Mean is)."""
    if not isinstance(kind, type) or kind in (keras.losses.Loss, keras.metrics.MeanMetricWrapper):
        return False
    update: Any = getattr(kind, "update_state", None)
    if update is None:
        return issubclass(kind, keras.losses.Loss)
    return "y_true" in inspect.signature(update).parameters


SCHEDULE_KEY = "optimizer.schedule"


def build_optimizer(settings: OptimizerSettings, total_steps: int | None) -> keras.optimizers.Optimizer:
    """The Keras optimizer of that name with its arguments; `total_steps` are the batches of the run, None if unknown.

    ConfigError where the schedule doesn't fit the run, or where this Keras is too old for the optimizer.
    """
    arguments = {field.name: getattr(settings, field.name) for field in fields(settings)}
    del arguments["name"], arguments["schedule"]
    class_name = OPTIMIZERS[settings.name].__name__
    kind: Any = getattr(keras.optimizers, class_name, None)
    if lacking := [class_name] if kind is None else _unknown_arguments(kind, arguments):
        what = class_name if kind is None else f"{', '.join(lacking)} in {class_name}"
        raise ConfigError(Problem("optimizer.name", f"Keras {keras.__version__} has no {what}.", settings.name,
                                  "Choose another, or a newer Keras."))
    arguments["learning_rate"] = build_learning_rate(settings.schedule, float(settings.learning_rate), total_steps)
    return kind(**arguments)


def _unknown_arguments(kind: Any, arguments: Iterable[str]) -> list[str]:
    """Those that `kind` of optimizer does not take: an older Keras computes something else under its name."""
    return sorted(set(arguments) - set(inspect.signature(kind.__init__).parameters))


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
            f"{SCHEDULE_KEY}.decay_steps", "must be given where the length of the run isn't known in advance.", None,
            "Set it, or trainer.max_steps."))
    if not schedule.warmup_steps < total_steps:
        raise ConfigError(Problem(
            f"{SCHEDULE_KEY}.warmup_steps", f"must be below the {total_steps} steps of the run.", schedule.warmup_steps,
            f"Lower it, train longer, or set {SCHEDULE_KEY}.decay_steps."))
    return total_steps - schedule.warmup_steps


def _exponential(schedule: Schedule, learning_rate: float, total_steps: int | None) -> schedules.LearningRateSchedule:
    return schedules.ExponentialDecay(learning_rate, schedule.decay_steps, schedule.decay_rate,
                                      staircase=bool(schedule.staircase))


def _piecewise(schedule: Schedule, learning_rate: float, total_steps: int | None) -> schedules.LearningRateSchedule:
    values = [learning_rate * value for value in schedule.values or []]
    return schedules.PiecewiseConstantDecay(schedule.boundaries, values)


_BUILDERS = {"constant": _warmup, "cosine": _cosine, "exponential": _exponential, "piecewise": _piecewise}


def resolve_scaling(settings: LossScaleSettings, model: Any) -> Scaling:
    """What `mode` comes to for this model."""
    needed = computes_in_float16(model)
    return Scaling(settings.rule_for(needed), settings.on_overflow, needed)


def wrap_optimizer(inner: Any, settings: LossScaleSettings, scaling: Scaling) -> LossScaleOptimizer:
    """`inner` in loss scaling. No scaling is a rule that applies everything: one path for all modes."""
    return LossScaleOptimizer(
        inner, rule=scaling.rule, on_overflow="apply" if scaling.applies_overflows else "skip",
        count_skipped_steps=scaling.scales and settings.schedules_follow == "all_steps",
    )  # fmt: skip


def describe_scaling(scaling: Scaling, model: Any, scale: float | None = None) -> str:
    """One line for the header: the mode, its numbers, and why; `scale` is where it begins if not at its first."""
    if not scaling.scales:
        needed = computes_in_float16(model)
        return f"{scaling.mode}{', though layers compute in float16' if needed else ' (nothing computes in float16)'}"
    return scaling.rule.describe(format_scale(scale or scaling.initial_scale), scaling.on_overflow)


def warn_of_scaling(scaling: Scaling, model: Any) -> list[str]:
    """What is unusual about scaling or not scaling this model; empty where nothing is."""
    needed = computes_in_float16(model)
    if needed and not scaling.scales:
        return [f"loss_scale.mode={scaling.mode}: layers compute in float16, where gradients below 2^-24 become 0. "
                "loss_scale=dynamic keeps them."]
    if not needed and scaling.scales:
        return [f"loss_scale.mode={scaling.mode} has no use here: nothing computes in float16. It changes no result "
                "and costs a little; loss_scale=auto leaves it out."]
    return []
