"""The compiled loop: what the trainer needs of a backend, and the choice of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import config_error
from mpt_cli.precision import LossScaleOptimizer, layers_of
from mpt_cli.precision.scale_rules import FLOAT_FIELDS, INT_FIELDS
from mpt_cli.precision.scale_state import StepRow
from mpt_cli.precision.train_step import custom_steps, metric_variables, metrics_of, optimizers_of
from mpt_cli.telemetry.record_types import Metrics, StopLimits, StreakCounts
from mpt_cli.telemetry.step_counters import StepRecords

BatchIndices = NDArray[np.int32]
StepWrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


TRAINING, EVALUATION = "the training step", "the validation step"


class LoopResult(NamedTuple):
    """The result of a call, on the device: the number of steps `done`, and a row for each possible step: `floats` and
    `ints` as in `StepRecords`, float32 (capacity, 4 for each record) and int32 (capacity, 7 for each)."""

    done: Any
    floats: Any
    ints: Any


class Engine(ABC):
    """Runs training and evaluation steps on a compiled Keras model, several per call.

    `source` is what `to_device` returned: all examples, or a chunk of a stream. `batch_indices` has shape
    (capacity, batch) and type int32: the examples of each step; only the first `count` rows are used, so that one
    compilation serves every count. The results do not depend on how steps are divided into calls.
    """

    def __init__(self, model: Any, jit_compile: bool) -> None:
        self.model, self.jit_compile = model, jit_compile
        self.compiling: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
        self._compiled: set[tuple[Any, ...]] = set()
        self._results: Callable[[], dict[str, Any]] = lambda: metrics_of(model)
        self.replicas = 1  # replicas, each with its share of a batch
        self._was_evaluated = False  # since the last training step
        self.trains_in_whole_batches = False  # whether no batch to train on is known to be smaller than the others

    def _program(self, function: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        return (function, *shape)

    def announced(self, function: str, shape: tuple[int, ...]) -> AbstractContextManager[None]:
        """Return the context of a call of a compiled function: the first of each shape is announced through
        `compiling`."""
        program = self._program(function, shape)
        if program in self._compiled:
            return nullcontext()
        self._compiled.add(program)
        return self.compiling(function)

    @abstractmethod
    def to_device(self, arrays: Any) -> Any:
        """Move examples `(x, y, sample_weight)` of NumPy arrays to the device."""

    def train(
        self,
        source: Any,
        batch_indices: BatchIndices,
        count: int,
        stop_limits: StopLimits = StopLimits(),  # noqa: B008
    ) -> StepRecords:
        """Make `count` training steps, or fewer if a streak of `stop_limits` reaches its limit."""
        control = LoopControl.for_steps(count, stop_limits)
        self._was_evaluated = False
        with self.announced(TRAINING, batch_indices.shape):
            result = self._run_training(source, batch_indices, control)
        done = int(result.done)
        return StepRecords(np.asarray(result.floats)[:done], np.asarray(result.ints)[:done])

    @abstractmethod
    def _run_training(self, source: Any, batch_indices: BatchIndices, control: "LoopControl") -> LoopResult:
        """Run the steps of `train`; it need not wait for the device."""

    def evaluate(self, source: Any, batch_indices: BatchIndices, count: int) -> None:
        """Add `count` batches to the metrics, in inference mode."""
        self._was_evaluated = True
        with self.announced(EVALUATION, batch_indices.shape):
            self._add_to_metrics(source, batch_indices, count)

    @abstractmethod
    def rebuild(self) -> None:
        """Build the compiled functions, again if other layers are trained or the optimizer is another; call none."""

    @abstractmethod
    def batch(self, source: Any, row: NDArray[np.int32]) -> Any:
        """Return `(x, y, sample_weight)` of these examples, on the device."""

    def reset_metrics(self) -> None:
        """Forget the metrics so far."""
        type(self.model).reset_metrics(self.model)  # `fit` calls this method by that name of the model
        custom = custom_steps(self.model)
        for log in custom.variables if custom is not None else ():
            log.assign(np.full(tuple(log.shape), np.nan, "float32"))

    def metrics(self) -> Metrics:
        """Return the metrics since the last reset, with the loss; for custom steps, what the last one reported."""
        if (custom := custom_steps(self.model)) is not None:
            of_test = custom.test_names, custom.test_log
            names, log = of_test if self._was_evaluated else (custom.train_names, custom.train_log)
            if names:
                return dict(zip(names, np.asarray(log.numpy()).tolist(), strict=True))
        return read_metrics(self._results())

    def copy_metrics(self) -> list[tuple[Any, NDArray[Any]]]:
        """Return what the metrics have added up, each value with its variable."""
        return [(variable, np.asarray(variable.numpy())) for variable in metric_variables(self.model)]

    def put_back_metrics(self, copied: list[tuple[Any, NDArray[Any]]]) -> None:
        """Put the metrics back as they were at `copy_metrics`."""
        self._was_evaluated = False
        for variable, value in copied:
            variable.assign(value)

    @abstractmethod
    def _add_to_metrics(self, source: Any, batch_indices: BatchIndices, count: int) -> None:
        """Run the steps of `evaluate`, and return when they are done."""


def read_metrics(results: dict[str, Any]) -> Metrics:
    """Return Keras's metrics on the host; ConfigError for one that is not a single number."""
    found = {name: np.asarray(value) for name, value in results.items()}
    for name, value in found.items():
        if value.size != 1:
            raise config_error(
                "model",
                f"its metric {name} must be one number, not shape {value.shape}.",
                None,
                "Let its result() return a mean.",
            )
    return {name: float(value.item()) for name, value in found.items()}


