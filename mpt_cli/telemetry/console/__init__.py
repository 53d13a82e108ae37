"""What a person sees: the live screen, the plain lines and the sentences both use. Here the console of rich through
which all rooms print what is more than lines: one gate before the terminal.
"""

import os
import re
import shutil
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mpt_cli.errors import printable

_USABLE = re.compile(r"[1-9][0-9]{0,3}")


def terminal_columns() -> int:
    """Return the columns of the terminal, or COLUMNS where that is between 1 and 9999; 80 without a terminal."""
    size = shutil.get_terminal_size()
    return size.columns if _USABLE.fullmatch(str(size.columns)) else 80


class PrintableConsole(Console):
    """What names of layers, jobs or terminals bring in is printed as `printable` has it. A COLUMNS or LINES of 0, of
    which rich would print nothing, or of billions is not signals_to_handle.
    """

    def __init__(self, file: TextIO | None, **options: Any) -> None:
        given = [os.environ[name] for name in ("COLUMNS", "LINES") if name in os.environ]
        if not all(map(_USABLE.fullmatch, given)):
            options = {"width": terminal_columns(), "height": 25, **options}
        super().__init__(file=file, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
