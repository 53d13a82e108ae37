"""A finished run's model: loaded again, its loss and metrics on the data of the run, and written in another format.

What can be wrong with the run, or is missing here, is found before Keras is imported, which happens inside functions.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.data.examples import DataSet
from mpt_cli.data.paths import damage_of
from mpt_cli.engine import backend
from mpt_cli.engine.distribution import Distribution, undistributed
from mpt_cli.errors import ConfigError, DataError, Problem, install_command
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.resume import is_recorded, stored_settings
from mpt_cli.settings.references import load_function
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import conf_override, shell_command
from mpt_cli.training.program import Program


def evaluate(run_path: str, split: str = "validation") -> dict[str, float]:
    """Metrics of a finished run's model on the `train` or `validation` split of the run's data."""
    trained = _model_of(RunDirectory.open(run_path))
    backend.prepare_backend(trained.settings)
    return evaluate_model(trained.settings, trained, split)


def _model_of(run: RunDirectory) -> "TrainedModel":
    """Return what is saved of a run, before Keras is imported to read it; DataError as `check_model`."""
    check_model(run)
    return TrainedModel(model_file(run), undistributed(stored_settings(run)))


def check_model(run: RunDirectory) -> None:
    """Raise DataError where the run has no saved model or a damaged one, before Keras is imported to read it."""
    path = model_file(run)
    if path == run.model_weights:
        return
    if not path.is_file() and is_recorded(run):
        raise DataError(
            f"{path} does not exist: a run that was recorded while a program of its own trained has no "
            "model; model.save(...) in that program saves it."
        )
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: the run ended before its model was saved, or trainer.save_model was false."
        )
    damage = damage_of(path)
    if damage is not None:
        again = shell_command("train", conf_override(run.config_yaml))
        raise DataError(f"{path} is damaged: {damage}. Train it again: {again}")


def model_file(run: RunDirectory) -> Path:
    """Return where the run's model is: whole, or its weights alone."""
    return run.model_weights if run.model_weights.is_file() else run.model_keras


@dataclass(frozen=True)
class TrainedModel:
    """A run's saved model; `settings` are the run's, which make it anew where the file can't."""

    path: Path
    settings: Settings

    @property
    def is_whole(self) -> bool:
        """Return whether the file holds more than weights."""
        return self.path.suffix == ".keras"


def evaluate_model(settings: Settings, trained: TrainedModel, split: str) -> dict[str, float]:
    """Return loss and metrics of the saved model over the `train` or `validation` split of the data in `settings`."""
    assert settings.seed is not None
    from mpt_cli.engine.build import build_engine
    from mpt_cli.engine.feed import BatchPlan, Feed
    from mpt_cli.training.assembly import call_capacity, data_for, put_to_evaluation
    from mpt_cli.training.model import policy_of

    data = Program(settings).load_data()
    _split(data, split)  # that there is none is said before the model is built
    # what a builder returns may bring its own loss, metrics and test_step, which no file holds
    model = rebuild(trained, data) if settings.model.name == "builder" else load_trained(trained)
    data = data_for(settings, model, data)
    examples = _split(data, split)
    with policy_of(settings).scope():
        put_to_evaluation(settings, model, data, examples)
        engine = build_engine(model, _compiles(settings), Distribution())
        plan = BatchPlan(settings.trainer.batch_size, call_capacity(settings.trainer, resident=False))
        feed = Feed(examples, engine, plan, resident=False)
        feed.start(1)
        engine.reset_metrics()
        while (chunk := feed.take(plan.capacity)) is not None:
            engine.evaluate(chunk.source, chunk.batch_indices, chunk.count)
        return engine.metrics()


def _compiles(settings: Settings) -> bool:
    """Return whether to compile: as the run did, for the same numbers; on JAX always."""
    return settings.trainer.jit_compile is True or settings.backend.name == "jax"


def load_trained(trained: TrainedModel) -> Any:
    """Return the model, not compiled; DataError when it can't be read.

    The module of the run's builder is imported first: it registers the user's own classes. A model that Keras can't
    read all the same is made anew as the run made it, and given its weights.
    """
    import keras

    settings, model = trained.settings, None
    builder = getattr(settings.model, "builder", None)
    if builder is not None and trained.is_whole:
        load_function(builder, "model.builder")
    if trained.is_whole:
        try:
            model = keras.saving.load_model(trained.path, compile=False, safe_mode=True)
        except Exception as error:
            if builder is None:
                raise DataError(f"{trained.path} can't be read as a Keras model: {error}") from error
    if model is None:
        return rebuild(trained, Program(settings).load_data())
    return model


def rebuild(trained: TrainedModel, data: DataSet) -> Any:
    """Return the model as the run's configuration makes it, with its trained weights; compiled where its builder does
    so."""
    from mpt_cli.training.model import build_under_policy
    from mpt_cli.training.saving import load_weights

    model = build_under_policy(trained.settings, data)
    load_weights(model, trained.path)
    return model


