"""Using what a run left: its metrics on data again, and its model in other formats."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import keras

from mpt_cli.data.examples import DataSet
from mpt_cli.data.load import load_data
from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.settings.schema import Settings
from mpt_cli.training.assembly import build_metrics, call_capacity, choose_jit, compile_model
from mpt_cli.training.backend import Platform
from mpt_cli.training.distribution import Distribution
from mpt_cli.training.engine import build_engine
from mpt_cli.training.feed import BatchPlan, build_feed

FORMATS = ("keras", "savedmodel", "onnx")


def evaluate_model(settings: Settings, platform: Platform, model_path: Path, split: str) -> dict[str, float]:
    """Loss and metrics of the saved model over the `train` or `validation` split of the data in `settings`."""
    assert settings.seed is not None
    data = load_data(settings.data, settings.seed)
    examples = _split(data, split)
    model = load_trained(model_path)
    compile_model(settings, model, data, None)
    build_metrics(model, examples, settings.trainer.batch_size)
    engine = build_engine(model, choose_jit(settings, platform, model), Distribution())
    plan = BatchPlan(settings.trainer.batch_size, call_capacity(settings.trainer))
    feed = build_feed(examples, engine, plan, resident=False)
    feed.start(1)
    engine.reset_metrics()
    while (piece := feed.take(plan.capacity)) is not None:
        engine.evaluate(piece.source, piece.rows, piece.count)
    return engine.metrics()


def load_trained(path: Path) -> Any:
    """The saved model, not compiled; DataError when there is none or it can't be read."""
    if not path.is_file():
        raise DataError(f"{path} does not exist: the run ended before its model was saved, or trainer.save_model was "
                        "false.")
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:
        raise DataError(f"{path} can't be read as a Keras model: {error}") from error


def export_model(model_path: Path, kind: str, output: Path) -> None:
    """Write the model at `output`: `keras` (one file), `savedmodel` (a folder) or `onnx` (one file).

    Nothing that exists is overwritten (DataError). ConfigError where the exporter is not installed.
    """
    if output.exists():
        raise DataError(f"{output} exists already. Nothing was changed; give another --output.")
    output.parent.mkdir(parents=True, exist_ok=True)
    if kind == "keras":
        load_trained(model_path)
        shutil.copyfile(model_path, output)
        return
    needed = {"savedmodel": ["tensorflow"], "onnx": ["onnx", "tf2onnx"]}[kind]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(Problem("--format", f"{kind} needs {' and '.join(missing)}, not installed here.", kind,
                                  f"pip install {' '.join(missing)}"))
    load_trained(model_path).export(output, format={"savedmodel": "tf_saved_model"}.get(kind, kind), verbose=False)


def _split(data: DataSet, split: str) -> Any:
    examples = data.train if split == "train" else data.validation
    if examples is None:
        raise ConfigError(Problem("--split", "this run's data has no validation split.", split, "Use --split train."))
    return examples
