"""Jobs other than training: evaluate and export a finished run, build a model without training it."""

from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.job import with_drawn_seed
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.resume import stored_settings
from mpt_cli.settings.schema import Settings

if TYPE_CHECKING:
    from mpt_cli.training.build_check import BuildCheck


def evaluate(run_path: str, split: str = "validation", best: bool = False) -> dict[str, float]:
    """Metrics of a finished run's model on the `train` or `validation` split of the run's data.

    `best`: with the weights of the best epoch by `trainer.monitor` instead of the last.
    """
    run = RunDirectory.open(run_path)
    settings = stored_settings(run)
    from mpt_cli.training.backend import prepare_backend

    platform = prepare_backend(settings)
    from mpt_cli.training.evaluation import Trained, evaluate_model

    return evaluate_model(settings, platform, Trained(run.model_keras, run.checkpoints if best else None), split)


def export(run_path: str, kind: str, output: str | None = None, best: bool = False) -> Path:
    """Write a finished run's model in another format; returns where: by default under `exported/` in the run."""
    run = RunDirectory.open(run_path)
    from mpt_cli.training.backend import prepare_backend

    prepare_backend(stored_settings(run))
    from mpt_cli.training.evaluation import Trained, export_model

    target = Path(output) if output else run.exported(kind)
    export_model(Trained(run.model_keras, run.checkpoints if best else None), kind, target)
    return target


def check_build(settings: Settings) -> "BuildCheck":
    """Build the model under its policy without training; raises what `train` would raise before its first step."""
    settings = with_drawn_seed(settings)
    from mpt_cli.training.backend import prepare_backend

    platform = prepare_backend(settings)
    from mpt_cli.training.build_check import check

    return check(settings, platform)
