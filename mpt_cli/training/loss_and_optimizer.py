"""Build the arguments of `model.compile`: losses and metrics that compute in float32, and the optimizer with scaling.

Losses and metrics cast predictions up themselves, so that neither a float16 logit nor a mean over many examples loses
bits; a float64 model keeps float64. Keras evaluates a schedule at its counter of applied batches. With gradient
accumulation that counter still moves with every batch, not with every update, so warm-up and decay are counted in
batches throughout and end with the run. The moving average (EMA) is likewise taken after every batch, while
`ema_overwrite_frequency` counts updates.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import keras
import numpy as np
from keras.optimizers import schedules

from mpt_cli.data.examples import DataSet
from mpt_cli.errors import DataError, config_error
from mpt_cli.precision import LossScaleOptimizer, Policy, has_custom, head_layers
from mpt_cli.precision.keras_internals import call_behind, configured_rate, copied_optimizer
from mpt_cli.settings.model_data_optimizer_keys import CustomOptimizer, OptimizerSettings, Schedule
from mpt_cli.settings.python_references import Reference, is_object, read_object
from mpt_cli.settings.schema import Settings, TrainerSettings
from mpt_cli.telemetry.format import format_scale
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.user_code import build_kwargs, build_object, call_user, find_keras_class, load_named

NEED_PROBABILITIES = (
    "KLDivergence",
    "CategoricalGeneralizedCrossEntropy",
    "Dice",
    "Tversky",
    "Precision",
    "Recall",
    "BinaryIoU",
    "TruePositives",
    "TrueNegatives",
    "FalsePositives",
    "FalseNegatives",
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
class _LossContext:
    """The facts that decide how a named loss or metric is built; `key` is the setting that names it."""

    key: str
    task: str
    outputs: int
    from_logits: bool
    dtype: str
    names: Sequence[str] = ()  # of all outputs


def compile_model(settings: Settings, model: Any, data: DataSet, optimizer: LossScaleOptimizer | None) -> None:
    """Give `model` its loss, metrics and optimizer, with all variables made."""
    # auto_scale_loss would wrap the optimizer in Keras's own class under a float16 policy
    if has_custom(model, "train_step") and settings.trainer.loss == "auto":
        model.compile(optimizer=optimizer, auto_scale_loss=False)  # its step knows what it minimises
        return
    objective = build_loss_and_metrics(settings.trainer, model, data.task, settings.policy.base)
    model.compile(optimizer=optimizer, auto_scale_loss=False, **objective)
    if optimizer is not None and not has_custom(model, "train_step"):
        optimizer.build(model.trainable_variables)


def check_labels(model: Any, data: Any) -> None:
    """Raise DataError for labels that the sparse cross-entropy of an output has no class for.

    There TensorFlow fails with an error about its kernels, and JAX trains on another class.
    """
    outputs, targets = getattr(model, "outputs", None) or [], getattr(data, "y", None)  # which a stream has not
    names = getattr(model, "output_names", None) or list(range(len(outputs)))  # a Sequential has no names
    for name, output, loss, y in zip(
        names, outputs, _by_name(names, model.loss), _by_name(names, targets), strict=False
    ):
        known = keras.losses.get(loss) if isinstance(loss, str) else loss
        is_sparse = isinstance(known, keras.losses.SparseCategoricalCrossentropy)
        is_named = is_sparse or known is keras.losses.sparse_categorical_crossentropy
        if not is_named or not isinstance(y, np.ndarray):
            continue
        ignored, classes = known.get_config().get("ignore_class") if is_sparse else None, _width(output)
        labels = y if ignored is None else y[y != ignored]
        if labels.size and not 0 <= labels.min() <= labels.max() < classes:
            raise DataError(
                f"data: the targets of output {name} must be labels from 0 to {classes - 1}, as many as it has units, "
                f"not {labels.min():g} to {labels.max():g}."
            )


def _by_name(names: Sequence[Any], value: Any) -> list[Any]:
    """Return what a mapping, list or single value has for each output."""
    if isinstance(value, dict):
        return [value.get(name) for name in names]
    return [*value] if isinstance(value, list | tuple) else [value] * len(names)


def build_loss_and_metrics(trainer: TrainerSettings, model: keras.Model, task: str, policy_name: str) -> dict[str, Any]:
    """Return the loss and metrics of a built model as arguments of `Model.compile`, each in the structure of its key.

    ConfigError for names that neither Keras nor the user has.
    `auto` is cross-entropy over integer labels with "accuracy" (binary where the model has a single output), or mean
    squared error with "mean_absolute_error". A loss by output (a mapping or list) is made for what that output gives.
    """
    tensors = keras.tree.flatten(getattr(model, "outputs", None) or [])
    names = getattr(model, "output_names", None) or []
    outputs = {**dict(enumerate(tensors)), **dict(zip(names, tensors, strict=False))}

    def context_of(key: str, output: Any = None) -> _LossContext:
        """Return the facts about one output, by name or place; those of the whole model if it is None, or if the
        outputs can't be told apart (in a subclassed model).
        """
        call = call_behind(outputs[output]) if output in outputs else None
        part, count = model, 0
        if call is not None:
            part, count = call[0], _width(outputs[output])
        elif output is None:  # a subclassed model has only the output of its last symbolic call, a cloned one `outputs`
            count = _width((tensors or keras.tree.flatten(model.output))[-1])
        logits = gives_logits(part) if trainer.from_logits == "auto" else bool(trainer.from_logits)
        return _LossContext(key, task, count, logits, Policy(policy_name).loss_dtype, names)

    def by_output(key: str, value: Any, build: Callable[[Any, _LossContext, Any], Any]) -> Any:
        """Call `build` for each object in the structure of `value`, with the output it stands at."""
        if is_object(value):
            return None if value is None else build(value, context_of(key), None)
        built = {
            output: None if part is None else build(part, context_of(f"{key}.{output}", output), output)
            for output, part in (value.items() if isinstance(value, dict) else enumerate(value))
        }
        return built if isinstance(value, dict) else list(built.values())

    loss = by_output("trainer.loss", trainer.loss, lambda value, context, _: _build_loss(value, trainer, context))
    losses = dict(enumerate(loss)) if isinstance(loss, list) else loss

    def metrics_at(value: Any, context: _LossContext, output: Any = None) -> list[keras.metrics.Metric]:
        words = value if isinstance(value, list) else [value]
        return _build_metrics(words, losses.get(output) if isinstance(losses, dict) else losses, context)

    def build_metrics(key: str, value: Any) -> Any:
        if is_object(value) or (isinstance(value, list) and all(map(is_object, value))):
            return metrics_at(value, context_of(key))
        return by_output(key, value, metrics_at)

    weighted = trainer.weighted_metrics or None
    return {
        "loss": loss,
        "metrics": build_metrics("trainer.metrics", trainer.metrics or []),
        "loss_weights": trainer.loss_weights,
        "weighted_metrics": weighted and build_metrics("trainer.weighted_metrics", weighted),
    }


def gives_logits(model: Any) -> bool:
    """Return whether a model or layer ends without softmax or sigmoid; of a subclassed model, whether its last layer
    does."""
    ends = [
        name
        for part in _last_parts(model)
        for name in (getattr(getattr(part, "activation", None), "__name__", ""), type(part).__name__.lower())
    ]
    return not {"softmax", "sigmoid"} & {*ends}


def _last_parts(part: Any) -> Iterator[Any]:
    """Yield the layers and operations that give the output of a model or layer, also inside models and wrappers."""
    if isinstance(part, keras.Model):
        last = [*(head_layers(part) or part.layers[-1:]), *getattr(part, "operations", [])[-1:]]
    elif isinstance(part, keras.layers.Wrapper):
        last = [part.layer]
    else:
        yield part
        return
    for inner in last:
        yield from _last_parts(inner)


def _width(tensor: Any) -> int:
    """Return the size of the last dimension; 1 for one number per example, 0 where it is known only of a batch."""
    return int(tensor.shape[-1] or 0) if len(tensor.shape) > 1 else 1


def _build_loss(value: Any, trainer: TrainerSettings, context: _LossContext) -> Any:
    reference = read_object(value)
    if not reference.is_of_keras:
        return _build_own(value, keras.losses.Loss, keras.metrics.Metric, context)
    kind = _auto_loss(context) if value == "auto" else find_keras_class(context.key, reference.name, keras.losses)
    kwargs = {"dtype": context.dtype, **build_kwargs(reference, context.key, keras.losses)}
    if "from_logits" in inspect.signature(kind).parameters:
        kwargs.setdefault("from_logits", context.from_logits)
    elif trainer.from_logits is True:
        raise config_error("trainer.from_logits", f"must be auto with {kind.__name__}, which takes no logits.", True)
    else:
        _check_probabilities(kind, context)
    return call_user(kind, context.key, **kwargs)


def _build_own(value: Any, kind: type, other: type, context: _LossContext) -> Any:
    """Return a loss or metric of the user's as Keras takes it: an instance, or a function of y_true and y_pred."""
    module = keras.losses if kind is keras.losses.Loss else keras.metrics
    built = build_object(context.key, value, module, arguments=2)
    if not callable(built) or isinstance(built, other):
        rule = f"must be a {module.__name__}.{kind.__name__} or a function of y_true and y_pred."
        raise config_error(context.key, rule, type(built).__name__)
    return built


