"""Where a run is."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from mpt_cli.settings.keras_names import full_spelling

MONITORED = ("val_accuracy", "val_loss", "accuracy", "loss")  # by default the first of these that a run has
# Keras's metrics that are better the lower they are, and those of its losses of which the same holds as a metric: not
# CosineSimilarity, Dice and Tversky, which as metrics are the likeness itself.
FALLING = (
    "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy", "CategoricalHinge", "Circle", "CTC", "FalseNegatives", "FalsePositives",
    "Hinge", "Huber", "KLDivergence", "LogCosh", "LogCoshError", "MeanAbsoluteError", "MeanAbsolutePercentageError",
    "MeanSquaredError", "MeanSquaredLogarithmicError", "Poisson", "RootMeanSquaredError",
    "SparseCategoricalCrossentropy", "SquaredHinge",
)  # fmt: skip
_FALLING = frozenset(map(full_spelling, FALLING))  # asked of every metric at the end of every epoch
# what tells it of any other name: of a metric of the user's, or of a field of summary.json
FALLING_WORDS = (
    "loss", "error", "mae", "mse", "mape", "entropy", "divergence", "perplexity", "distance", "skipped", "seconds",
    "bytes", "memory",
)  # fmt: skip


@dataclass
class Progress:
    """`epoch` counts from 1 and is the one being trained or, with `step_in_epoch` 0, the last that was completed.

    `metrics` are those of the last epoch line, `best` the best value each had.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    epochs_completed: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_position(cls, position: dict[str, Any]) -> Self:
        """Back from strict JSON, where nan is a text."""
        numbers = {
            name: {metric: float(value) for metric, value in position[name].items()} for name in ("metrics", "best")
        }
        return cls(**{**position, **numbers})

    def record(self, metrics: dict[str, float]) -> set[str]:
        """Take `metrics` as the latest, and as the best where they are; returns the names of those."""
        self.metrics = metrics
        improved = {
            name for name, value in metrics.items()
            if not math.isnan(value) and (name not in self.best or is_better(name, value, self.best[name]))
        }  # fmt: skip
        self.best.update({name: metrics[name] for name in improved})
        return improved


def monitored(name: str | None, known: Iterable[str]) -> str | None:
    """The metric that decides which epoch is the best: `name`, with "auto" the first usual one among the `known`."""
    if name == "auto":
        return next((usual for usual in MONITORED if usual in known), None)
    return name


def falls(name: str) -> bool:
    """Whether what goes by this name is better the lower it is.

    It is for Keras's metrics that are listed as FALLING, in every spelling that `trainer.metrics` takes, and for other
    names with one of the FALLING_WORDS in them; everything else should rise.

    >>> falls("val_MeanAbsoluteError"), falls("best_metrics.val_hinge"), falls("val_token_error"), falls("val_AUC")
    (True, True, True, False)
    """
    metric = name.rpartition(".")[2].removeprefix("val_")
    return full_spelling(metric) in _FALLING or any(word in metric.lower() for word in FALLING_WORDS)


def is_better(name: str, new: float, old: float) -> bool:
    """Whether `new` is better than `old`: lower where `name` falls, else higher.

    Anything is better than nan, and nan is never better.
    """
    if math.isnan(old):
        return not math.isnan(new)
    return new < old if falls(name) else new > old
