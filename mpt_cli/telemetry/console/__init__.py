"""What a person sees: the live screen, the plain lines and the sentences both use. Here the console of rich through
which all rooms print what is more than lines: one gate before the terminal.
"""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mpt_cli.errors import printable


class PrintableConsole(Console):
    """What names of layers, jobs or terminals bring in is printed as `printable` has it."""

    def __init__(self, file: TextIO | None, **options: Any) -> None:
        super().__init__(file=file, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


NARROWEST = 20  # columns for a text, whatever the terminal says


def labelled_lines(rows: Sequence[tuple[str, str]], label_width: int, width: int | None = None) -> list[str]:
    """Return a line for each label and text, or several where they must fit into `width`.

    >>> labelled_lines([("data", "one two")], 6), labelled_lines([("data", "one two three four five six")], 6, 26)
    (['data  one two'], ['data  one two three four', '      five six'])
    """
    lines: list[str] = []
    for label, text in rows:
        parts = [text] if width is None else wrap(text, max(width - label_width, NARROWEST)) or [""]
        lines += [f"{'' if place else label:<{label_width}}{part}" for place, part in enumerate(parts)]
    return lines
