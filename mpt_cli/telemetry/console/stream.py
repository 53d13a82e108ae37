"""Where plain lines go: a stream that may be closed at the other end, or console.log."""

import os
from pathlib import Path
from typing import TextIO

from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.sinks.line_file import LineFile


class StreamLines:
    """Writes lines to a stream, flushed at once; falls silent when nobody reads any more (`mpt train … | head`).

    The run itself goes on: its files have everything. Characters the stream's encoding lacks become `?`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._open = True

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
        self._file.poll()

    def trouble(self) -> str | None:
        return self._file.trouble

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()

    def _append(self, line: str) -> None:
        self._file.add(lambda: line)
        self._file.poll()
