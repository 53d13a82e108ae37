"""Experiment trackers, both optional extras: MLflow in a folder of the run, Weights & Biases without a network.

What the tracker's own variables ask for goes first: with MLFLOW_TRACKING_URI lines go to that server, with
WANDB_MODE=online to wandb's. Trackers can't take points back: a resumed run is a run of its own there, and the steps a
rollback repeats are there twice. metrics.jsonl is the record.
"""

import importlib
import importlib.util
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.telemetry.records import Event, RunHeader, Snapshot, Summary
from mpt_cli.telemetry.sink import Sink
from mpt_cli.telemetry.sinks.scalars import scalars_of, scale_changes

ABOUT = ("recipe", "policy", "loss_scale", "model", "data", "optimizer", "backend", "device", "execution", "attempt")
LONGEST_PARAM = 6000  # characters, MLflow's limit


def check_tracker(name: str) -> None:
    """ConfigError where the package `name` is missing; to be called before anything is created."""
    if importlib.util.find_spec(name) is None:
        remedy = f"Install the extra with: pip install 'mpt-cli[{name}]', or set logger.{name}=false."
        raise ConfigError(Problem(f"logger.{name}", f"needs the package {name}.", True, remedy))


class _Tracker(Sink, ABC):
    """What both have in common; DataError, naming the tracker, for every failure of its own."""

    package: str

    def __init__(self, folder: Path) -> None:
        check_tracker(self.package)
        self._folder = folder

    def start(self, header: RunHeader) -> None:
        with self._errors_named():
            self._begin(header)

    def snapshot(self, snapshot: Snapshot) -> None:
        self._log(scalars_of(snapshot), snapshot.step)

    def events(self, events: Sequence[Event]) -> None:
        for step, scalars in scale_changes(events):
            self._log(scalars, step)

    def _log(self, scalars: dict[str, float], step: int) -> None:
        with self._errors_named():
            self._write(scalars, step)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each tracker has a family of its own
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise DataError(f"{self.package} could not take what it was given: {reason[0]}. Set "
                            f"logger.{self.package}=false to go on without it.") from error

    @abstractmethod
    def _begin(self, header: RunHeader) -> None:
        """Make the run and say what it is."""

    @abstractmethod
    def _write(self, scalars: dict[str, float], step: int) -> None:
        """One point of each of these curves."""


def _describe(header: RunHeader) -> dict[str, str]:
    return {name: str(getattr(header, name)) for name in ABOUT}


class MlflowSink(_Tracker):
    """A run of the experiment named after the recipe. Read it with `mlflow ui --backend-store-uri FOLDER`."""

    package = "mlflow"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._client: Any = None
        self._run_id = ""

    def _begin(self, header: RunHeader) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # later versions want to be told
        tracking = importlib.import_module("mlflow.tracking")
        self._entities = importlib.import_module("mlflow.entities")
        self._client = tracking.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or self._folder.resolve().as_uri())
        known = self._client.get_experiment_by_name(header.recipe)
        experiment = known.experiment_id if known else self._client.create_experiment(header.recipe)
        self._run_id = self._client.create_run(experiment, run_name=Path(header.run_dir).name).info.run_id
        about = [self._entities.Param(name, text[:LONGEST_PARAM]) for name, text in _describe(header).items()]
        self._client.log_batch(self._run_id, params=about)

    def finish(self, summary: Summary) -> None:
        with self._errors_named():
            self._client.set_tag(self._run_id, "verdict", summary.verdict)
            self._client.set_tag(self._run_id, "explanation", summary.explanation)
        self._end("FINISHED" if summary.exit_code == 0 else "FAILED")

    def close(self) -> None:
        self._end("KILLED")

    def _write(self, scalars: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(name, value, now, step) for name, value in scalars.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _end(self, status: str) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            with self._errors_named():
                client.set_terminated(self._run_id, status)


class WandbSink(_Tracker):
    """A run of the project named after the recipe, kept in the run directory. `wandb sync FOLDER` sends it later."""

    package = "wandb"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._run: Any = None

    def _begin(self, header: RunHeader) -> None:
        wandb = importlib.import_module("wandb")
        self._folder.mkdir(exist_ok=True)
        self._run = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"), dir=str(self._folder), project=header.recipe,
            name=Path(header.run_dir).name, config=_describe(header),
            settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")  # its own count of steps must never go back

    def finish(self, summary: Summary) -> None:
        with self._errors_named():
            self._run.summary.update({f"mpt/{name}": value for name, value in asdict(summary).items()})
        self._end(summary.exit_code)

    def close(self) -> None:
        self._end(1)

    def _write(self, scalars: dict[str, float], step: int) -> None:
        self._run.log({**scalars, "step": step})

    def _end(self, exit_code: int) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            with self._errors_named():
                run.finish(exit_code=exit_code)
