"""A text file that only ever grows by whole lines, so that a killed run leaves it readable."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from mpt_cli.errors import DataError

FLUSH_SECONDS = 1.0  # how old a line may get before it is in the file
EPOCH_SECONDS = 0.1  # epochs shorter than this share a write
FLUSH_LINES = 256
TAIL_READ_BYTES = 4096
MOST_WAITING_BYTES = 64 * 2**20


class LineFile:
    """Appends lines, buffered; each flush is one `write` of whole lines to a file opened for appending.

    A line is given as a function, which is asked for the text when it is written: many at a time take less of a core
    whose caches are full of the model than one by one between two calls into the compiled loop.

    A process killed at any moment loses at most the last second and leaves at most one partial line at the end, which
    opening the file again takes away.

    When the file can't be written the lines wait in memory, `write_error` says why, and each later flush tries again: a
    disk that is full for a while costs nothing. DataError when the file can't be opened, when `flush` or `close` is
    called all the same, and when too much waits.

    With `when_needed` there is no file before the first line, and opening it is a part of writing to it.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic, when_needed: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._when_needed = when_needed
        self._descriptor = -1
        self._lines: list[Callable[[], str]] = []
        self._unwritten = b""  # lines a write did not take
        self._flushed_at = clock()
        self._epoch_ended_at = float("-inf")
        self.write_error: str | None = None
        self.open()

    def open(self) -> None:
        """Append to the file as it is now; also after `close`, when somebody else may have changed it."""
        if self._when_needed:
            return
        try:
            self._open()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def _open(self) -> None:
        repair_tail(self.path)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, line: Callable[[], str]) -> None:
        self._lines.append(line)
        if len(self._lines) >= FLUSH_LINES and self.write_error is None:
            self._try()

    def poll(self, now: bool = False) -> None:
        """Flush when the oldest line may have waited long enough, or `now`; cheap enough for every step."""
        if (self._lines or self._unwritten) and (now or self._clock() - self._flushed_at >= FLUSH_SECONDS):
            self._try()

    def poll_line(self, ends_epoch: bool) -> None:
        """`poll` after a line; now where it `ends_epoch`, unless one ended only just before."""
        now = ends_epoch and self._clock() - self._epoch_ended_at >= EPOCH_SECONDS
        if now:
            self._epoch_ended_at = self._clock()
        self.poll(now)

    def flush(self) -> None:
        """Everything into the file now, or DataError."""
        data = b"".join([self._unwritten, *(line().encode() + b"\n" for line in self._lines)])
        self._flushed_at, self._lines = self._clock(), []
        try:
            if data and self._descriptor < 0 and self._when_needed:
                self._open()
            while data:
                data = data[os.write(self._descriptor, data) :]
            self.write_error = None
        except OSError as error:
            self.write_error = f"{self.path.name} can't be written: {error.strerror}"
            raise _cannot_write(self.path, error) from error
        finally:
            self._unwritten = data

    def _try(self) -> None:
        try:
            self.flush()
        except DataError:
            if len(self._unwritten) > MOST_WAITING_BYTES:
                raise

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
    if path.is_fifo():
        raise OSError(errno.EINVAL, "it is a pipe", str(path))
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - TAIL_READ_BYTES)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
    return size - end


def _cannot_write(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} can't be written: {error.strerror}. Check free space and permissions, or set run_dir.")
