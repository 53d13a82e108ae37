"""The compiled loop: what the trainer needs of a backend, and the choice of it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray

from mpt_cli.engine.flow import Flow, FlowCounter, FlowMap, Updates, count_updates
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision import LossScaleOptimizer, StepRecord, layers_of
from mpt_cli.precision.finite import are_finite
from mpt_cli.precision.train_step import OwnSteps, metric_variables, optimizers_of, own_steps
from mpt_cli.telemetry.ledger import FLOAT_FIELDS, INT_FIELDS, StepRecords
from mpt_cli.telemetry.records import LoggedSteps, StopLimits, StreakCounts

BatchIndices = NDArray[np.int32]
StepWrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


TRAINING, EVALUATION, GRADIENTS = "the training step", "the validation step", "the sample of the gradients"


class LoopRecords(NamedTuple):
    """One row per step of a call, on the device: `floats` and `ints` as in `StepRecords`, float32 (capacity, 4 for each
    record) and int32 (capacity, 6 for each), and `metrics`, float32 (capacity, metrics), zeros where the log has no
    line."""

    floats: Any
    ints: Any
    metrics: Any


class LoopResult(NamedTuple):
    """What a call leaves on the device: how many steps were `done`, their records, the `metric_vector` after them."""

    done: Any
    records: LoopRecords
    metrics: Any


class LoopCall:
    """A call into the compiled loop, which may still be running on the device."""

    def __init__(self, logged: LoggedSteps, names: list[str], result: LoopResult) -> None:
        self.logged, self.names, self.result = logged, names, result

    def wait(self) -> StepRecords:
        """Block until the steps are done and bring their records to the host."""
        records = LoopRecords(*(np.asarray(array) for array in self.result.records))
        count = int(self.result.done)
        inner = {
            number: named_metrics(self.names, records.metrics[number - 1])
            for number in range(self.logged.first, count + 1, self.logged.every)
        }
        last = named_metrics(self.names, self.result.metrics)
        return StepRecords(records.floats[:count], records.ints[:count], last, inner)


class Engine(ABC):
    """Runs training and evaluation steps on a compiled Keras model, several per call.

    `source` is what `to_device` returned: all examples, or a chunk of a stream. `batch_indices` has shape
    (capacity, batch) and type int32: the examples of each step; only the first `count` rows are used, so that one
    compilation serves every count. The results do not depend on how steps are divided into calls.

    Each call into a compiled function costs the host about as much as a step of a small model, so the training call
    also does what is wanted around it: it resets the metrics before it where that was asked for, and says after it what
    they are.
    """

    def __init__(self, model: Any, jit_compile: bool) -> None:
        self.model, self.jit_compile = model, jit_compile
        self._names: list[str] = []  # of what a training step reports, known once that is computed
        self._metric_names: list[str] = []  # of the metrics: the same, unless the model's own step reports
        self._latest: LoopCall | None = None  # the last call, where nothing has changed since
        self._resets = False  # whether the metrics begin anew with the next call
        self.compiling: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
        self._compiled: set[tuple[Any, ...]] = set()
        self._was_evaluated = False  # since the last training step
        self.trains_in_whole_batches = False  # whether no batch to train on is known to be smaller than the others
        self._counters: dict[bool, FlowCounter] = {}  # of the model as it is, and with every layer in float32

    @property
    def own(self) -> OwnSteps | None:
        """Where the model brings a step of its own: what that reports instead of metrics."""
        return own_steps(self.model)

    def compiles(self, function: str, shape: tuple[int, ...]) -> bool:
        """Whether the next call of this function with batch indices of this shape is the first, which compiles."""
        return self._program(function, shape) not in self._compiled

    def _program(self, function: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        return (function, *shape)

    def _called(self, function: str, shape: tuple[int, ...] = ()) -> AbstractContextManager[None]:
        """Around a call of a compiled function: the first of each shape is announced through `compiling`."""
        if not self.compiles(function, shape):
            return nullcontext()
        self._compiled.add(self._program(function, shape))
        return self.compiling(function)

    @abstractmethod
    def to_device(self, arrays: Any) -> Any:
        """Examples `(x, y, sample_weight)` of NumPy arrays, moved to the device."""

    def train(
        self,
        source: Any,
        batch_indices: BatchIndices,
        count: int,
        logged: LoggedSteps = LoggedSteps(),  # noqa: B008
        stop_limits: StopLimits = StopLimits(),  # noqa: B008
    ) -> LoopCall:
        """Start `count` training steps, or fewer where a streak of `stop_limits` reaches its limit.

        After the `logged` ones the metrics are recorded as well.
        """
        control = LoopControl.of(count, self._resets, logged, stop_limits)
        self._was_evaluated = self._resets = False
        with self._called(TRAINING, batch_indices.shape):
            result = self._run_training(source, batch_indices, control)
        self._latest = LoopCall(logged, self._names, result)  # the first call finds the names
        return self._latest

    @abstractmethod
    def _run_training(self, source: Any, batch_indices: BatchIndices, control: "LoopControl") -> LoopResult:
        """`train` itself, which need not wait for the device."""

    def evaluate(self, source: Any, batch_indices: BatchIndices, count: int) -> None:
        """Add `count` batches to the metrics, in inference mode."""
        self._reset_now()
        self._latest, self._was_evaluated = None, True
        with self._called(EVALUATION, batch_indices.shape):
            self._add_to_metrics(source, batch_indices, count)

    def recompile(self) -> None:
        """Compile the training step again: something that is part of it has changed, such as a schedule."""
        self._compiled = {key for key in self._compiled if key[0] != TRAINING}
        self._make_training()

    def rebuild(self) -> None:
        """Compile everything again: other layers of the model are trained, by another optimizer."""
        self.forget_last_call()
        self._counters.clear()
        self._make_functions()

    @abstractmethod
    def _make_functions(self) -> None:
        """All that is compiled, not called yet."""

    @abstractmethod
    def _make_training(self) -> None:
        """The compiled training loop, not called yet."""

    def compile_training(self, source: Any, batch_indices: BatchIndices) -> str | None:
        """Compile what `train` calls for these shapes, with no step; what keeps XLA from it in words, None if nothing.

        JAX compiles at the first call: whatever it can trace, XLA can compile.
        """
        return None

    def compile_evaluation(self, source: Any, batch_indices: BatchIndices) -> str | None:
        """As `compile_training`, of what `evaluate` calls."""
        return None

    def leave_xla(self) -> None:  # noqa: B027
        """Go on without XLA, where `compile_training` or `compile_evaluation` met something; nothing is lost."""

    @abstractmethod
    def batch(self, source: Any, row: NDArray[np.int32]) -> Any:
        """`(x, y, sample_weight)` of these examples, on the device."""

    @property
    @abstractmethod
    def compiles_flows(self) -> bool:
        """Whether the first `flow` of each kind is compiled, which takes far longer than a later one."""

    @abstractmethod
    def flow(self, source: Any, row: NDArray[np.int32], scale: float, in_float32: bool) -> Flow:
        """What flows in a training step of one batch under this loss scale; nothing in the model changes.

        With `in_float32` of the model with every layer in float32. float16 is rounded where the layers round it, also
        where the training step keeps more between the operations it fuses.
        """

    def flow_map(self) -> FlowMap:
        """Which layer each row of a `Flow` is of; known after the first one of the model as it is."""
        return FlowMap.of(self.model, self._counter(False).probes)

    def updates(self, shadow: Flow, scale: float) -> Updates | None:
        """What rounding leaves of the step that a `Flow` in float32 would make; None where no weight is rounded."""
        return count_updates(self.model, shadow.gradients, scale) if shadow.gradients else None

    def _counter(self, in_float32: bool) -> FlowCounter:
        if in_float32 not in self._counters:
            self._counters[in_float32] = FlowCounter(self.model, in_float32)
        return self._counters[in_float32]

    def reset_metrics(self) -> None:
        """Forget the metrics so far."""
        self._resets = True

    def metrics(self) -> dict[str, float]:
        """The metrics since the last reset; loss among them."""
        self._reset_now()
        if self._latest is None and (reported := self._reported()) is not None:
            return reported
        if self._latest is not None:
            return named_metrics(self._names, self._latest.result.metrics)
        vector = self._compute_metrics()  # which finds the names
        return named_metrics(self._metric_names, vector)

    def copy_metrics(self) -> list[tuple[Any, NDArray[Any]]]:
        """What the metrics have added up, each value with its variable."""
        return [(variable, np.asarray(variable.numpy())) for variable in metric_variables(self.model)]

    def put_back_metrics(self, copied: list[tuple[Any, NDArray[Any]]]) -> None:
        """As they were at `copy_metrics`."""
        self.forget()
        self._was_evaluated = False
        for variable, value in copied:
            variable.assign(value)

    def weights_are_finite(self) -> bool:
        """Whether no trainable weight holds inf or nan."""
        return are_finite(self.model.trainable_variables)

    def forget(self) -> None:
        """The model's variables were assigned from outside: what the last call said of them no longer holds."""
        self._latest, self._resets = None, False

    def forget_last_call(self) -> None:
        """Some of them may have been; metrics that were to begin anew still do."""
        self._latest = None

    @abstractmethod
    def _add_to_metrics(self, source: Any, batch_indices: BatchIndices, count: int) -> None:
        """`evaluate` itself, which returns when it is done."""

    @abstractmethod
    def _compute_metrics(self) -> Any:
        """`metric_vector` of the model's metrics as they are."""

    @abstractmethod
    def _clear_metrics(self) -> None:
        """Assign the metrics' initial values to their variables."""

    def _reported(self) -> dict[str, float] | None:
        """What the last own step of the model returned; None where that step is Keras's."""
        if self.own is None:
            return None
        names, log = self.own.train_names, self.own.train_log
        if self._was_evaluated:
            names, log = self.own.test_names, self.own.test_log
        return named_metrics([*names], log.numpy()) if names else None

    def _reset_now(self) -> None:
        if self._resets:
            self._resets, self._latest = False, None
            self._clear_metrics()


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


