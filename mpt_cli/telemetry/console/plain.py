"""Plain lines without control codes: for pipes, batch jobs and console.log."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from mpt_cli.errors import printable
from mpt_cli.telemetry.console.lines import (
    EpochConsole,
    Narrator,
    final_rows,
    header_rows,
    labelled_lines,
    lasting_line,
    sample_sentence,
)
from mpt_cli.telemetry.console.table import BARS, EpochTable, Line, plain
from mpt_cli.telemetry.format import format_seconds
from mpt_cli.telemetry.records import GradientSample, RunHeader, Snapshot, Summary
from mpt_cli.telemetry.sink import reminders
from mpt_cli.telemetry.sinks import LineFile

SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 60.0
WAIT_SHARE = 0.01  # of the time gone: about a hundred interval lines per factor e of running time


class PlainConsole(EpochConsole):
    """Writes each line through `write_line` as soon as it is due.

    Every epoch gets its row of the table, with all columns. Intervals get one at most every five seconds, later every
    minute, and so do overflows. `bars` says whether what is written may hold those of the changes of the scale.
    """

    def __init__(
        self, write_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic, bars: bool = True
    ) -> None:
        super().__init__(Narrator(SHORTEST_WAIT_SECONDS, clock), clock)
        self._write_line = write_line
        self._bars = bars
        self._started_at = clock()
        self._interval_told_at = float("-inf")
        self._sample: GradientSample | None = None  # the latest, until it is told
        self._writing = threading.RLock()  # a phase that lasts is told from another thread

    def begin_phase(self, doing: str) -> None:
        """Silent: most are over before anyone wonders."""

    def phase_lasts(self, doing: str, seconds: float, hint: str) -> None:
        self._write([lasting_line(doing, seconds, hint)])

    def end_phase(self, doing: str, seconds: float) -> None:
        if seconds >= next(reminders()):
            self._write([f"{doing} took {format_seconds(seconds)}"])

    def start(self, header: RunHeader) -> None:
        self._begin(header, EpochTable(header, self._bars, within=True))
        self._started_at = self._clock()
        self._write(labelled_lines(header_rows(header)))
        self._write([""])

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._tell()

    def snapshot(self, snapshot: Snapshot) -> None:
        now = self._clock()
        self._narrator.recount(snapshot)
        self._sample = snapshot.gradients or self._sample
        if snapshot.epoch_end:
            self._end_epoch(snapshot)
        elif now - self._interval_told_at >= self._wait_seconds(now):
            assert self._table is not None
            self._interval_told_at = now
            self._print(self._table.row(snapshot, None, self._extent))
            self._tell_sample()

    def message(self, text: str) -> None:
        self._write([text])

    def finish(self, summary: Summary) -> None:
        self._tell(at_once=True)
        self._write(["", *labelled_lines(final_rows(summary))])

    def close(self) -> None:
        self._tell(at_once=True)

    @property
    def is_read(self) -> bool:
        """Whether anybody reads what is written, as far as is known."""
        return bool(getattr(self._write_line, "is_open", True))

    def _tell_sample(self) -> None:
        if self._sample is not None:
            self._print_beside(sample_sentence(self._sample))
            self._sample = None

    def _print(self, lines: Sequence[Line]) -> None:
        self._write([plain(line) for line in lines])

    def _wait_seconds(self, now: float) -> float:
        return min(max(WAIT_SHARE * (now - self._started_at), SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)

    def _write(self, lines: Sequence[str]) -> None:
        with self._writing:
            for line in lines:
                self._write_line(printable(line))  # names of layers and metrics are the model's


class StreamLines:
    """Writes lines to a stream, flushed at once; falls silent when nobody reads any more (`mpt train … | head`).

    The run itself goes on: its files have everything. Characters the stream's encoding lacks become `?`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._open = True

    @property
    def is_open(self) -> bool:
        """Whether anybody reads, as far as is known."""
        return self._open

    @property
    def has_bars(self) -> bool:
        """Whether its encoding has the characters for the changes of the scale."""
        try:
            return bool(BARS.encode(self._stream.encoding or "utf-8"))
        except UnicodeEncodeError:
            return False

    def __call__(self, line: str) -> None:
        if not self._open:
            return
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._open = False
            self._discard_the_rest()

    def _discard_the_rest(self) -> None:
        """Point the descriptor at nothing, or Python's own flush at exit fails and changes the exit code."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)


class ConsoleLog(PlainConsole):
    """console.log: the plain lines, whatever the screen shows."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        super().__init__(self._append)

    def progress(self, step: int, epoch: int, phase: str) -> None:
        super().progress(step, epoch, phase)
        with self._writing:
            self._file.poll()

    def write_error(self) -> str | None:
        return self._file.write_error

    def suspend(self) -> None:
        super().suspend()
        self._file.flush()

    def reopen(self) -> None:
        self._file.close()
        self._file.open()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()

    def _append(self, line: str) -> None:
        self._file.add(lambda: line)
        self._file.poll()
