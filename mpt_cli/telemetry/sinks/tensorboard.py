"""TensorBoard event files, written with the tensorboard package's own record writer (an extra)."""

import importlib.util
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.telemetry.records import Event, RunHeader, Snapshot
from mpt_cli.telemetry.sink import Sink
from mpt_cli.telemetry.sinks.scalars import scalars_of, scale_changes


def check_tensorboard() -> None:
    """ConfigError where the package is missing; to be called before anything is created."""
    if importlib.util.find_spec("tensorboard") is None:
        remedy = 'Install it with: pip install tensorboard, or set logger.tensorboard=false.'
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

    def take_up(self, step: int, skipped_steps: int) -> None:
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
