"""The variables of loss scaling: the state of the rule and the tally of steps, saved as one unit, their public readers,
and the log of steps, which others read later.

Keras's `fit` gives its callbacks only the metrics of a step, and one call may make several steps. Here each step writes
a row into a ring of variables, at the cost of two small updates; a reader that comes before the ring is full again
misses no step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.precision.gradient_check import GradientMeasurement, Tensor, on_host
from mpt_cli.precision.keras_internals import KerasSaveable, has_value
from mpt_cli.precision.scale_rules import FLOAT_FIELDS, INT_FIELDS, RuleState, ScaleRule

TALLY = ("seen", "applied", "skipped", "consecutive_skips", "growths", "backoffs")


class ScaleState(KerasSaveable):  # type: ignore[misc]
    """Scale, counters and tally of one optimizer, as non-trainable Keras variables.

    `rule` moves the scale. The tally is one int32 vector in the order of `TALLY`, so that a step pays for one update.
    Saved by Keras as a child of the optimizer (`save_own_variables`), by name, so that adding a variable later does
    not shift the others.
    """

    def __init__(self, rule: ScaleRule) -> None:
        self.rule = rule
        values = {**rule.initial(), "tally": np.zeros(len(TALLY), "int32")}
        self.by_name = {name: _variable(value, f"loss_scale_{name}") for name, value in values.items()}

    @property
    def variables(self) -> list[keras.Variable]:
        return list(self.by_name.values())

    @property
    def scale(self) -> keras.Variable:
        return self.by_name["scale"]

    @property
    def counter(self) -> keras.Variable:
        return self.by_name["counter"]

    def _obj_type(self) -> str:
        return "Optimizer"  # Keras's saving knows a fixed list of kinds; this one keeps `variables`

    def save_own_variables(self, store: Any) -> None:
        for name, variable in self.by_name.items():
            store[name] = ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        """Load the variables that are stored under known names; a file without any of them leaves the initial state."""
        for name in set(store.keys()) & set(self.by_name):
            self.by_name[name].assign(store[name])

    def read(self, name: str) -> Any:
        """Return a copy of the value of one variable.

        Raises RuntimeError while Keras on JAX keeps the values inside `fit`.
        """
        variable = self.by_name[name]
        try:
            return ops.copy(variable)
        except TypeError:
            if has_value(variable):
                raise
            raise RuntimeError(
                f"loss_scale_{name} can't be read here: during `fit` Keras on JAX holds the optimizer's "
                "values itself. In a callback read `self.model.optimizer`, which brings them back, or "
                "record the run with mpt.Recorder."
            ) from None

    def count(self, name: str) -> Any:
        """Return one entry of the tally, int32 scalar; `name` is one of `TALLY`."""
        return self.read("tally")[TALLY.index(name)]

    def advance(self, measured: GradientMeasurement, applied: Any) -> None:
        """Move on by one step; `applied` tells whether the inner optimizer used the gradients: a boolean scalar."""
        before = {name: ops.copy(variable) for name, variable in self.by_name.items()}
        new = next_values(self.rule, before, measured, applied)
        for name, variable in self.by_name.items():
            variable.assign(new[name])


def _variable(value: Any, name: str) -> keras.Variable:
    """Return a variable with the dtype of `value`, of which each replica has its copy."""
    return keras.Variable(np.asarray(value), dtype=str(value.dtype), trainable=False, aggregation="none", name=name)


def next_values(rule: ScaleRule, values: RuleState, measured: GradientMeasurement, applied: Any) -> RuleState:
    """Compute `ScaleState.advance` as a pure function of tensors, for stateless optimizers."""
    tally = values["tally"]
    new = rule.advance({name: value for name, value in values.items() if name != "tally"}, measured)
    was_applied = ops.cast(applied, "int32")
    grew = ops.cast(new["scale"] > values["scale"], "int32")
    fell = ops.cast(new["scale"] < values["scale"], "int32")
    step = ops.stack([1 + 0 * was_applied, was_applied, 1 - was_applied, 1 - was_applied, grew, fell])
    keep = ops.stack([1, 1, 1, 1 - was_applied, 1, 1])
    return {**new, "tally": tally * keep + step}


def _tally(name: str, meaning: str) -> property:
    def read(self: "ScaleAttributesMixin") -> Tensor:
        return self.scale_state.count(name) if self.scale_state else ops.zeros((), "int32")

    return property(read, doc=f"{meaning}, int32 scalar.")


class ScaleAttributesMixin:
    """Mixin: every value is readable before the first step too, where it is the initial one."""

    scale_state: ScaleState | None
    _rule: ScaleRule

    @property
    def rule(self) -> ScaleRule:
        """Return how the scale moves, a frozen value."""
        return self._rule

    @property
    def dynamic(self) -> bool:
        """Return whether the scale moves."""
        return self.rule.moves

    @property
    def scales(self) -> bool:
        """Return whether loss and gradients are multiplied and divided at all."""
        return self.rule.scales

    @property
    def initial_scale(self) -> float:
        """Return the scale before the first step."""
        return self.rule.initial_scale

    @property
    def loss_scale(self) -> Tensor:
        """Return the current scale, float32 scalar."""
        return self._value("scale")

    @property
    def dynamic_scale(self) -> Any:
        """Keras 3's name for the variable behind `loss_scale`."""
        return self.scale_state.scale if self.scale_state else self.loss_scale

    @property
    def step_counter(self) -> Any:
        """Keras 3's name for the variable behind `dynamic_counter`."""
        return self.scale_state.counter if self.scale_state else self._value("counter")

    @property
    def dynamic_counter(self) -> Tensor | None:
        """Return the applied steps since the scale last changed, int32 scalar; None in fixed mode."""
        return self._value("counter") if self.dynamic else None

    @property
    def dynamic_growth_steps(self) -> int | None:
        """Return the applied steps before a growth; None if the scale does not grow by steps."""
        return self.rule.growth_steps

    seen_steps = _tally("seen", "Steps so far, applied and skipped")
    applied_steps = _tally("applied", "Steps whose gradients the inner optimizer used")
    skipped_steps = _tally("skipped", "Steps that changed nothing because gradients were not finite")
    consecutive_skips = _tally("consecutive_skips", "Skipped steps since the last applied one")
    growths = _tally("growths", "How often the scale rose")
    backoffs = _tally("backoffs", "How often the scale fell")

    def _value(self, name: str) -> Tensor:
        if self.scale_state:
            return self.scale_state.read(name)
        return ops.convert_to_tensor(self.rule.initial()[name])


