"""What is compared: mpt, Keras's `fit` as a user would write it, and the bare compiled loop, each on the same model.

A contender takes a number of epochs, trains on from where it stands and returns the seconds that took. Set-up and the
first, compiling epoch are the caller's to leave out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from mpt_cli.data.examples import DataSet, Examples
from mpt_cli.engine.backend import Platform
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.sink_interface import Telemetry, TelemetryFiles
from mpt_cli.telemetry.sinks import build_telemetry
from mpt_cli.training.checkpoint import CheckpointStore
from mpt_cli.training.loss_and_optimizer import build_optimizer, compile_model
from mpt_cli.training.model import build_under_policy
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.training.session import Session, prepare

Turn = Callable[[int], float]


@dataclass(frozen=True)
class Cell:
    """One model under one policy, and where its telemetry goes."""

    settings: Settings
    platform: Platform
    data: DataSet
    folder: Path

    @property
    def arrays(self) -> tuple[Any, Any]:
        """Inputs and targets, cut to whole batches so that every step of every contender is the same work."""
        assert isinstance(self.data.train, Examples)
        count = self.steps * self.settings.trainer.batch_size
        return self.data.train.x[:count], self.data.train.y[:count]

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        assert isinstance(self.data.train, Examples)
        return self.data.train.size // self.settings.trainer.batch_size


class TimedTelemetry(Telemetry):
    """Telemetry that adds up the seconds it takes: a share of 1 % drowns in the noise of whole runs."""

    seconds = 0.0

    def _timed(self, report: Callable[[], None]) -> None:
        started = time.perf_counter()
        report()
        self.seconds += time.perf_counter() - started

    def progress(self, step: int, epoch: int, phase: str = "") -> None:
        self._timed(lambda: super(TimedTelemetry, self).progress(step, epoch, phase))

    def events(self, events: Any) -> None:
        self._timed(lambda: super(TimedTelemetry, self).events(events))

    def snapshot(self, snapshot: Any) -> None:
        self._timed(lambda: super(TimedTelemetry, self).snapshot(snapshot))


def prepared(cell: Cell, telemetry: Telemetry) -> Session:
    """A run before its first step, as `mpt train` prepares it."""
    store = CheckpointStore(cell.folder, 1, telemetry.message)
    session = prepare(RunDefinition(cell.settings), cell.platform, telemetry, store)
    telemetry.start(session.header(cell.folder))
    return session


def mpt_turn(cell: Cell, telemetry: Telemetry) -> Turn:
    """mpt's own trainer. `fit` makes no checkpoint at the end of a turn, so mpt makes none here."""
    session = prepared(cell, telemetry)
    session.checkpointer.save = lambda *_: None  # type: ignore[method-assign]

    def run(epochs: int) -> float:
        session.epochs = session.progress.epochs_completed + epochs
        started = time.perf_counter()
        outcome = session.fit()
        assert outcome.stop is None
        return time.perf_counter() - started

    return run


def file_telemetry(cell: Cell) -> TimedTelemetry:
    """Every file that `mpt train` writes while it trains, with a quiet console."""
    files = TelemetryFiles(cell.folder / cell.settings.policy.name)
    files.path.mkdir(exist_ok=True)
    return TimedTelemetry(build_telemetry(files, cell.settings.logger).sinks)


class TrainingTime(keras.callbacks.Callback):  # type: ignore[misc]
    """Seconds of the epochs themselves, without the set-up of a call to `fit`."""

    seconds = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self._started = time.perf_counter()

    def on_train_end(self, logs: Any = None) -> None:
        self.seconds = time.perf_counter() - self._started


def keras_model(cell: Cell) -> Any:
    """The same model, compiled as a user of Keras would: Keras wraps the optimizer under mixed_float16 itself."""
    model = build_under_policy(cell.settings, cell.data)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    if cell.settings.policy.name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, loss, metrics=["accuracy"], auto_scale_loss=False)
    return model


def fit_turn(cell: Cell, jit_compile: bool | None = None) -> Turn:
    """Plain `model.fit` over NumPy arrays; with None Keras chooses whether XLA compiles."""
    model, clock = keras_model(cell), TrainingTime()
    if jit_compile is not None:
        model.jit_compile = jit_compile
    x, y = cell.arrays

    def run(epochs: int) -> float:
        batch_size = cell.settings.trainer.batch_size
        model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0, callbacks=[clock])
        return clock.seconds

    return run


def bare_turn(cell: Cell) -> Turn:
    """The fastest way we know to run Keras's own `train_step` over resident data: the limit."""
    return loop_turn(cell, fastest(bare_loops(cell, keras_model(cell)), cell))


def plain_turn(cell: Cell, xla: bool = True) -> Turn:
    """The same with the settings' own optimizer and without a choice: on the device, on TensorFlow with XLA or not."""
    model = build_under_policy(cell.settings, cell.data)
    compile_model(cell.settings, model, cell.data, build_optimizer(cell.settings.optimizer, None))
    loops = bare_loops(cell, model)
    return loop_turn(cell, loops.get("device loop") or loops["XLA" if xla else "no XLA"])


def bare_loops(cell: Cell, model: Any) -> dict[str, Callable[[Any], None]]:
    if keras.backend.backend() == "tensorflow":
        from benchmarks.bare_tensorflow import loops
    else:
        from benchmarks.bare_jax import loops
    return loops(model, *cell.arrays)


def loop_turn(cell: Cell, run_steps: Callable[[Any], None]) -> Turn:
    rng = np.random.default_rng(0)

    def run(epochs: int) -> float:
        started = time.perf_counter()
        for _ in range(epochs):
            run_steps(permuted(rng, cell))
        return time.perf_counter() - started

    return run


def permuted(rng: np.random.Generator, cell: Cell) -> Any:
    size = cell.settings.trainer.batch_size
    return rng.permutation(cell.steps * size).astype(np.int32).reshape(cell.steps, size)


def fastest(loops: dict[str, Callable[[Any], None]], cell: Cell) -> Callable[[Any], None]:
    """Which of the loops takes the least time.

    By the least of five turns each: a busy moment must not choose the slower one. A turn is an epoch, or a few steps of
    a loop that is slow: XLA's convolutions can take seconds each.
    """
    epoch = permuted(np.random.default_rng(0), cell)

    def seconds(loop: Callable[[Any], None], rows: Any) -> float:
        started = time.perf_counter()
        loop(rows)
        return time.perf_counter() - started

    least = dict.fromkeys(loops, float("inf"))
    for name, loop in loops.items():
        loop(epoch[:4])  # compiles
        rows = epoch if seconds(loop, epoch[:4]) < 0.1 else epoch[:4]
        loop(rows)
        least[name] = min(seconds(loop, rows) for _ in range(5)) / len(rows)
    return loops[min(least, key=lambda name: least[name])]


CONTENDERS: dict[str, Callable[[Cell], Turn]] = {
    "mpt": lambda cell: mpt_turn(cell, file_telemetry(cell)),
    "fit": fit_turn,
    "fit, XLA": lambda cell: fit_turn(cell, jit_compile=True),
    "bare loop": bare_turn,
}
