"""Where a run is."""

from dataclasses import dataclass, field


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

    def record(self, metrics: dict[str, float]) -> None:
        """Take `metrics` as the latest, and as the best where they are."""
        self.metrics = metrics
        for name, value in metrics.items():
            if name not in self.best or is_better(name, value, self.best[name]):
                self.best[name] = value


def is_better(name: str, new: float, old: float) -> bool:
    """Whether `new` is better than `old`: losses, errors and distances should fall, everything else should rise."""
    falls = any(word in name for word in ("loss", "error", "mse", "mae", "entropy", "divergence", "perplexity"))
    return new < old if falls else new > old