NO_UPDATE = (1, 0, 0, 0, -1, 0, 1)


class StepRow(NamedTuple):
    """The record of one step, on the device, from which telemetry is made: float32 (4,) and int32 (7,), columns as
    `FLOAT_FIELDS` and `INT_FIELDS`.

    `loss` is the unscaled loss; `scale_before` made this step's gradients, `scale_after` makes the next step's;
    `counter` counts applied steps since the scale changed; `finite` and the last five are those of the gradients
    (`gradient_check.GradientDefects`). Where a model's own step uses several optimizers, these are of all together,
    and the columns of each follow.
    """

    floats: Tensor
    ints: Tensor

    def scalar(self, name: str) -> Tensor:
        """Return the scalar of that name."""
        return self.floats[FLOAT_FIELDS.index(name)] if name in FLOAT_FIELDS else self.ints[INT_FIELDS.index(name)]

    def applied(self, whatever: bool = False) -> Tensor:
        """Return whether the gradients were applied: if they are finite, or `whatever` they are."""
        return ops.logical_or(self.scalar("finite") > 0, whatever)


class StepRows(NamedTuple):
    """Steps in order: float32 (steps, 4) and int32 (steps, 7), columns as `FLOAT_FIELDS` and `INT_FIELDS`.

    `loss` is nan if the step did not report it. `lost` earlier steps were overwritten before they were read.
    """

    floats: NDArray[np.float32]
    ints: NDArray[np.int32]
    lost: int = 0


class StepLog:
    """A ring of `capacity` rows in two variables, which are no part of a file or checkpoint.

    A plain object, because an attribute of an optimizer that can save itself would be saved with the optimizer.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tells_loss = True  # until a step is traced that does not know its loss
        self.floats = _variable(np.zeros((capacity, len(FLOAT_FIELDS)), "float32"), "step_log_float32")
        self.ints = _variable(np.zeros((capacity, len(INT_FIELDS)), "int32"), "step_log_int32")

    @property
    def variables(self) -> list[keras.Variable]:
        return [self.floats, self.ints]

    def read(self, values: list[Any], tally: Any, after: int) -> StepRows:
        """Return the steps since the `after`-th, from `values` of the variables and the optimizer's `tally`."""
        seen = count_of(tally, "seen")
        first = max(after, seen - self.capacity)
        rows = np.arange(first, seen) % self.capacity
        floats, ints = (np.stack([copy[rows] for copy in _copies(value)]) for value in values)
        # the copies of replicas differ only in the loss
        merged = np.concatenate([floats[..., :1].mean(0, dtype="float32"), floats[0, :, 1:]], axis=1)
        return StepRows(merged, combined_ints(ints, np).astype("int32"), first - after)