def _split(data: DataSet, split: str) -> Any:
    examples = data.train if split == "train" else data.validation
    if examples is None:
        raise ConfigError(Problem("--split", "this run's data has no validation split.", split, "Use --split train."))
    return examples


EXPORT_SUFFIXES = {"keras": ".keras", "onnx": ".onnx"}  # without it Keras would not read the file again
EXPORTERS = {"keras": [], "savedmodel": ["tensorflow"], "onnx": ["onnx", "tf2onnx"]}


def check_target(kind: str, output: Path) -> None:
    """Raise DataError where something is at `output`, ConfigError where its suffix is not that of `kind` (`keras`,
    `savedmodel` or `onnx`) or the exporter is not installed.
    """
    if output.exists():
        raise DataError(f"{output} exists already. Nothing was changed; give another --output.")
    if kind in EXPORT_SUFFIXES and output.suffix != EXPORT_SUFFIXES[kind]:
        raise ConfigError(
            Problem(
                "--output",
                f"must end in {EXPORT_SUFFIXES[kind]} with --format {kind}.",
                str(output),
                f"Use --output {output}{EXPORT_SUFFIXES[kind]}",
            )
        )
    missing = [name for name in EXPORTERS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        remedy = install_command("tensorflow") if missing == ["tensorflow"] else f"pip install {' '.join(missing)}"
        rule = f"{kind} needs {' and '.join(missing)}, not installed here."
        raise ConfigError(Problem("--format", rule, kind, remedy))


def export(run_path: str, kind: str, output: str | None = None) -> Path:
    """Write a finished run's model in another format; returns where: by default under `exported/` in the run.

    Nothing that exists is overwritten.
    """
    run = RunDirectory.open(run_path)
    target = Path(output) if output else run.exported(kind)
    check_target(kind, target)
    trained = _model_of(run)
    backend.prepare_backend(trained.settings)
    export_model(trained, kind, target)
    return target


def export_model(trained: TrainedModel, kind: str, output: Path) -> None:
    """Write the model at `output`, which `check_target` found good, whole or not at all: `keras` (one file),
    `savedmodel` (a folder) or `onnx` (one file).
    """
    from mpt_cli.training.model import policy_of

    model = load_trained(trained)
    _check_exportable(model, trained, kind)
    inputs = None if kind == "keras" else _inputs_of(model, trained.settings)
    with _whole_or_nothing(output) as draft, policy_of(trained.settings).scope():
        if kind != "keras":
            _write_exported(model, kind, draft, inputs)
        else:
            shutil.copyfile(trained.path, draft)


def _check_exportable(model: Any, trained: TrainedModel, kind: str) -> None:
    """Raise ConfigError for what Keras has no way to write."""
    from mpt_cli.precision.train_step import can_be_called

    name = type(model).__name__
    if kind != "keras" and not can_be_called(model):
        raise ConfigError(
            Problem(
                "model",
                f"{name} has no call, so that there is nothing to export.",
                None,
                "Give it one: that of the network to be used.",
            )
        )
    if kind == "keras" and not trained.is_whole:
        raise ConfigError(
            Problem(
                "--format",
                f"{name} can't be written as a .keras file, for want of a get_config.",
                kind,
                "Use --format savedmodel, or give its class one.",
            )
        )


def _inputs_of(model: Any, settings: Settings) -> Any:
    """Return the signature of what is exported; None where the model's own inputs are known.

    Those of a subclassed model are the run's: Keras would have all of them, identifiers as well, in float16.
    """
    import keras

    from mpt_cli.models.build import symbolic_inputs

    if not isinstance(model, keras.Model) or getattr(model, "inputs", None):
        return None
    data = Program(settings).load_data()
    return [symbolic_inputs(data.input_shape, data.input_dtypes or data.input_dtype)]


def _write_exported(model: Any, kind: str, draft: Path, inputs: Any) -> None:
    """Raise ConfigError for a model whose `call` does not take the inputs of the run's data."""
    kind = {"savedmodel": "tf_saved_model"}.get(kind, kind)
    try:
        model.export(draft, format=kind, verbose=False, input_signature=inputs)
    except (ValueError, TypeError) as error:
        from mpt_cli.models.build import plain_message

        if inputs is None:
            raise
        raise ConfigError(
            Problem(
                "model",
                f"{type(model).__name__} can't be exported: its call does not take the inputs of the run's data.",
                None,
                f"Keras says: {plain_message(error)}",
            )
        ) from error


@contextmanager
def _whole_or_nothing(output: Path) -> Iterator[Path]:
    """Yield a place beside `output` to write to, renamed at the end; an interrupted write leaves nothing."""
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
