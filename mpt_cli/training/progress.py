"""The progress of a run: its position, the best metrics so far, and its speed without compile time."""

import math
import time
from dataclasses import dataclass, field
from signal import Signals
from typing import NamedTuple

from mpt_cli.telemetry.health_and_verdict import Stop
from mpt_cli.telemetry.record_types import Metrics

MONITORED = ("val_accuracy", "val_loss", "accuracy", "loss")  # by default the first of these that a run has
# in the name of a metric or of a field of summary.json: lower is better
FALLING_WORDS = (
    "loss",
    "nll",
    "error",
    "mae",
    "mse",
    "msle",
    "mape",
    "entropy",
    "bce",
    "divergence",
    "kld",
    "hinge",
    "huber",
    "logcosh",
    "log_cosh",
    "poisson",
    "circle",
    "ctc",
    "false",
    "perplexity",
    "distance",
    "skipped",
    "seconds",
    "bytes",
    "memory",
)


RISING_WORDS = (  # higher is better; a name with none of both kinds does not tell
    "acc",
    "auc",
    "precision",
    "recall",
    "f1",
    "iou",
    "io_u",
    "correlation",
    "true_",
    "dice",
    "score",
    "similarity",
    "sensitivity",
    "specificity",
    "r2",
    "bleu",
    "examples_per_second",
)


@dataclass
class Progress:
    """`epoch` counts from 1 and is the one being trained or, with `step_in_epoch` 0, the last that was completed.

    `metrics` are those of the last epoch line, `best` the best value each had.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    epochs_completed: int = 0
    metrics: Metrics = field(default_factory=dict)
    best: Metrics = field(default_factory=dict)

    def update(self, metrics: Metrics) -> None:
        """Take `metrics` as the latest, and as the best where they are and the name says which way is better."""
        self.metrics = metrics
        for name, value in metrics.items():
            is_known = tells_direction(name) and not math.isnan(value)
            if is_known and (name not in self.best or is_better(name, value, self.best[name])):
                self.best[name] = value


def falls(name: str) -> bool:
    """Return whether lower is better for a metric of this name: one of the FALLING_WORDS is in it.

    >>> falls("val_MeanAbsoluteError"), falls("best_metrics.val_hinge"), falls("val_token_error"), falls("val_AUC")
    (True, True, True, False)
    """
    metric = name.rpartition(".")[2].lower()
    return any(word in metric for word in FALLING_WORDS)


def tells_direction(name: str) -> bool:
    """Return whether the name of a metric tells if lower or higher is better.

    >>> tells_direction("val_f1_score"), tells_direction("val_gap"), tells_direction("final_loss_scale")
    (True, False, False)
    """
    metric = name.lower().replace("loss_scale", "")
    return falls(metric) or any(word in metric for word in RISING_WORDS)


def is_better(name: str, new: float, old: float) -> bool:
    """Return whether `new` is better than `old`: lower where `name` falls, else higher.

    Anything is better than nan, and nan is never better.
    """
    if math.isnan(old):
        return not math.isnan(new)
    return new < old if falls(name) else new > old


TARGET_SECONDS = 1.0  # long enough to hide what a call costs (some 15 ms with 600 variables), short enough for Ctrl-C


class Stopwatch:
    """Times a run and its calls of the compiled loop; the first call of each batch shape compiles and does not count
    for the speed.

    Times add up over the attempts of a resumed run, each up to the checkpoint that the next one continued from. Steps
    lost after it are not counted.
    """

    def __init__(self) -> None:
        self.examples, self.seconds = 0, 0.0
        self.earlier_seconds = 0.0  # of the attempts before this one
        self._began: float | None = None
        self._seen: set[int] = set()
        self._window = (0, 0.0)
        self._window_rate: float | None = None
        self._started = 0.0
        self._step_seconds: float | None = None

    def begin(self) -> None:
        """Note that this attempt trains from here on."""
        self._began = time.perf_counter()

    @property
    def run_seconds(self) -> float:
        """Return the seconds of the whole run, with compiling, validating and saving, without loading the data."""
        return self.earlier_seconds + (0.0 if self._began is None else time.perf_counter() - self._began)

    def expected_run_seconds(self, steps_to_come: int) -> float:
        """Return `run_seconds` once so many steps more are done; as they are where no step was timed yet."""
        return self.run_seconds + steps_to_come * (self._step_seconds or 0.0)

    def position(self) -> dict[str, float]:
        """Return the totals, for a checkpoint."""
        return {
            "run_seconds": self.run_seconds,
            "timed_seconds": self.seconds,
            "timed_examples": self.examples,
        }

    def resume(self, position: dict[str, float]) -> None:
        """Go on from what `position` gave."""
        self.earlier_seconds, self.seconds = position["run_seconds"], position["timed_seconds"]
        self.examples = int(position["timed_examples"])
        self._window = (self.examples, self.seconds)

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self, steps: int, batch_size: int) -> None:
        """Count `steps` of `batch_size` examples, done since `start`."""
        seconds = time.perf_counter() - self._started
        if batch_size not in self._seen:
            self._seen.add(batch_size)
            return
        self.examples += steps * batch_size
        self.seconds += seconds
        latest = seconds / steps
        self._step_seconds = latest if self._step_seconds is None else 0.5 * (self._step_seconds + latest)

    def steps_per_call(self, at_most: int) -> int:
        """Return how many steps the next call should have so that it takes about `TARGET_SECONDS`."""
        if self._step_seconds is None:
            return 1  # of a model that nobody has timed a step may take long
        return max(1, min(at_most, int(TARGET_SECONDS / max(self._step_seconds, 1e-6))))

    @property
    def examples_per_second(self) -> float | None:
        """Return the rate over the whole run; None before a call was timed."""
        return self.examples / self.seconds if self.seconds else None

    def window_rate(self) -> float | None:
        """Return the examples per second since this was called last.

        If nothing was timed since, as at the end of an epoch, the last rate; None before a call was timed."""
        examples, seconds = self.examples - self._window[0], self.seconds - self._window[1]
        self._window = (self.examples, self.seconds)
        if seconds:
            self._window_rate = examples / seconds
        return self._window_rate


@dataclass(frozen=True)
class Outcome:
    """The end of `fit`: `stop` by a health rule, `signal` by a signal, neither when it finished.

    `ended_early` is why a callback ended it before its last epoch; empty where none did.
    """

    progress: Progress
    stop: Stop | None = None
    signal: Signals | None = None
    ended_early: str = ""

    @property
    def finished(self) -> bool:
        return self.stop is None and self.signal is None


class Conclusion(NamedTuple):
    """The first fields of a `Summary`."""

    status: str
    exit_code: int
    verdict: str
    explanation: str
