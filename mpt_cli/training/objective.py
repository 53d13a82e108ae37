"""From `trainer.loss`, `trainer.metrics` and `trainer.from_logits` to Keras objects that compute in float32.

Losses and metrics cast predictions up themselves, so that neither a float16 logit nor a mean over many examples loses
bits; a float64 model keeps float64.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision import Policy, head_layers
from mpt_cli.settings.keras_names import full_spelling, no_such_name
from mpt_cli.settings.schema import Trainer

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
class Objective:
    """What is minimised, and what is shown beside it."""

    loss: keras.losses.Loss
    metrics: list[keras.metrics.Metric]


@dataclass(frozen=True)
class _Context:
    """What decides how a named loss or metric is made."""

    task: str
    outputs: int
    from_logits: bool
    dtype: str


def build_objective(trainer: Trainer, model: keras.Model, task: str, policy_name: str) -> Objective:
    """The loss and metrics of a built model; ConfigError for names that Keras doesn't have.

    `auto` is cross-entropy over integer labels with "accuracy" (binary where the model has a single output), or mean
    squared error with "mean_absolute_error".
    """
    from_logits = gives_logits(model) if trainer.from_logits == "auto" else bool(trainer.from_logits)
    context = _Context(task, _count_outputs(model), from_logits, Policy(policy_name).loss_dtype)
    loss = _build_loss(trainer, context)
    names = [name for word in trainer.metrics for name in ([word] if word != "auto" else _auto_metrics(loss, context))]
    return Objective(loss, [_build_metric(name, loss, context) for name in dict.fromkeys(names)])


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


def _build_loss(trainer: Trainer, context: _Context) -> keras.losses.Loss:
    kind = _auto_loss(context) if trainer.loss == "auto" else _find("trainer.loss", trainer.loss, keras.losses)
    if "from_logits" in inspect.signature(kind).parameters:
        return kind(from_logits=context.from_logits, dtype=context.dtype)
    if trainer.from_logits is True:
        raise ConfigError(Problem("trainer.from_logits", f"must be auto with {kind.__name__}, which takes no logits.",
                                  True))
    _check_probabilities("trainer.loss", kind, context)
    return kind(dtype=context.dtype)


def _auto_loss(context: _Context) -> Any:
    if context.task == "regression":
        return keras.losses.MeanSquaredError
    if context.task == "classification":
        single = context.outputs == 1
        return keras.losses.BinaryCrossentropy if single else keras.losses.SparseCategoricalCrossentropy
    raise ConfigError(Problem("trainer.loss", "must be named for data that is neither labels nor numbers.", "auto",
                              "For example trainer.loss=categorical_crossentropy for one-hot targets."))


def _auto_metrics(loss: keras.losses.Loss, context: _Context) -> list[str]:
    """Accuracy where the loss says how targets are coded; the absolute error in regression; else none."""
    if context.task == "regression":
        return ["mean_absolute_error"]
    return ["accuracy"] if type(loss) in ACCURACY_OF_LOSS else []


def _build_metric(name: str, loss: keras.losses.Loss, context: _Context) -> keras.metrics.Metric:
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


def _check_probabilities(key: str, kind: Any, context: _Context) -> None:
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
    kinds = {full_spelling(kind.__name__): kind for kind in vars(module).values() if can_be_named(kind)}
    kind = kinds.get(full_spelling(name))
    if kind is None:
        raise ConfigError(no_such_name(key, name, tuple(kind.__name__ for kind in kinds.values())))
    return kind


def can_be_named(kind: Any) -> bool:
    """Whether it is a loss, or a metric of predictions against targets (not of plain values, as Mean is)."""
    if not isinstance(kind, type) or kind in (keras.losses.Loss, keras.metrics.MeanMetricWrapper):
        return False
    update: Any = getattr(kind, "update_state", None)
    if update is None:
        return issubclass(kind, keras.losses.Loss)
    return "y_true" in inspect.signature(update).parameters
