"""Scalars by their names for programs that draw curves, all optional extras: TensorBoard, MLflow, Weights & Biases.

What a tracker's own variables ask for goes first: with MLFLOW_TRACKING_URI lines go to that server, with
WANDB_MODE=online to wandb's. Trackers can't take points back: a resumed run is a run of its own there, and the steps a
rollback repeats are there twice. metrics.jsonl is the record.
"""

import importlib.util
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError, Problem, install_command
from mpt_cli.redaction import note_passwords
from mpt_cli.telemetry.records import Event, RunHeader, Snapshot, Summary
from mpt_cli.telemetry.sink import Sink
from mpt_cli.telemetry.sinks.files import GRADIENT_FIELDS

INTERVAL_FIELDS = ("loss", "learning_rate", "loss_scale", "skipped_steps", "consecutive_skips", "examples_per_second")


def scalars_of(snapshot: Snapshot) -> dict[str, float]:
    """What has a value; means of a whole epoch under `epoch/`, a sample of the gradients under `gradients/`."""
    if snapshot.epoch_end:
        found = {"epoch/loss": snapshot.loss, **{f"epoch/{name}": value for name, value in snapshot.metrics.items()}}
    else:
        sample = {} if snapshot.gradients is None else vars(snapshot.gradients)
        own = {name: getattr(snapshot, name) for name in INTERVAL_FIELDS}
        found = {**snapshot.metrics, **own, **{f"gradients/{name}": sample[name] for name in GRADIENT_FIELDS if sample}}
    return {name: float(value) for name, value in found.items() if value is not None}


def scale_changes(events: Iterable[Event]) -> Iterator[tuple[int, dict[str, float]]]:
    """The steps that moved the loss scale, each with the scalar after it: a point where there is no snapshot."""
    for event in events:
        if event.moves_scale:
            yield event.step, {"loss_scale": event.scale_after}


def check_tensorboard() -> None:
    """ConfigError where the package is missing; to be called before anything is created."""
    if importlib.util.find_spec("tensorboard") is None:
        remedy = f"Install the extra with: {install_command('tensorboard')}, or set logger.tensorboard=false."
        raise ConfigError(Problem("logger.tensorboard", "needs the package tensorboard.", True, remedy))


class TensorBoardSink(Sink):
    """Scalars by their names; those of a whole epoch under `epoch/`. `loss_scale` has a point at every change too.

    The record writer is used rather than EventFileWriter, which starts a thread and imports TensorFlow where it is
    installed: three seconds that a run on JAX needn't pay. A resumed run's file begins with a session start, at which
    TensorBoard forgets the points that were written before for the same and later steps; so does a rollback.
    """

    def __init__(self, folder: Path) -> None:
        check_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._session_log = event_pb2.Event, summary_pb2.Summary, event_pb2.SessionLog
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        with _as_data_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter((folder / name).open("wb"))
            self._writer.write(self._event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
            self._writer.flush()
        self._folder = folder
        self._begins_anew = False

    def start(self, header: RunHeader) -> None:
        self._begins_anew = header.attempt > 1

    def rewind(self, step: int, skipped_steps: int) -> None:
        self._begins_anew = True

    def snapshot(self, snapshot: Snapshot) -> None:
        self._write(snapshot.step, scalars_of(snapshot))
        with _as_data_error(self._folder):
            self._writer.flush()

    def events(self, events: Sequence[Event]) -> None:
        for step, scalars in scale_changes(events):
            self._write(step, scalars)

    def close(self) -> None:
        with _as_data_error(self._folder):
            self._writer.close()

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        with _as_data_error(self._folder):
            if self._begins_anew:
                start = self._session_log(status=self._session_log.START)
                self._writer.write(self._event(wall_time=time.time(), step=step, session_log=start).SerializeToString())
                self._begins_anew = False
            self._writer.write(event.SerializeToString())


@contextmanager
def _as_data_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{folder} can't be written: {error.strerror}. Check free space and permissions.") from error


HEADER_PARAMS = (
    "recipe",
    "policy",
    "loss_scale",
    "model",
    "data",
    "optimizer",
    "backend",
    "device",
    "execution",
    "attempt",
)
LONGEST_PARAM = 6000  # characters, MLflow's limit


def check_tracker(name: str) -> None:
    """ConfigError where the package `name` is missing; to be called before anything is created."""
    if importlib.util.find_spec(name) is None:
        remedy = f"Install the extra with: {install_command(name)}, or set logger.{name}=false."
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


def _describe_run(header: RunHeader) -> dict[str, str]:
    return {name: str(getattr(header, name)) for name in HEADER_PARAMS}


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
        place = os.environ.get("MLFLOW_TRACKING_URI") or self._folder.resolve().as_uri()
        note_passwords(place)  # what fails there names it
        self._client = tracking.MlflowClient(place)
        known = self._client.get_experiment_by_name(header.recipe)
        experiment = known.experiment_id if known else self._client.create_experiment(header.recipe)
        self._run_id = self._client.create_run(experiment, run_name=Path(header.run_dir).name).info.run_id
        about = [self._entities.Param(name, text[:LONGEST_PARAM]) for name, text in _describe_run(header).items()]
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
            name=Path(header.run_dir).name, config=_describe_run(header),
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
