"""A finished run's model: loaded again, and its loss and metrics on the data of the run.

What can be wrong with the run is found before Keras is imported, which happens inside functions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.data.examples import DataSet
from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.models.keras_file import damage_of
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.resume import stored_settings
from mpt_cli.settings.recipes import conf_override, shell_command
from mpt_cli.settings.schema import Settings
from mpt_cli.training import backend
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore, restore_weights
from mpt_cli.training.distribution import Distribution, undistributed
from mpt_cli.training.program import SettingsProgram
from mpt_cli.training.progress import Progress


def evaluate(
    run_path: str, split: str = "validation", best: bool = False
) -> "tuple[dict[str, float], BestEpoch | None]":
    """Metrics of a finished run's model on the `train` or `validation` split of the run's data.

    `best`: with the weights of the best epoch by `trainer.monitor` instead of the last, and which epoch that is.
    """
    run = RunDirectory.open(run_path)
    settings = undistributed(stored_settings(run))
    check_model(run)
    kept = CheckpointStore(run.checkpoints).best() if best else None
    platform = backend.prepare_backend(settings)

    metrics = evaluate_model(settings, platform, TrainedModel(run.model_keras, kept), split)
    return metrics, None if kept is None else best_epoch(kept)


def check_model(run: RunDirectory) -> None:
    """DataError where the run has no saved model or a damaged one, before Keras is imported to read it."""
    path = run.model_keras
    if not path.is_file():
        raise DataError(f"{path} does not exist: the run ended before its model was saved, or trainer.save_model was "
                        "false.")
    damage = damage_of(path)
    if damage is not None:
        again = shell_command("train", conf_override(run.config_yaml))
        raise DataError(f"{path} is damaged: {damage}. Train it again: {again}")


@dataclass(frozen=True)
class TrainedModel:
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


def evaluate_model(
    settings: Settings, platform: backend.Platform, trained: TrainedModel, split: str
) -> dict[str, float]:
    """Loss and metrics of the saved model over the `train` or `validation` split of the data in `settings`."""
    from mpt_cli.training.assembly import build_metrics, call_capacity, choose_jit, compile_model
    from mpt_cli.training.engine import build_engine
    from mpt_cli.training.feed import BatchPlan, build_feed

    data = SettingsProgram(settings).load_data()
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
        engine.evaluate(piece.source, piece.batch_indices, piece.count)
    return engine.metrics()


def load_trained(trained: TrainedModel) -> Any:
    """The model, not compiled; DataError when it can't be read."""
    import keras

    path = trained.path
    try:
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:
        raise DataError(f"{path} can't be read as a Keras model: {error}") from error
    if trained.best is not None:
        restore_weights(model, trained.best.arrays)
    return model


def _split(data: DataSet, split: str) -> Any:
    examples = data.train if split == "train" else data.validation
    if examples is None:
        raise ConfigError(Problem("--split", "this run's data has no validation split.", split, "Use --split train."))
    return examples