class LoopControl(NamedTuple):
    """The inputs of a call: the number of steps, the streaks before it and their limits, int32 in the order of
    `StreakCounts`."""

    count: Any
    streaks: Any
    limits: Any

    @classmethod
    def for_steps(cls, count: int, stop_limits: StopLimits) -> "LoopControl":
        """Return the control on the host. A streak at its limit already (of a resumed run, say) leaves a step."""
        return cls(*(np.array(part, np.int32) for part in (count, stop_limits.streaks, stop_limits.reachable())))

    def go_on(self, done: Any, streaks: Any) -> Any:
        """Return whether there is a step after `done` of them: a boolean scalar."""
        return (done < self.count) & keras.ops.all(streaks < self.limits)


def row_lengths(model: Any) -> tuple[int, int]:
    """Return how many floats and ints the row of a step of this model has."""
    optimizers = len(optimizers_of(model))
    records = 1 if optimizers == 1 else 1 + optimizers
    return records * len(FLOAT_FIELDS), records * len(INT_FIELDS)


def update_streaks(streaks: Any, optimizer: LossScaleOptimizer, row: StepRow) -> Any:
    """Return the streaks, int32 (3,) in the order of `StreakCounts`, after this step, as `StepCounters` counts them."""
    ops, state = keras.ops, optimizer.scale_state
    assert state is not None
    lost, zero = ~ops.isfinite(row.scalar("loss")), row.scalar("zero") > 0
    applied = row.applied(not optimizer.scales)
    goes_on = StreakCounts(skips=~applied, non_finite_losses=lost, zero_steps=zero)
    counts = ops.stack([applied | True, applied, applied])  # a skipped step leaves the streaks of applied ones
    return ops.where(counts, ops.where(ops.stack(goes_on), streaks + 1, 0), streaks)


def convolves(model: Any) -> bool:
    """Return whether any layer is one of Keras's convolutions, which XLA on a CPU computes slowly inside a loop."""
    kinds = {kind for layer in layers_of(model) for kind in type(layer).__mro__}
    return any("Conv" in kind.__name__ and kind.__module__.startswith("keras.") for kind in kinds)