class LoopControl(NamedTuple):
    """What a call is told: how many steps, whether the metrics begin anew, after which steps the log has a line
    (`LoggedSteps`), and the streaks before the call and their limits, int32 in the order of `StreakCounts`.

    It goes to the device as one int32 vector, since each array costs the host a transfer.

    >>> control = LoopControl.of(8, False, LoggedSteps(2, 4), StopLimits())
    >>> control.pack().tolist()
    [8, 0, 2, 4, 0, 0, 0, 0, 0, 1073741824, 1073741824, 1073741824, 1073741824, 1073741824]
    >>> LoopControl.unpack(control.pack()).limits.tolist() == list(control.limits)
    True
    """

    count: Any
    resets: Any
    first_logged: Any
    every: Any
    streaks: Any
    limits: Any

    @classmethod
    def of(cls, count: int, resets: bool, logged: LoggedSteps, stop_limits: StopLimits) -> "LoopControl":
        """On the host. A streak at its limit already (of a resumed run, say) leaves a step."""
        return cls(count, resets, logged.first, logged.every, stop_limits.streaks, stop_limits.reachable())

    def pack(self) -> NDArray[np.int32]:
        """All fields, one after the other."""
        return np.hstack(self).astype(np.int32)

    @classmethod
    def unpack(cls, vector: Any) -> "LoopControl":
        """The fields of a vector that `pack` made, on the host or the device."""
        fields, end = dict[str, Any](), 0
        for name in cls._fields:
            start, end = end, end + (len(StreakCounts._fields) if name in ("streaks", "limits") else 1)
            fields[name] = vector[start:end] if end - start > 1 else vector[start]
        return cls(**fields)

    def go_on(self, done: Any, streaks: Any) -> Any:
        """Boolean scalar: whether there is a step after `done` of them."""
        return (done < self.count) & keras.ops.all(streaks < self.limits)

    def is_logged(self, done: Any) -> Any:
        """Boolean scalar: whether the log has a line after `done` steps of the call."""
        return (done >= self.first_logged) & ((done - self.first_logged) % self.every == 0)


