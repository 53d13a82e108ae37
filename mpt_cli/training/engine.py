"""The compiled loop: what the trainer needs of a backend, and the choice of it."""

from collections.abc import Callable
from typing import Any, Protocol

import keras
import numpy as np
from numpy.typing import NDArray

from mpt_cli.precision import layers_of
from mpt_cli.telemetry.block import Block, Lines
from mpt_cli.training.distribution import Distribution

Rows = NDArray[np.int32]
Around = Callable[[Callable[..., Any]], Callable[..., Any]]


class Pending(Protocol):
    """The result of a call that may still be running on the device."""

    def wait(self) -> Block:
        """Block until the steps are done and bring their records to the host."""


class Engine(Protocol):
    """Runs training and evaluation steps on a compiled Keras model, several per call.

    `source` is what `place` returned: all examples on the device, or a chunk of a stream. `rows` has shape
    (capacity, batch) and type int32: the examples of each step; only the first `count` rows are used, so that one
    compilation serves every count. The results do not depend on how steps are divided into calls.
    """

    def place(self, arrays: Any) -> Any:
        """Examples `(x, y, sample_weight)` of NumPy arrays, moved to the device."""

    def train(self, source: Any, rows: Rows, count: int, lines: Lines = Lines()) -> Pending:  # noqa: B008 a constant
        """Start `count` training steps. After those of `lines` the metrics are recorded as well."""

    def evaluate(self, source: Any, rows: Rows, count: int) -> None:
        """Add `count` batches to the metrics, in inference mode."""

    def reset_metrics(self) -> None:
        """Forget the metrics so far."""

    def metrics(self) -> dict[str, float]:
        """The metrics since the last reset; loss among them."""

    def weights_are_finite(self) -> bool:
        """Whether no trainable weight holds inf or nan."""

    def forget(self) -> None:
        """The model's variables were assigned from outside: what the last call said of them no longer holds."""

    def recompile(self) -> None:
        """Compile the training step again: something that is part of it has changed, such as a schedule."""

    def gradients(self, source: Any, row: NDArray[np.int32], scale: float) -> list[Any]:
        """Gradients of one batch under this loss scale, on the device; nothing in the model changes."""

    def compare(self, base: list[Any], raised: list[Any]) -> list[float]:
        """`gradients.compare` as plain numbers."""


def build_engine(model: Any, jit_compile: bool, distribution: Distribution, around: Around | None = None) -> Engine:
    """The engine of the running backend for a built `model`; `around` wraps its training step (`faults`)."""
    if keras.backend.backend() == "tensorflow":
        from mpt_cli.training.engine_tensorflow import TensorFlowEngine

        return TensorFlowEngine(model, jit_compile, distribution.strategy, around)
    from mpt_cli.training.engine_jax import JaxEngine

    return JaxEngine(model, jit_compile, distribution.mesh, around)


def metric_vector(results: dict[str, Any]) -> Any:
    """Keras's metric results as one float32 vector on the device, in their order."""
    return keras.ops.stack([keras.ops.reshape(keras.ops.cast(value, "float32"), ()) for value in results.values()])


def named_metrics(names: list[str], vector: Any) -> dict[str, float]:
    """A `metric_vector` on the host, by the names of its entries."""
    return dict(zip(names, np.asarray(vector).tolist(), strict=True))


def has_line(done: Any, first: Any, every: Any) -> Any:
    """Boolean scalar on the device: whether there is a line of the log after `done` steps of a call (`Lines`)."""
    return (done >= first) & ((done - first) % every == 0)


def block_of(records: tuple[Any, Any, Any], count: int, lines: Lines, metrics: dict[str, float]) -> Block:
    """The block of a call: its `records` (floats, ints, metric vectors) have a row per step and more behind them."""
    floats, ints, vectors = (np.asarray(record)[:count] for record in records)
    numbers = range(lines.first, count + 1, lines.every)
    inner = {number: named_metrics([*metrics], vectors[number - 1]) for number in numbers}
    return Block(floats, ints, metrics, inner)


def convolves(model: Any) -> bool:
    """Whether any layer is a convolution, which XLA on a CPU computes slowly inside a loop."""
    return any("Conv" in type(layer).__name__ for layer in layers_of(model))
