"""Label and text, line by line, on whatever console there is."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

LABEL_WIDTH = 9


def print_rows(rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Label and text; a label that stands for several lines is said once."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=LABEL_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    before = ""
    for label, text in rows:
        if console.is_terminal:
            grid.add_row("" if label == before else label, Text(text))
        else:
            console.out(f"{label:<{LABEL_WIDTH}}  {text}")
        before = label
    if console.is_terminal:
        console.print(grid)