def _auto_loss(context: _LossContext) -> Any:
    if context.task == "regression":
        return keras.losses.MeanSquaredError
    if context.task == "classification":
        single = context.outputs == 1
        return keras.losses.BinaryCrossentropy if single else keras.losses.SparseCategoricalCrossentropy
    remedy = "For example trainer.loss=categorical_crossentropy for one-hot targets, or null where "
    remedy += "the model brings its own (add_loss, compute_loss)."
    if len(context.names) > 1:
        listed = ", ".join(f"{name}: mse" for name in context.names)
        remedy = f"Name one for each output, as in trainer.loss={{{listed}}}."
    raise config_error(
        "trainer.loss", "must be named where targets are neither plain labels nor numbers.", "auto", remedy
    )


def _auto_metrics(loss: Any, context: _LossContext) -> list[str]:
    """Return accuracy if the loss says how targets are coded, the absolute error in regression, else none."""
    if context.task == "regression":
        return ["accuracy"] if isinstance(loss, keras.losses.CategoricalCrossentropy) else ["mean_absolute_error"]
    return ["accuracy"] if type(loss) in ACCURACY_OF_LOSS else []


def _build_metrics(words: list[Any], loss: Any, context: _LossContext) -> list[keras.metrics.Metric]:
    if loss is None:
        words = [word for word in words if word != "auto"]
    whole = [name for word in words for name in ([word] if word != "auto" else _auto_metrics(loss, context))]
    return [_build_metric(value, loss, context) for index, value in enumerate(whole) if value not in whole[:index]]


