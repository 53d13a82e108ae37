"""A finished run's model in another format, written whole or not at all; what is missing is said before Keras loads."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpt_cli.engine import backend
from mpt_cli.engine.distribution import undistributed
from mpt_cli.errors import ConfigError, DataError, Problem, install_command
from mpt_cli.evaluation import TrainedModel, check_model, load_trained, model_file
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.resume import stored_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.training.checkpoint import CheckpointStore
from mpt_cli.training.program import SettingsProgram

EXPORT_SUFFIXES = {"keras": ".keras", "onnx": ".onnx"}  # without it Keras would not read the file again
EXPORTERS = {"keras": [], "savedmodel": ["tensorflow"], "onnx": ["onnx", "tf2onnx"]}


def check_target(kind: str, output: Path) -> None:
    """DataError where something is at `output`, ConfigError where its suffix is not that of `kind` (`keras`,
    `savedmodel` or `onnx`) or the exporter is not installed.
    """
    if output.exists():
        raise DataError(f"{output} exists already. Nothing was changed; give another --output.")
    if kind in EXPORT_SUFFIXES and output.suffix != EXPORT_SUFFIXES[kind]:
        raise ConfigError(Problem("--output", f"must end in {EXPORT_SUFFIXES[kind]} with --format {kind}.", str(output),
                                  f"Use --output {output}{EXPORT_SUFFIXES[kind]}"))
    missing = [name for name in EXPORTERS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        remedy = install_command("tensorflow") if missing == ["tensorflow"] else f"pip install {' '.join(missing)}"
        rule = f"{kind} needs {' and '.join(missing)}, not installed here."
        raise ConfigError(Problem("--format", rule, kind, remedy))


def export(run_path: str, kind: str, output: str | None = None, best: bool = False) -> Path:
    """Write a finished run's model in another format; returns where: by default under `exported/` in the run.

    Nothing that exists is overwritten.
    """
    run = RunDirectory.open(run_path)
    settings = undistributed(stored_settings(run))
    target = Path(output) if output else run.exported(kind)
    check_target(kind, target)
    check_model(run)
    kept = CheckpointStore(run.checkpoints).best() if best else None
    backend.prepare_backend(settings)
    export_model(TrainedModel(model_file(run), settings, kept), kind, target)
    return target


def export_model(trained: TrainedModel, kind: str, output: Path) -> None:
    """Write the model at `output`, which `check_target` found good, whole or not at all: `keras` (one file),
    `savedmodel` (a folder) or `onnx` (one file).
    """
    from mpt_cli.training.assembly import policy_of

    model = load_trained(trained)
    _check_exportable(model, trained, kind)
    inputs = None if kind == "keras" else _inputs_of(model, trained.settings)
    with _whole_or_nothing(output) as draft, policy_of(trained.settings).scope():
        if kind != "keras":
            _write_exported(model, kind, draft, inputs)
        elif trained.best is None and trained.is_whole:
            shutil.copyfile(trained.path, draft)
        else:
            model.save(draft)


def _check_exportable(model: Any, trained: TrainedModel, kind: str) -> None:
    """ConfigError for what Keras has no way to write."""
    from mpt_cli.precision.own_step import can_be_called

    name = type(model).__name__
    if not can_be_called(model):
        raise ConfigError(Problem("model", f"{name} has no call, so that there is nothing to export.", None,
                                  "Give it one: that of the network to be used."))
    if kind == "keras" and not trained.is_whole:
        raise ConfigError(Problem("--format", f"{name} can't be written as a .keras file, for want of a get_config.",
                                  kind, "Use --format savedmodel, or give its class one."))


def _inputs_of(model: Any, settings: Settings) -> Any:
    """The signature of what is exported; None where the model's own inputs are known.

    Those of a subclassed model are the run's: Keras would have all of them, identifiers as well, in float16.
    """
    import keras

    from mpt_cli.models.shapes import symbolic_inputs

    if not isinstance(model, keras.Model) or getattr(model, "inputs", None):
        return None
    data = SettingsProgram(settings).load_data()
    return [symbolic_inputs(data.input_shape, data.input_dtypes or data.input_dtype)]


def _write_exported(model: Any, kind: str, draft: Path, inputs: Any) -> None:
    """ConfigError for a model whose `call` does not take the inputs of the run's data."""
    kind = {"savedmodel": "tf_saved_model"}.get(kind, kind)
    try:
        model.export(draft, format=kind, verbose=False, input_signature=inputs)
    except (ValueError, TypeError) as error:
        from mpt_cli.models.shapes import plain_message

        if inputs is None:
            raise
        raise ConfigError(Problem(
            "model", f"{type(model).__name__} can't be exported: its call does not take the inputs of the run's data.",
            None, f"Keras says: {plain_message(error)}")) from error  # fmt: skip


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
