"""Sinks that write, and which of them, with which console, a run has: from its settings and from where its output goes.

Files: metrics.jsonl and its like, the record other programs read; they grow by whole lines alone, so that a killed run
leaves them readable. And scalars by their names for programs that draw curves, all optional extras: TensorBoard,
MLflow, Weights & Biases.

What a tracker's own variables ask for goes first: with MLFLOW_TRACKING_URI lines go to that server, with
WANDB_MODE=online to wandb's. Trackers can't take points back: a resumed run is a run of its own there. metrics.jsonl is
the record.
"""

import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from mpt_cli.errors import CHECK_DISK, ConfigError, DataError, Problem, first_line, install_command, naming
from mpt_cli.files import strict_json
from mpt_cli.redaction import note_passwords
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.console.plain import ConsoleLog, PlainConsole, StreamLines
from mpt_cli.telemetry.record_types import (
    GRADIENT_FIELDS,
    Event,
    LayerSample,
    RunHeader,
    Snapshot,
    Summary,
    snapshot_fields,
)
from mpt_cli.telemetry.sink_interface import LineFile, Sink, Telemetry, TelemetryFiles
from mpt_cli.version import SCHEMA_VERSION


def check_logger(logger: LoggerSettings) -> None:
    """Raise ConfigError for a sink that was asked for and can't be had, before a run directory exists."""
    _chosen_sinks(logger)


def build_telemetry(files: TelemetryFiles, logger: LoggerSettings, stream: TextIO | None = None) -> Telemetry:
    """Build all sinks of a run. The console goes to `stream`, by default standard output (`--json` passes standard
    error).
    """
    chosen = _chosen_sinks(logger)
    lines = JsonlSink(files.metrics_jsonl, files.events_jsonl, files.layers_jsonl)
    sinks = [sink(files.path / name) for name, sink in chosen.items()]
    return Telemetry(
        [lines, ConsoleLog(files.console_log), *sinks, *console_sinks(logger.console, stream or sys.stdout)]
    )


def _chosen_sinks(logger: LoggerSettings) -> dict[str, Any]:
    """Return the trackers that are switched on, by name.

    Each is called with the path of its name in the run directory.
    """
    chosen = {name: sink for name, sink in TRACKERS.items() if getattr(logger, name)}
    for name in chosen:
        check_tracker(name)
    return chosen


def console_sinks(mode: str, stream: TextIO) -> list[Sink]:
    """Return the console; `auto` is live in a terminal that can move its cursor and show the characters, else plain."""
    if mode == "quiet":
        return []
    if mode == "live" or (mode == "auto" and _is_live_terminal(stream)):
        return [LiveConsole(PrintableConsole(stream, force_terminal=True))]
    return [PlainConsole(StreamLines(stream))]


def _is_live_terminal(stream: TextIO) -> bool:
    dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return stream.isatty() and not dumb and (stream.encoding or "").lower().replace("-", "") == "utf8"


class JsonlSink(Sink):
    """A line per snapshot, per event and, in a file made by the first, per `LayerSample`, every line with
    `schema_version` and `attempt`.

    In the file within a second; at once with every batch of events and at the end of an epoch.
    """

    def __init__(self, metrics_path: Path, events_path: Path, layers_path: Path) -> None:
        self._metrics, self._events, self._layers = map(LineFile, (metrics_path, events_path, layers_path))
        self._files = self._metrics, self._events, self._layers
        self._common: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "attempt": 1}
        self._started_at = time.monotonic()

    def start(self, header: RunHeader) -> None:
        self._metrics.open()
        self._events.open()
        self._common["attempt"] = header.attempt
        self._started_at = time.monotonic()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._metrics.poll()

    def write_error(self) -> str | None:
        return next(filter(None, (file.write_error for file in self._files)), None)

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def close(self) -> None:
        with ExitStack() as stack:  # each, also where another fails
            for file in reversed(self._files):
                stack.callback(file.close)

    def snapshot(self, snapshot: Snapshot) -> None:
        seconds = round(time.monotonic() - self._started_at, 3)
        self._add(self._metrics, {**snapshot_fields(snapshot), "seconds": seconds}, snapshot.epoch_end)

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            only_one = [name for name in ("optimizer", "phase") if getattr(event, name) is None]
            self._add(self._events, {name: value for name, value in vars(event).items() if name not in only_one})
        self._events.poll(now=True)

    def layers(self, step: int, loss_scale: float, layers: Sequence[LayerSample]) -> None:
        for layer in layers:
            self._add(self._layers, {"step": step, "loss_scale": loss_scale, **vars(layer)})
        self._layers.poll(now=True)

    def _add(self, file: LineFile, fields: Mapping[str, Any], now: bool = False) -> None:
        file.add(strict_json({**fields, **self._common}))
        file.poll(now)


INTERVAL_FIELDS = ("loss", "learning_rate", "loss_scale", "skipped_steps", "consecutive_skips", "examples_per_second")


def tracker_scalars(snapshot: Snapshot) -> dict[str, float]:
    """Return what has a value; means of an epoch under `epoch/`, a gradient sample under `gradients/`."""
    if snapshot.epoch_end:
        found = {"epoch/loss": snapshot.loss, **{f"epoch/{name}": value for name, value in snapshot.metrics.items()}}
    else:
        sample = {} if snapshot.gradients is None else vars(snapshot.gradients)
        own = {name: getattr(snapshot, name) for name in INTERVAL_FIELDS}
        found = {**snapshot.metrics, **own, **{f"gradients/{name}": sample[name] for name in GRADIENT_FIELDS if sample}}
    return {name: float(value) for name, value in found.items() if value is not None}


