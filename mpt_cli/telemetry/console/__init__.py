"""What a person sees: the live screen, the plain lines and the sentences both use. Here the console of rich through
which all rooms print what is more than lines: one gate before the terminal.
"""

from collections.abc import Iterable
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
