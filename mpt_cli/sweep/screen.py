"""Where a sweep speaks: a terminal, or plain lines to a pipe, or nowhere."""

from typing import TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from mpt_cli.telemetry.console.stream import StreamLines


class Screen:
    """`say` writes a line that stays. `live` is the terminal where things may change in place, None without one.

    When the reader of a pipe goes away (`mpt sweep … | head`), the sweep goes on in silence.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` None is silence."""
        self._lines = None if stream is None else StreamLines(stream)
        console = Console(file=stream, highlight=False) if stream is not None and stream.isatty() else None
        self.live = console if console is not None and not console.is_dumb_terminal else None

    def say(self, line: str, style: str = "") -> None:
        if self.live is not None:
            self.live.print(Text(line, style), soft_wrap=True)
        elif self._lines is not None:
            self._lines(line)

    def show(self, table: RenderableType) -> None:
        """Something rich draws; only in a terminal."""
        if self.live is not None:
            self.live.print(table)
