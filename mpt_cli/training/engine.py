"""The compiled loop: what the trainer needs of a backend, and the choice of it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision import LossScaleOptimizer, layers_of
from mpt_cli.telemetry.ledger import FLOAT_FIELDS, INT_FIELDS, StepRecords
from mpt_cli.telemetry.records import LoggedSteps, StopLimits, StreakCounts
from mpt_cli.training.distribution import Distribution

BatchIndices = NDArray[np.int32]
StepWrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class LoopCall:
    """A call into the compiled loop, which may still be running on the device.

    `records` are the floats and ints of each step, and the metrics after each that has a line of the log, all on the
    device, as are the number of steps that were `done`, the metrics after them and whether the weights are finite.
    """

    def __init__(
        self, lines: LoggedSteps, names: list[str], records: Any, done: Any, metrics: Any, weights_are_finite: Any
    ) -> None:
        self.lines, self.names, self.records, self.done = lines, names, records, done
        self.metrics, self.weights_are_finite = metrics, weights_are_finite

    def wait(self) -> StepRecords:
        """Block until the steps are done and bring their records to the host."""
        floats, ints, vectors = (np.asarray(record) for record in self.records)
        count = int(self.done)
        inner = {
            number: named_metrics(self.names, vectors[number - 1])
            for number in range(self.lines.first, count + 1, self.lines.every)
        }
        return StepRecords(floats[:count], ints[:count], named_metrics(self.names, self.metrics), inner)


class Engine(ABC):
    """Runs training and evaluation steps on a compiled Keras model, several per call.

    `source` is what `place` returned: all examples on the device, or a chunk of a stream. `rows` has shape
    (capacity, batch) and type int32: the examples of each step; only the first `count` rows are used, so that one
    compilation serves every count. The results do not depend on how steps are divided into calls.

    Each call into a compiled function costs the host about as much as a step of a small model, so the training call
    also does what is wanted around it: it resets the metrics before it where that was asked for, and says after it
    whether the weights are finite.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._names: list[str] = []  # of the metrics, known once they are computed
        self._latest: LoopCall | None = None  # the last call, where nothing has changed since
        self._resets = False  # whether the metrics begin anew with the next call

    @abstractmethod
    def place(self, arrays: Any) -> Any:
        """Examples `(x, y, sample_weight)` of NumPy arrays, moved to the device."""

    @abstractmethod
    def train(
        self,
        source: Any,
        rows: BatchIndices,
        count: int,
        lines: LoggedSteps = LoggedSteps(),  # noqa: B008
        watch: StopLimits = StopLimits(),  # noqa: B008
    ) -> LoopCall:
        """Start `count` training steps, or fewer where a streak of `watch` reaches its limit.

        After those of `lines` the metrics are recorded as well.
        """

    def evaluate(self, source: Any, rows: BatchIndices, count: int) -> None:
        """Add `count` batches to the metrics, in inference mode."""
        self._reset_now()
        self._latest = None
        self._add_to_metrics(source, rows, count)

    @abstractmethod
    def recompile(self) -> None:
        """Compile the training step again: something that is part of it has changed, such as a schedule."""

    @abstractmethod
    def gradients(self, source: Any, row: NDArray[np.int32], scale: float) -> list[Any]:
        """Gradients of one batch under this loss scale, on the device; nothing in the model changes."""

    @abstractmethod
    def compare(self, base: list[Any], raised: list[Any]) -> list[float]:
        """`gradients.compare` as plain numbers."""

    def reset_metrics(self) -> None:
        """Forget the metrics so far."""
        self._resets = True

    def metrics(self) -> dict[str, float]:
        """The metrics since the last reset; loss among them."""
        self._reset_now()
        vector = self._compute_metrics() if self._latest is None else self._latest.metrics
        return named_metrics(self._names, vector)

    def weights_are_finite(self) -> bool:
        """Whether no trainable weight holds inf or nan."""
        return bool(self._check_weights() if self._latest is None else self._latest.weights_are_finite)

    def forget(self) -> None:
        """The model's variables were assigned from outside: what the last call said of them no longer holds."""
        self._latest, self._resets = None, False

    @abstractmethod
    def _add_to_metrics(self, source: Any, rows: BatchIndices, count: int) -> None:
        """`evaluate` itself."""

    @abstractmethod
    def _compute_metrics(self) -> Any:
        """`metric_vector` of the model's metrics as they are."""

    @abstractmethod
    def _check_weights(self) -> Any:
        """Boolean scalar on the device."""

    @abstractmethod
    def _clear_metrics(self) -> None:
        """Assign the metrics' initial values to their variables."""

    def _reset_now(self) -> None:
        if self._resets:
            self._resets, self._latest = False, None
            self._clear_metrics()

    def _take_reset(self) -> bool:
        resets, self._resets = self._resets, False
        return resets