def _build_metric(value: Any, loss: Any, context: _LossContext) -> keras.metrics.Metric:
    reference = read_object(value)
    if not reference.is_of_keras:
        built = _build_own(value, keras.metrics.Metric, keras.losses.Loss, context)
        if isinstance(built, keras.metrics.Metric):
            return built
        return keras.metrics.MeanMetricWrapper(built, name=getattr(built, "__name__", "metric"), dtype=context.dtype)
    named = reference.name == "accuracy"
    kind = _accuracy(loss, context.key) if named else find_keras_class(context.key, reference.name, keras.metrics)
    parameters = inspect.signature(kind).parameters
    arguments = {"name": reference.name, "dtype": context.dtype, **build_kwargs(reference, context.key, keras.metrics)}
    _check_probabilities(kind, context)
    if "from_logits" in parameters:
        arguments.setdefault("from_logits", context.from_logits)
    if kind is keras.metrics.BinaryAccuracy:
        arguments.setdefault("threshold", 0.0 if context.from_logits else 0.5)
    return call_user(kind, context.key, **arguments)


def _check_probabilities(kind: Any, context: _LossContext) -> None:
    """Refuse a loss of probabilities for a model that returns logits, which Keras accepts silently."""
    if kind.__name__ in NEED_PROBABILITIES and context.task != "regression" and context.from_logits:
        raise config_error(
            context.key,
            f"{kind.__name__} needs probabilities, and the model ends without softmax or sigmoid.",
            None,
            "End it with one, or set trainer.from_logits=false if its outputs are probabilities.",
        )