class TensorBoardSink(Sink):
    """Scalars by their names; those of a whole epoch under `epoch/`. `loss_scale` has a point at every change too.

    The record writer is used rather than EventFileWriter, which starts a thread and imports TensorFlow where it is
    installed: three seconds that a run on JAX needn't pay. A resumed run's file begins with a session start, at which
    TensorBoard forgets the points that were written before for the same and later steps.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._session_log = event_pb2.Event, summary_pb2.Summary, event_pb2.SessionLog
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        with naming(folder, CHECK_DISK):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter((folder / name).open("xb"))
        self._folder, self._begins_anew = folder, False
        self._put(file_version="brain.Event:2")

    def start(self, header: RunHeader) -> None:
        self._begins_anew = header.attempt > 1

    def snapshot(self, snapshot: Snapshot) -> None:
        self._write(snapshot.step, tracker_scalars(snapshot))

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.moves_scale:
                self._write(event.step, {"loss_scale": event.scale_after})

    def close(self) -> None:
        with naming(self._folder, CHECK_DISK):
            self._writer.close()

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        if self._begins_anew:
            self._put(step=step, session_log=self._session_log(status=self._session_log.START))
            self._begins_anew = False
        self._put(step=step, summary=self._summary(value=values))

    def _put(self, **fields: Any) -> None:
        with naming(self._folder, CHECK_DISK):
            self._writer.write(self._event(wall_time=time.time(), **fields).SerializeToString())
            self._writer.flush()


PARAMS = ("recipe", "policy", "loss_scale", "model", "data", "optimizer", "backend", "device", "execution", "attempt")
LONGEST_PARAM = 6000  # characters, MLflow's limit


def check_tracker(name: str) -> None:
    """Raise ConfigError where the package `name` is missing; call it before anything is created."""
    if importlib.util.find_spec(name) is None:
        remedy = f"Install the extra with: {install_command(name)}, or set logger.{name}=false."
        raise ConfigError(Problem(f"logger.{name}", f"needs the package {name}.", True, remedy))


@contextmanager
def _named_errors(tracker: str) -> Iterator[None]:
    """Turn every failure of a tracker into a DataError that names it."""
    try:
        yield
    except Exception as error:  # each tracker has a family of its own
        raise DataError(
            f"{tracker} rejected what was logged: {first_line(error)}. Set "
            f"logger.{tracker}=false to continue without it."
        ) from error


def _params(header: RunHeader) -> dict[str, str]:
    return {name: str(getattr(header, name))[:LONGEST_PARAM] for name in PARAMS}


class MlflowSink(Sink):
    """A run of the experiment named after the recipe. Read it with `mlflow ui --backend-store-uri FOLDER`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._run_id = folder, ""
        self._client: Any = None

    def start(self, header: RunHeader) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # later versions want to be told
        with _named_errors("mlflow"):
            tracking = importlib.import_module("mlflow.tracking")
            place = os.environ.get("MLFLOW_TRACKING_URI") or self._folder.resolve().as_uri()
            note_passwords(place)  # what fails there names it
            client = tracking.MlflowClient(place)
            known = client.get_experiment_by_name(header.recipe)
            experiment = known.experiment_id if known else client.create_experiment(header.recipe)
            self._run_id = client.create_run(experiment, run_name=Path(header.run_dir).name).info.run_id
            self._client = client
            for name, text in _params(header).items():
                client.log_param(self._run_id, name, text)

    def snapshot(self, snapshot: Snapshot) -> None:
        now = int(1000 * time.time())
        with _named_errors("mlflow"):
            metric = importlib.import_module("mlflow.entities").Metric
            points = [metric(name, value, now, snapshot.step) for name, value in tracker_scalars(snapshot).items()]
            self._client.log_batch(self._run_id, metrics=points)

    def finish(self, summary: Summary) -> None:
        with _named_errors("mlflow"):
            self._client.set_tag(self._run_id, "verdict", summary.verdict)
        self._end("FINISHED" if summary.exit_code == 0 else "FAILED")

    def close(self) -> None:
        self._end("KILLED")

    def _end(self, status: str) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            with _named_errors("mlflow"):
                client.set_terminated(self._run_id, status)


class WandbSink(Sink):
    """A run of the project named after the recipe, kept in the run directory. `wandb sync FOLDER` sends it later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None

    def start(self, header: RunHeader) -> None:
        with _named_errors("wandb"):
            wandb = importlib.import_module("wandb")
            self._folder.mkdir(exist_ok=True)
            self._run = wandb.init(
                mode=os.environ.get("WANDB_MODE", "offline"),
                dir=str(self._folder),
                project=header.recipe,
                name=Path(header.run_dir).name,
                config=_params(header),
                settings=wandb.Settings(silent=True, console="off"),
            )

    def snapshot(self, snapshot: Snapshot) -> None:
        with _named_errors("wandb"):
            self._run.log(tracker_scalars(snapshot), step=snapshot.step)

    def finish(self, summary: Summary) -> None:
        with _named_errors("wandb"):
            self._run.summary["verdict"] = summary.verdict
        self._end(summary.exit_code)

    def close(self) -> None:
        self._end(1)

    def _end(self, exit_code: int) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            with _named_errors("wandb"):
                run.finish(exit_code=exit_code)


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoardSink, "mlflow": MlflowSink, "wandb": WandbSink}
