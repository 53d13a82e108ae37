"""Using what a run left: its metrics on data again, and its model in other formats."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from mpt_cli.data.examples import DataSet
from mpt_cli.data.load import load_data
from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.settings.schema import Settings
from mpt_cli.training.assembly import build_metrics, call_capacity, choose_jit, compile_model
from mpt_cli.training.backend import Platform
from mpt_cli.training.checkpoint import Checkpoint
from mpt_cli.training.distribution import Distribution
from mpt_cli.training.engine import build_engine
from mpt_cli.training.feed import BatchPlan, build_feed
from mpt_cli.training.progress import Progress
from mpt_cli.training.state import restore_weights


@dataclass(frozen=True)
class Trained:
    """A run's saved model; with the weights of its best epoch where `best`, the checkpoint of that, is given."""

    path: Path
    best: Checkpoint | None = None


@dataclass(frozen=True)
class BestEpoch:
    """The epoch whose weights were kept, and by which value of which metric, as the run measured it."""

    epoch: int
    step: int  # after which its weights were saved
    monitor: str
    value: float


def best_epoch(kept: Checkpoint) -> BestEpoch:
    """Which epoch the best weights are of."""
    progress, monitor = Progress.from_position(kept.position["progress"]), str(kept.position["monitor"])
    return BestEpoch(progress.epoch, kept.step, monitor, progress.best[monitor])


def evaluate_model(settings: Settings, platform: Platform, trained: Trained, split: str) -> dict[str, float]:
    """Loss and metrics of the saved model over the `train` or `validation` split of the data in `settings`."""
    assert settings.seed is not None
    data = load_data(settings.data, settings.seed)
    examples = _split(data, split)
    model = load_trained(trained)
    compile_model(settings, model, data, None)
    build_metrics(model, examples, settings.trainer.batch_size)
    engine = build_engine(model, choose_jit(settings, platform, model), Distribution())
    plan = BatchPlan(settings.trainer.batch_size, call_capacity(settings.trainer, resident=False))
    feed = build_feed(examples, engine, plan, resident=False)
    feed.start(1)
    engine.reset_metrics()
    while (piece := feed.take(plan.capacity)) is not None:
        engine.evaluate(piece.source, piece.rows, piece.count)
    return engine.metrics()


def load_trained(trained: Trained) -> Any:
    """The model, not compiled; DataError when it can't be read."""
    path = trained.path
    try:
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:
        raise DataError(f"{path} can't be read as a Keras model: {error}") from error
    if trained.best is not None:
        restore_weights(model, trained.best.arrays)
    return model


def export_model(trained: Trained, kind: str, output: Path) -> None:
    """Write the model at `output`, which `check_target` found good, whole or not at all: `keras` (one file),
    `savedmodel` (a folder) or `onnx` (one file).
    """
    model = load_trained(trained)
    with _whole_or_nothing(output) as draft:
        if kind != "keras":
            model.export(draft, format={"savedmodel": "tf_saved_model"}.get(kind, kind), verbose=False)
        elif trained.best is None:
            shutil.copyfile(trained.path, draft)
        else:
            model.save(draft)


@contextmanager
def _whole_or_nothing(output: Path) -> Iterator[Path]:
    """A place beside `output` to write to, renamed at the end; whatever ends it before that, nothing is left there."""
    draft = output.with_name(f".{os.getpid()}-{output.name}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.rename(output)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"nothing was written to {output}") from None
    except OSError as error:
        raise DataError(f"{output} can't be written: {error.strerror or error}. Give another --output.") from error
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)


def _split(data: DataSet, split: str) -> Any:
    examples = data.train if split == "train" else data.validation
    if examples is None:
        raise ConfigError(Problem("--split", "this run's data has no validation split.", split, "Use --split train."))
    return examples