def count_of(tally: Any, name: str) -> int:
    """Return one of the counts of an optimizer's `tally`, by its name in `TALLY`."""
    return int(_copies(tally)[0][TALLY.index(name)])


def _copies(value: Tensor) -> list[NDArray[Any]]:
    """Return the copy of each replica of a `tf.distribute` strategy; one array elsewhere."""
    mirrored = getattr(value, "values", None)
    return [on_host(copy) for copy in (mirrored if isinstance(mirrored, tuple) else [value])]


def combined_ints(ints: Any, numpy: Any = ops) -> Any:
    """Merge (parts, ..., columns) over the replicas or optimizers of a step: `finite` and `zero` if all are, counts of
    bad elements added up. Pass `numpy` on the host."""
    whole = {
        "finite": numpy.min,
        "zero": numpy.min,
        "nan": numpy.sum,
        "inf": numpy.sum,
        "counter": lambda of_each, _: of_each[0],
    }
    columns = enumerate(INT_FIELDS)
    return numpy.stack([whole.get(name, numpy.max)(ints[..., index], 0) for index, name in columns], axis=-1)


class StepStart(NamedTuple):
    """The values to read before a step: scale and learning rate, float32, and the number of earlier steps, int32."""

    scale: Tensor
    learning_rate: Tensor
    seen: Tensor


def start_of_step(optimizer: Any) -> StepStart:
    """Read the variables as they are in the present scope."""
    rate = ops.cast(ops.convert_to_tensor(optimizer.learning_rate), "float32")
    return StepStart(optimizer.loss_scale, rate, optimizer.seen_steps)


def row_of_step(optimizer: Any, start: StepStart, loss: Tensor | None, found: Sequence[Tensor]) -> StepRow:
    """Return the row of a finished step, in the scope of the variables after it. `found` has the columns about the
    gradients, in order; a loss of None is unknown."""
    state = optimizer.scale_state
    assert state is not None
    told = ops.cast(float("nan") if loss is None else loss, "float32")
    finite, *defects = found
    ints = [ops.cast(value, "int32") for value in (finite, state.counter.value, *defects)]
    return StepRow(ops.stack([told, start.scale, optimizer.loss_scale, start.learning_rate]), ops.stack(ints))


def row_since(optimizer: Any, start: StepStart, loss: Tensor) -> StepRow:
    """Return the row of a custom step, from the log of all updates that it made since its `start`.

    The first update that was not finite says which variable was bad, and whether it has inf.
    """
    log = optimizer.step_log
    updates = ops.arange(log.capacity, dtype="int32")
    rows = ops.take(log.ints.value, (start.seen + updates) % log.capacity, axis=0)
    is_made = updates < optimizer.seen_steps - start.seen
    rows = ops.where(is_made[:, None], rows, ops.convert_to_tensor(NO_UPDATE, dtype="int32"))
    is_bad = rows[:, INT_FIELDS.index("nearest")] >= 0
    first = ops.take(rows, ops.argmax(ops.cast(is_bad, "int32")), axis=0)
    whole = dict(zip(INT_FIELDS, ops.unstack(combined_ints(rows)), strict=True))
    whole |= {name: first[INT_FIELDS.index(name)] for name in ("nearest", "holds_inf")}
    return row_of_step(optimizer, start, loss, [whole[name] for name in INT_FIELDS if name != "counter"])


def index_of(nearest: Tensor, variables: Sequence[Any], optimizer: Any) -> Tensor:
    """Return the index of a variable among all that the optimizer was built for; it is the one at `nearest` of those
    that an update was given, -1 for none."""
    known = {id(variable): index for index, variable in enumerate(optimizer.trained_variables)}
    indices = [known.get(id(variable), -1) for variable in variables]
    if indices == list(range(len(indices))):
        return nearest
    index = ops.take(ops.convert_to_tensor(indices, dtype="int32"), ops.maximum(nearest, 0))
    return ops.where(nearest < 0, -1, index)