def build_engine(
    model: Any, jit_compile: bool, distribution: Distribution, around: StepWrapper | None = None
) -> Engine:
    """The engine of the running backend for a built `model`; `around` wraps its training step (`faults`)."""
    if keras.backend.backend() == "tensorflow":
        from mpt_cli.training.engine_tensorflow import TensorFlowEngine

        return TensorFlowEngine(model, jit_compile, distribution.strategy, around)
    from mpt_cli.training.engine_jax import JaxEngine

    return JaxEngine(model, jit_compile, distribution.mesh, around)


def metric_vector(results: dict[str, Any]) -> Any:
    """Keras's metric results as one float32 vector on the device, in their order; ConfigError for one that is not a
    single number."""
    return keras.ops.stack([_single(name, keras.ops.cast(value, "float32")) for name, value in results.items()])


def _single(name: str, value: Any) -> Any:
    if math.prod(value.shape) != 1:
        raise ConfigError(Problem("model", f"its metric {name} must be one number, not shape {tuple(value.shape)}.",
                                  None, "Let its result() return a mean."))
    return keras.ops.reshape(value, ())


def named_metrics(names: list[str], vector: Any) -> dict[str, float]:
    """A `metric_vector` on the host, by the names of its entries."""
    return dict(zip(names, np.asarray(vector).tolist(), strict=True))


def control_vector(count: int, resets: bool, lines: LoggedSteps, watch: StopLimits) -> NDArray[np.int32]:
    """A call's orders as one vector, int32 (4 + 10,): see `Orders`."""
    return np.array([count, resets, *lines, *watch.numbers()], np.int32)


class LoopControl(NamedTuple):
    """The vector of `order_of` on the device: scalars, and the streaks before the call and their limits."""

    count: Any
    resets: Any
    first_line: Any
    every: Any
    streaks: Any
    limits: Any

    @classmethod
    def read(cls, vector: Any) -> "LoopControl":
        kinds = len(StreakCounts._fields)
        return cls(vector[0], vector[1], vector[2], vector[3], vector[4 : 4 + kinds], vector[4 + kinds :])

    def go_on(self, done: Any, streaks: Any) -> Any:
        """Boolean scalar: whether there is a step after `done` of them."""
        return (done < self.count) & keras.ops.all(streaks < self.limits)

    def has_line(self, done: Any) -> Any:
        """Boolean scalar: whether there is a line of the log after `done` steps of the call (`Lines`)."""
        return (done >= self.first_line) & ((done - self.first_line) % self.every == 0)


def update_streaks(streaks: Any, optimizer: LossScaleOptimizer, floats: Any, ints: Any) -> Any:
    """`Streaks`, int32 (5,), after the step with this record on the device, as `Ledger` counts them."""
    ops, state = keras.ops, optimizer.scale_state
    assert state is not None
    lost, zero = ~ops.isfinite(floats[FLOAT_FIELDS.index("loss")]), ints[INT_FIELDS.index("zero")] > 0
    applied = (ints[INT_FIELDS.index("finite")] > 0) | (optimizer.on_overflow == "apply")
    at_floor = floats[FLOAT_FIELDS.index("scale_before")] <= (state.rule.floor or 0.0)
    longer = ops.stack([~applied, ~applied, applied & lost, applied & zero, ~applied])
    broken = ops.stack([applied, ~at_floor, applied & ~lost, applied & ~zero, applied & ~applied])
    return ops.where(broken, 0, streaks + ops.cast(longer, "int32"))


def convolves(model: Any) -> bool:
    """Whether any layer is a convolution, which XLA on a CPU computes slowly inside a loop."""
    return any("Conv" in type(layer).__name__ for layer in layers_of(model))
