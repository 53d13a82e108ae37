"""The console: a live screen, plain lines and the sentences of both. This file has the rich console through which all
rooms print tables, so that one place guards the terminal.
"""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mpt_cli.errors import printable
from mpt_cli.files import fall_silent


class PrintableConsole(Console):
    """Prints text through `printable`, and characters that the stream's encoding lacks as `?`. When the reader is gone
    (`mpt sweep … | head`), it stops printing, and the run goes on.
    """

    def __init__(self, file: TextIO | None, **options: Any) -> None:
        """Print to `file`, or nowhere if it is None."""
        is_terminal = file is not None and file.isatty()
        super().__init__(file=file, highlight=False, quiet=file is None, **{"force_terminal": is_terminal, **options})

    @property
    def is_live(self) -> bool:
        """Return whether the output can change in place."""
        return self.is_terminal and not self.is_dumb_terminal

    def say(self, line: str, style: str | None = None, indent: int = 0) -> None:
        """Print a line that stays. It is not wrapped, so that a command in it can be copied; in a terminal, with an
        `indent` for its further lines, between words.
        """
        if indent and self.is_terminal:
            line = "\n".join(labelled_lines([(line[:indent], line[indent:])], indent, self.width))
        self.out(line, style=style, highlight=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        fall_silent(self.file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = printable(segment.text).encode(self.encoding, "replace").decode(self.encoding)
            yield segment if segment.control else Segment(text, segment.style)


NARROWEST = 20  # columns for a text, whatever the terminal says


def labelled_lines(rows: Sequence[tuple[str, str]], label_width: int, width: int | None = None) -> list[str]:
    """Return a line for each label and text, wrapped if it must fit into `width`; none where there is no text.

    >>> labelled_lines([("data", "one two")], 6), labelled_lines([("data", "one two three four five six")], 6, 26)
    (['data  one two'], ['data  one two three four', '      five six'])
    """
    lines = [f"{label:<{label_width}}{text}" for label, text in rows if text]
    if width is None:
        return lines
    width, indent = max(width, label_width + NARROWEST), " " * label_width
    return [part for line in lines for part in wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)]
