"""The interface of everything that receives telemetry, the object that passes records to all of them, and the line file
that the writing ones share.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mpt_cli.errors import DataError, Say
from mpt_cli.files import open_regular
from mpt_cli.signals import unheard
from mpt_cli.telemetry.format import format_seconds
from mpt_cli.telemetry.record_types import Event, LayerSample, RunHeader, Snapshot, Summary
from mpt_cli.telemetry.run_state import EventTally


class Sink:
    """Receives what the trainer reports. A subclass overrides the methods it needs; the others do nothing.

    Order: `start` once, then any number of the middle five, `finish` if the run got a summary, `close` always. Events
    of an interval come before the snapshot that closes it.
    """

    def start(self, header: RunHeader) -> None:
        """Receive the header, before the first step, which compiles and may take long."""

    def progress(self, step: int, epoch: int, phase: str) -> None:
        """Receive the position after every call into the compiled loop; it must cost microseconds."""

    def events(self, events: Sequence[Event]) -> None:
        """Receive all skipped steps and scale changes since the last call, in order of their steps."""

    def snapshot(self, snapshot: Snapshot) -> None:
        """Receive one logged interval or, with `epoch_end`, one epoch."""

    def layers(self, step: int, loss_scale: float, layers: Sequence[LayerSample]) -> None:
        """Receive what a sample after `step` saw in each layer, before the snapshot of the same step."""

    def flush(self) -> None:
        """Write everything so far into the files."""

    def message(self, text: str) -> None:
        """Receive a sentence for the person watching."""

    def begin_phase(self, doing: str) -> None:
        """Receive the name of a phase that may take long, such as "compiling the training step".

        Phases may be nested, and may begin before `start`.
        """

    def end_phase(self) -> None:
        """End the latest phase."""

    def finish(self, summary: Summary) -> None:
        """Receive how the run ended, also when it failed."""

    def close(self) -> None:
        """Close files and terminal; called also after an exception and without `start`."""


REMINDER_SECONDS = 30.0  # between two messages on a phase that still lasts


class Telemetry:
    """Passes records to its sinks; a context manager, so that files and terminal are released whatever happens.

    ```
    with build_telemetry(run, settings.logger) as telemetry:
        telemetry.start(header)
        ...                                   # after each call into the compiled loop:
        telemetry.progress(step, epoch)
        telemetry.events(drained_events)      # before the snapshot of the same interval
        telemetry.snapshot(snapshot)
        telemetry.finish(summary)
    ```
    Telemetry is never lost silently. Lines that can't be written wait in memory, and the user gets a message; DataError
    at the end, or when too many lines wait.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = tuple(sinks)
        self.tally = EventTally()

    def start(self, header: RunHeader) -> None:
        for sink in self.sinks:
            sink.start(header)

    def progress(self, step: int, epoch: int, phase: str = "") -> None:
        """Report where the run is. `phase` says what it does beside training, such as "validating"."""
        for sink in self.sinks:
            sink.progress(step, epoch, phase)

    def events(self, events: Sequence[Event]) -> None:
        if not events:
            return
        self.tally.add(events)
        for sink in self.sinks:
            sink.events(events)

    def layers(self, step: int, loss_scale: float, layers: Sequence[LayerSample]) -> None:
        for sink in self.sinks:
            sink.layers(step, loss_scale, layers)

    def snapshot(self, snapshot: Snapshot) -> None:
        for sink in self.sinks:
            sink.snapshot(snapshot)

    def flush(self) -> None:
        """Write everything so far into the files: a checkpoint must not be ahead of the record."""
        for sink in self.sinks:
            sink.flush()

    def message(self, text: str) -> None:
        for sink in self.sinks:
            sink.message(text)

    @contextmanager
    def busy(self, doing: str, hint: str = "") -> Iterator[None]:
        """Tell the sinks that a phase begins and ends; say how long it takes, and with `hint` what would be quicker.

        A signal in the block is answered although the main thread can't receive it (`signals.unheard`).
        """
        started, is_over = time.monotonic(), threading.Event()

        def remind() -> None:
            while not is_over.wait(REMINDER_SECONDS):
                so_far = f"{doing}: {format_seconds(time.monotonic() - started)} so far"
                self.message(f"{so_far}; {hint}" if hint else so_far)

        for sink in self.sinks:
            sink.begin_phase(doing)
        threading.Thread(target=remind, daemon=True).start()
        try:
            with unheard(doing):
                yield
        finally:
            is_over.set()
            for sink in self.sinks:
                sink.end_phase()
            if (seconds := time.monotonic() - started) >= REMINDER_SECONDS:
                self.message(f"{doing} took {format_seconds(seconds)}")

    def finish(self, summary: Summary) -> None:
        for sink in self.sinks:
            sink.finish(summary)

    def close(self) -> None:
        """Close every sink, the last first, even if closing one of them fails."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # the error that ended the run matters more than an error in closing
                raise


@dataclass(frozen=True)
class File:
    """The path of a file or folder in a directory such as `TelemetryFiles`, by its name there."""

    name: str

    def __get__(self, directory: Any, owner: type) -> Path:
        path: Path = directory.path / self.name
        return path


@dataclass(frozen=True)
class TelemetryFiles:
    """The files that sinks write into the run directory at `path`."""

    path: Path

    metrics_jsonl = File("metrics.jsonl")
    events_jsonl = File("events.jsonl")
    layers_jsonl = File("layers.jsonl")  # only where what float16 loses was sampled
    console_log = File("console.log")


FLUSH_SECONDS = 1.0  # how old a line may get before it is in the file
FLUSH_LINES = 256
MOST_WAITING_BYTES = 64 * 2**20


class LineFile:
    """Appends lines, buffered; each flush is one `write` of whole lines to a file opened for appending.

    A process killed at any moment loses at most the last second and leaves at most one partial line at the end, which
    the next opening of the file removes.

    If the file can't be written, the lines wait in memory, `tell` gets a sentence, and each later flush tries again: a
    disk that is full for a while loses nothing. DataError if the file can't be opened, if `flush` or `close` can't
    write, and if too many lines wait.

    There is no file before `open` or the first line.
    """

    def __init__(self, path: Path, tell: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._tell, self._clock = path, tell, clock
        self._descriptor = -1
        self._lines: list[str] = []
        self._unwritten = b""  # lines a write did not take
        self._flushed_at = clock()
        self._is_written = True  # what a flush was to write

    def open(self) -> None:
        """Append to the file as it is now."""
        try:
            repair_tail(self.path)
            self._descriptor = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= FLUSH_LINES and self._is_written:
            self._try()

    def poll(self, now: bool = False) -> None:
        """Flush when the oldest line may have waited long enough, or `now`; cheap enough for every step."""
        if (self._lines or self._unwritten) and (now or self._clock() - self._flushed_at >= FLUSH_SECONDS):
            self._try()

    def flush(self) -> None:
        """Write everything into the file now, or raise DataError."""
        data = b"".join([self._unwritten, *(line.encode() + b"\n" for line in self._lines)])
        self._flushed_at, self._lines = self._clock(), []
        try:
            if data and self._descriptor < 0:
                self.open()
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        finally:
            self._unwritten = data

    def _try(self) -> None:
        was_written, self._is_written = self._is_written, True
        try:
            self.flush()
        except DataError as error:
            self._is_written = False
            if len(self._unwritten) > MOST_WAITING_BYTES:
                raise
            if was_written:
                self._tell(f"{error} Its lines wait in memory, training continues.")
        else:
            if not was_written:
                self._tell(f"{self.path.name} can be written again")

    def close(self) -> None:
        try:
            self.flush()
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def repair_tail(path: Path) -> int:
    """Cut a partial last line (one without a line end) off the file; returns how many bytes went. No file: 0."""
    if not path.exists():
        return 0
    with open(path, "r+b", opener=open_regular) as file:
        if not (size := file.seek(0, os.SEEK_END)):
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
        if end < size:
            file.truncate(end)
    return size - end


def _cannot_write(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} can't be written: {error.strerror}. Check free space and permissions, or set run_dir.")
