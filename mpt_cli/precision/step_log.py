"""The records of the latest steps, kept by the optimizer inside the compiled step for whoever reads them later.

Keras's `fit` tells its callbacks nothing of a step but the metrics, and several steps may lie in one call. Here each
step writes a row into a ring of variables, which costs it two small updates, and a reader who comes by before the ring
has gone round once misses none.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.precision.finite import GradientDefects, Measured
from mpt_cli.precision.scale_state import TALLY, outcome_code

if TYPE_CHECKING:
    from mpt_cli.precision.optimizer import LossScaleOptimizer

Tensor = Any
FLOATS = ("loss", "scale_before", "scale_after", "learning_rate")
INTS = ("finite", "counter", "nan", "inf", "nearest", "holds_inf", "zero")


class StepRows(NamedTuple):
    """Steps in order: float32 (steps, 4) and int32 (steps, 7), columns as `FLOATS` and `INTS`.

    `loss` is nan where the step did not tell it. `lost` steps before them were overwritten unread.
    """

    floats: NDArray[np.float32]
    ints: NDArray[np.int32]
    lost: int = 0


class StepLog:
    """A ring of `capacity` rows in two variables, which are no part of a file or checkpoint.

    A plain object: what is an attribute of an optimizer and knows how to save itself would be saved with it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tells_loss = True  # until a step is traced that does not know its loss
        self.floats = self._variable(FLOATS, "float32")
        self.ints = self._variable(INTS, "int32")

    def _variable(self, columns: tuple[str, ...], dtype: str) -> keras.Variable:
        return keras.Variable(np.zeros((self.capacity, len(columns)), dtype), dtype=dtype, trainable=False,
                              aggregation="none", name=f"step_log_{dtype}")  # fmt: skip

    @property
    def variables(self) -> list[keras.Variable]:
        return [self.floats, self.ints]

    def read(self, values: list[Any], tally: Any, after: int) -> StepRows:
        """The steps since the `after`-th, from `values` of the variables and the optimizer's `tally`."""
        seen = count_of(tally, "seen")
        first = max(after, seen - self.capacity)
        places = np.arange(first, seen) % self.capacity
        floats, ints = (np.stack([copy[places] for copy in _copies(value)]) for value in values)
        return StepRows(_mean_loss(floats), _of_all_replicas(ints), first - after)


def count_of(tally: Any, name: str) -> int:
    """One of the counts of an optimizer's `tally`, by its name in `TALLY`."""
    return int(_copies(tally)[0][TALLY.index(name)])


def _copies(value: Tensor) -> list[NDArray[Any]]:
    """What each replica of a `tf.distribute` strategy noted, in a copy of its own; one array elsewhere."""
    mirrored = getattr(value, "values", None)
    return [np.asarray(copy) for copy in (mirrored if isinstance(mirrored, tuple) else [value])]


def _mean_loss(floats: NDArray[np.float32]) -> NDArray[np.float32]:
    """(replicas, steps, columns) as one: of what is not the loss all replicas have the same."""
    return np.concatenate([floats[..., :1].mean(0, dtype="float32"), floats[0, :, 1:]], axis=1)


def _of_all_replicas(ints: NDArray[np.int32]) -> NDArray[np.int32]:
    """(replicas, steps, columns) as one: finite and zero where all are, bad elements added up."""
    whole: NDArray[np.int32] = ints.max(0)
    for name, reduce in (("finite", ints.min), ("zero", ints.min), ("nan", ints.sum), ("inf", ints.sum)):
        column = INTS.index(name)
        whole[:, column] = reduce(0)[:, column]
    return whole


class StepStart(NamedTuple):
    """What must be read before a step: scale and learning rate, float32, and the steps before, all and skipped, int32.
    """

    scale: Tensor
    learning_rate: Tensor
    seen: Tensor
    skipped: Tensor


def start_of_step(optimizer: "LossScaleOptimizer") -> StepStart:
    """Of the variables as they are in the present scope."""
    rate = ops.cast(ops.convert_to_tensor(optimizer.learning_rate), "float32")
    return StepStart(optimizer.loss_scale, rate, optimizer.seen_steps, optimizer.skipped_steps)


def rows_of_step(
    optimizer: "LossScaleOptimizer", start: StepStart, measured: Measured, defects: GradientDefects, loss: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The row of a step that is over, as `FLOATS` and `INTS`; in the scope of the variables after it."""
    state, log = optimizer.scale_state, optimizer.step_log
    assert state is not None and log is not None
    log.tells_loss = log.tells_loss and loss is not None
    told = ops.convert_to_tensor(float("nan"), dtype="float32") if loss is None else ops.cast(loss, "float32")
    floats = ops.stack([told, start.scale, optimizer.loss_scale, start.learning_rate])
    outcome = measured.finite
    if state.rule.lets_through_after is not None:
        outcome = outcome_code(measured.finite, ops.equal(optimizer.skipped_steps, start.skipped))
    ints = [outcome, state.counter.value, defects.nan, defects.inf, defects.nearest,
            defects.holds_inf, defects.zero]  # fmt: skip
    return floats, ops.stack([ops.cast(value, "int32") for value in ints])