def pack_record(record: StepRecord) -> tuple[Any, Any]:
    """A step's row of `StepRecords.floats` and of `.ints`, on the device."""
    ops, records = keras.ops, (record, *record.optimizers)
    floats = ops.stack([getattr(each, name) for each in records for name in FLOAT_FIELDS])
    ints = [getattr(each, name) for each in records for name in INT_FIELDS]
    return floats, ops.stack([ops.cast(value, "int32") for value in ints])


def row_lengths(model: Any) -> tuple[int, int]:
    """How many floats and ints `pack_record` gives for a step of this model."""
    optimizers = len(optimizers_of(model))
    records = 1 if optimizers == 1 else 1 + optimizers
    return records * len(FLOAT_FIELDS), records * len(INT_FIELDS)


def update_streaks(streaks: Any, optimizer: LossScaleOptimizer, record: StepRecord) -> Any:
    """The streaks, int32 (5,) in the order of `StreakCounts`, after this step, as `Ledger` counts them."""
    ops, state = keras.ops, optimizer.scale_state
    assert state is not None
    lost, zero = ~ops.isfinite(record.loss), record.zero > 0
    applied = record.applied(optimizer.on_overflow == "apply")
    at_floor = record.scale_before <= (state.rule.floor or 0.0)
    longer: StreakCounts[Any] = StreakCounts(
        skips=~applied, floor_skips=~applied, non_finite_losses=applied & lost, zero_steps=applied & zero,
        skips_in_call=~applied,
    )  # fmt: skip
    broken: StreakCounts[Any] = StreakCounts(
        skips=applied, floor_skips=~at_floor, non_finite_losses=applied & ~lost, zero_steps=applied & ~zero,
        skips_in_call=applied & ~applied,
    )  # fmt: skip
    return ops.where(ops.stack(broken), 0, streaks + ops.cast(ops.stack(longer), "int32"))


def convolves(model: Any) -> bool:
    """Whether any layer is a convolution, which XLA on a CPU computes slowly inside a loop."""
    return any("Conv" in type(layer).__name__ for layer in layers_of(model))