def _accuracy(loss: Any, key: str) -> Any:
    if type(loss) not in ACCURACY_OF_LOSS:
        name = getattr(loss, "name", None) or getattr(loss, "__name__", None) or "null"
        raise config_error(
            key,
            f"accuracy can't be told from loss {name}.",
            "accuracy",
            "Name sparse_categorical_accuracy, categorical_accuracy or binary_accuracy.",
        )
    return ACCURACY_OF_LOSS[type(loss)]


SCHEDULE_KEY = "optimizer.schedule"
# of all optimizers of Keras, beside the learning rate
COMMON_ARGUMENTS = [
    field.name
    for field in fields(OptimizerSettings)
    if field.name not in ("name", "schedule", "learning_rate", "kwargs")
]


def build_optimizer(settings: OptimizerSettings, total_steps: int | None) -> keras.optimizers.Optimizer:
    """Return the Keras optimizer of that name with its arguments, or the user's own; `total_steps` are the batches of
    the run, None if unknown.

    ConfigError where the schedule doesn't fit the run, or where this Keras is too old for the optimizer.
    """
    if isinstance(settings, CustomOptimizer):
        return _build_own_optimizer(settings, total_steps)
    kind = find_keras_class("optimizer.name", type(settings).__name__, keras.optimizers)  # an older Keras lacks some
    arguments = {name: getattr(settings, name) for name in COMMON_ARGUMENTS}
    arguments |= build_kwargs(Reference(settings.name, settings.kwargs), "optimizer", keras.optimizers)
    arguments["learning_rate"] = build_learning_rate(settings.schedule, float(settings.learning_rate), total_steps)
    return call_user(kind, "optimizer.kwargs", **arguments)


def _build_own_optimizer(settings: CustomOptimizer, total_steps: int | None) -> keras.optimizers.Optimizer:
    """Return the optimizer from the user's object, with every common key set on it that is not the default.

    Copy an instance, so that one run does not affect the next in the same process.
    """
    value = {"object": settings.object, "kwargs": settings.kwargs}
    built = build_object("optimizer", value, keras.optimizers)
    scaled = keras.optimizers.LossScaleOptimizer
    if not isinstance(built, keras.optimizers.Optimizer) or isinstance(built, scaled):
        rule = f"{settings.object} must be or return a keras Optimizer without loss scaling: loss_scale does that."
        raise config_error("optimizer.object", rule, type(built).__name__)
    optimizer = copied_optimizer(built) if load_named(settings.object, "optimizer.object") is built else built
    for common in fields(OptimizerSettings):
        value = getattr(settings, common.name)
        if common.name in COMMON_ARGUMENTS and value != common.default:
            setattr(optimizer, common.name, value)
    if settings.learning_rate is not None or settings.schedule != Schedule():
        base = configured_rate(optimizer)
        if not isinstance(base, float):
            rule = f"must be left out, as optimizer.learning_rate: {settings.object} has a schedule of its own."
            raise config_error(SCHEDULE_KEY, rule)
        base = base if settings.learning_rate is None else settings.learning_rate
        optimizer.learning_rate = build_learning_rate(settings.schedule, base, total_steps)
    return optimizer


