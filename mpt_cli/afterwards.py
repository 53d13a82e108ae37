"""Jobs other than training: evaluate and export a finished run, build a model without training it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.errors import DataError
from mpt_cli.job import with_drawn_seed
from mpt_cli.models.keras_file import damage_of
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.resume import stored_settings
from mpt_cli.settings.command import command, conf_word
from mpt_cli.settings.schema import Settings
from mpt_cli.training.checkpoint import CheckpointStore
from mpt_cli.training.distribution import undistributed
from mpt_cli.training.export_target import check_target

BUILT_ALONE = "distribute: the model was built on one device, and its split over several processes was not tried"

if TYPE_CHECKING:
    from mpt_cli.training.build_check import BuildCheck
    from mpt_cli.training.evaluation import BestEpoch


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
    from mpt_cli.training.backend import prepare_backend

    platform = prepare_backend(settings)
    from mpt_cli.training.evaluation import Trained, best_epoch, evaluate_model

    metrics = evaluate_model(settings, platform, Trained(run.model_keras, kept), split)
    return metrics, None if kept is None else best_epoch(kept)


def check_model(run: RunDirectory) -> None:
    """DataError where the run has no saved model or a damaged one, before Keras is imported to read it."""
    path = run.model_keras
    if not path.is_file():
        raise DataError(f"{path} does not exist: the run ended before its model was saved, or trainer.save_model was "
                        "false.")
    damage = damage_of(path)
    if damage is not None:
        again = command("train", conf_word(run.config_yaml))
        raise DataError(f"{path} is damaged: {damage}. Train it again: {again}")


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
    from mpt_cli.training.backend import prepare_backend

    prepare_backend(settings)
    from mpt_cli.training.evaluation import Trained, export_model

    export_model(Trained(run.model_keras, kept), kind, target)
    return target


def check_build(settings: Settings) -> "BuildCheck":
    """Build the model under its policy without training; raises what `train` would raise before its first step.

    Where several processes are to train it, this one builds it alone, with a warning that it did.
    """
    settings = with_drawn_seed(settings)
    several = (settings.distribute.processes or 1) > 1
    if several:
        settings = undistributed(settings)
    from mpt_cli.training.backend import prepare_backend

    platform = prepare_backend(settings)
    from mpt_cli.training.build_check import check

    built = check(settings, platform)
    return replace(built, warnings=(*built.warnings, BUILT_ALONE)) if several else built
