"""Trackers that draw curves, each an optional extra: TensorBoard, MLflow, Weights & Biases.

Each has every scalar of the log by name, the loss scale and skipped steps among them; metrics.jsonl is the record.
The environment variables of a tracker have priority: MLFLOW_TRACKING_URI names a server, WANDB_MODE=online sends lines
to wandb. Trackers can't take points back: a resumed run is a run of its own there.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from mpt_cli.errors import DataError, config_error, first_line, install_command, printable
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.record_types import RunHeader, Snapshot, Summary, snapshot_fields
from mpt_cli.telemetry.sink_interface import Sink

Log = Callable[[dict[str, float], int], None]  # scalars by name, and their step
End = Callable[[str, int], None]  # verdict and exit code
LONGEST_PARAM = 6000  # characters, MLflow's limit


def chosen_trackers(logger: LoggerSettings) -> list[str]:
    """Return the names of the trackers that are switched on; ConfigError where one is not installed."""
    chosen = [name for name in OPEN if getattr(logger, name)]
    for name in chosen:
        if importlib.util.find_spec(name) is None:
            remedy = f"Install the extra with: {install_command(name)}, or set logger.{name}=false."
            raise config_error(f"logger.{name}", f"needs the package {name}.", True, remedy)
    return chosen


def tracker_scalars(snapshot: Snapshot) -> dict[str, float]:
    """Return each number of the line by its name; those of an epoch as a whole under `epoch/`."""
    prefix = "epoch/" if snapshot.epoch_end else ""
    fields = snapshot_fields(snapshot).items()
    return {f"{prefix}{name}": float(value) for name, value in fields if type(value) in (int, float)}


def _params(header: RunHeader) -> dict[str, str]:
    facts = {"recipe": header.recipe, "attempt": str(header.attempt), **header.facts}
    return {label.replace(" ", "_"): printable(fact)[:LONGEST_PARAM] for label, fact in facts.items()}


def _open_tensorboard(folder: Path, header: RunHeader) -> tuple[Log, End]:
    writer = import_module("tensorboard.summary").Writer(str(folder))

    def log(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log, lambda verdict, exit_code: writer.close()


def _open_mlflow(folder: Path, header: RunHeader) -> tuple[Log, End]:
    """Open a run of the experiment named after the recipe. Read it with `mlflow ui --backend-store-uri FOLDER`."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # later versions want to be told
    client = import_module("mlflow").MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or folder.resolve().as_uri())
    known = client.get_experiment_by_name(header.recipe)
    experiment = known.experiment_id if known else client.create_experiment(header.recipe)
    run_id = client.create_run(experiment, run_name=Path(header.run_dir).name).info.run_id
    for name, text in _params(header).items():
        client.log_param(run_id, name, text)
    metric = import_module("mlflow.entities").Metric

    def log(scalars: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        client.log_batch(run_id, metrics=[metric(name, value, now, step) for name, value in scalars.items()])

    def end(verdict: str, exit_code: int) -> None:
        client.set_tag(run_id, "verdict", verdict)
        client.set_terminated(run_id, "FAILED" if exit_code else "FINISHED")

    return log, end


def _open_wandb(folder: Path, header: RunHeader) -> tuple[Log, End]:
    """Open a run of the project named after the recipe, kept in the run directory; `wandb sync FOLDER` sends it."""
    wandb = import_module("wandb")
    folder.mkdir(exist_ok=True)
    run = wandb.init(
        mode=os.environ.get("WANDB_MODE", "offline"),
        dir=str(folder),
        project=header.recipe,
        name=Path(header.run_dir).name,
        config=_params(header),
        settings=wandb.Settings(silent=True, console="off"),
    )

    def end(verdict: str, exit_code: int) -> None:
        run.summary["verdict"] = verdict
        run.finish(exit_code=exit_code)

    return lambda scalars, step: run.log(scalars, step=step), end


OPEN: dict[str, Callable[[Path, RunHeader], tuple[Log, End]]] = {
    "tensorboard": _open_tensorboard,
    "mlflow": _open_mlflow,
    "wandb": _open_wandb,
}


@dataclass
class TrackerSink(Sink):
    """Sends the scalars of a run to the tracker of this name; DataError if the tracker rejects them."""

    name: str
    folder: Path
    _log: Log | None = None
    _end: End | None = None
    _outcome: tuple[str, int] = ("ended early", 1)

    def start(self, header: RunHeader) -> None:
        with self._named_errors():
            self._log, self._end = OPEN[self.name](self.folder, header)

    def snapshot(self, snapshot: Snapshot) -> None:
        if self._log is not None:
            with self._named_errors():
                self._log(tracker_scalars(snapshot), snapshot.step)

    def finish(self, summary: Summary) -> None:
        self._outcome = summary.verdict, summary.exit_code

    def close(self) -> None:
        if self._end is not None:
            end, self._end = self._end, None
            with self._named_errors():
                end(*self._outcome)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each tracker has its own family of errors
            remedy = f"Set logger.{self.name}=false to continue without it."
            raise DataError(f"{self.name} rejected what was logged: {first_line(error)}. {remedy}") from error