def build_learning_rate(
    schedule: Schedule, learning_rate: float, total_steps: int | None
) -> float | schedules.LearningRateSchedule:
    """Return a constant as a float, which can be set later; anything else as a Keras schedule.

    >>> float(build_learning_rate(Schedule(warmup_steps=4), 1.0, None)(1))
    0.25
    """
    if schedule.object is not None:
        return _own_schedule(schedule, learning_rate)
    is_constant = schedule.name == "constant"
    if is_constant and not schedule.warmup_steps:
        return learning_rate
    # constant is a cosine that ends where it starts, without a schedule class of our own in the file
    decay_steps = 1 if is_constant else schedule.decay_steps or _steps_after_warmup(schedule, total_steps)
    alpha = 1.0 if is_constant else schedule.final_factor or 0.0
    if not schedule.warmup_steps:
        return schedules.CosineDecay(learning_rate, decay_steps, alpha)
    return schedules.CosineDecay(
        0.0, decay_steps, alpha, warmup_target=learning_rate, warmup_steps=schedule.warmup_steps
    )


def _own_schedule(schedule: Schedule, learning_rate: float) -> schedules.LearningRateSchedule:
    """Return one of Keras's or of the user's; `initial_learning_rate` is the configured rate unless kwargs say it."""
    assert schedule.object is not None
    kwargs = dict(schedule.kwargs)
    named = (
        load_named(schedule.object, SCHEDULE_KEY)
        if ":" in schedule.object
        else find_keras_class(SCHEDULE_KEY, schedule.object, schedules)
    )
    if isinstance(named, type) and "initial_learning_rate" in inspect.signature(named).parameters:
        kwargs.setdefault("initial_learning_rate", learning_rate)
    built = build_object(SCHEDULE_KEY, {"object": schedule.object, "kwargs": kwargs}, schedules)
    if not isinstance(built, schedules.LearningRateSchedule):
        raise config_error(
            f"{SCHEDULE_KEY}.object", "must be or return a Keras LearningRateSchedule.", type(built).__name__
        )
    return built


def _steps_after_warmup(schedule: Schedule, total_steps: int | None) -> int:
    if total_steps is None:
        raise config_error(
            f"{SCHEDULE_KEY}.decay_steps",
            "must be given where the length of the run isn't known in advance.",
            None,
            "Set it, or trainer.max_steps.",
        )
    if not schedule.warmup_steps < total_steps:
        raise config_error(
            f"{SCHEDULE_KEY}.warmup_steps",
            f"must be below the {total_steps} steps of the run.",
            schedule.warmup_steps,
            f"Lower it, train longer, or set {SCHEDULE_KEY}.decay_steps.",
        )
    return total_steps - schedule.warmup_steps


def describe_scaling(scaling: Scaling, scale: float | None = None) -> str:
    """Return one line for the header: the mode, its numbers, and why; `scale` is the first one, if another."""
    if not scaling.scales:
        why = ", though layers compute in float16" if scaling.is_needed else " (nothing computes in float16)"
        return f"{scaling.rule.mode}{why}"
    return scaling.rule.describe(format_scale(scale or scaling.rule.initial_scale))


def warn_of_scaling(scaling: Scaling) -> list[str]:
    """Return a warning about scaling, or not scaling, this model; empty if all is usual."""
    if scaling.is_needed == scaling.scales:
        return []
    if scaling.is_needed:
        return [
            f"loss_scale.mode={scaling.rule.mode}: layers compute in float16, where gradients below 2**-24 become 0. "
            "loss_scale=dynamic keeps them (docs/explanation/loss-scaling.md)."
        ]
    return [
        f"loss_scale.mode={scaling.rule.mode} has no use here: nothing computes in float16. loss_scale=auto leaves it "
        "out (docs/explanation/loss-scaling.md)."
    ]
