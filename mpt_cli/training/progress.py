"""Where a run is."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

MONITORED = ("val_accuracy", "val_loss", "accuracy", "loss")  # by default the first of these that a run has


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


def is_better(name: str, new: float, old: float) -> bool:
    """Whether `new` is better than `old`: losses, errors and distances should fall, everything else should rise.

    Anything is better than nan, and nan is never better.
    """
    if math.isnan(old):
        return not math.isnan(new)
    falls = any(word in name for word in ("loss", "error", "mse", "mae", "entropy", "divergence", "perplexity"))
    return new < old if falls else new > old
