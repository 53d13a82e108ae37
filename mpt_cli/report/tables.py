"""Rows of any kind as a table: aligned lines, CSV, a table for the terminal or for a page; and rows of a
label and a text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.telemetry.console import PrintableConsole, labelled_lines

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True)
class TableColumn(Generic[R_contra]):
    """A title and the text of its cells; numbers are aligned right, and long texts of a page are wrapped."""

    title: str
    cell: Callable[[R_contra], str]
    is_number: bool = True
    wraps: bool = False


def text_columns(titles: Sequence[str], numbers: int = 0) -> list[TableColumn[Sequence[str]]]:
    """Return columns for rows of texts; the last `numbers` columns are aligned to the right."""
    return [TableColumn(title, itemgetter(at), at >= len(titles) - numbers) for at, title in enumerate(titles)]


def plain_lines(columns: Sequence[TableColumn[R]], rows: Iterable[R]) -> list[str]:
    """Return titles and rows as aligned lines.

    >>> plain_lines([TableColumn("n", str), TableColumn("double", lambda n: str(2 * n))], [1, 10])
    [' n  double', ' 1       2', '10      20']
    """
    table = [[column.title for column in columns], *(_cells(columns, row) for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    sides = [str.rjust if column.is_number else str.ljust for column in columns]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in table
    ]


def rich_table(columns: Sequence[TableColumn[R]], rows: Iterable[R], style: Callable[[R], str]) -> Table:
    """Return a table for the terminal; `style` gives the style of a row, in rich's words."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, _cells(columns, row)), style=style(row))
    return table


def print_table(
    columns: Sequence[TableColumn[R]],
    rows: Sequence[R],
    console: PrintableConsole,
    style: Callable[[R], str] = lambda row: "",
    secondary: Sequence[str] = (),
) -> None:
    """Print a table. In a terminal, leave out as many of the `secondary` columns, in this order, as make room for the
    rest; in a pipe, print all of them in aligned plain lines.
    """
    if not console.is_live:
        console.say("\n".join(plain_lines(columns, rows)))
        return
    for title in secondary:
        if max(map(len, plain_lines(columns, rows))) + len(columns) < console.width:
            break
        columns = [column for column in columns if column.title != title]
    console.print(rich_table(columns, rows, style))


SHORTEST_LABEL = 9


def print_labelled(rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Print labels with their texts."""
    label_width = max([SHORTEST_LABEL, *(len(label) for label, _ in rows)]) + 2
    for line in labelled_lines(rows, label_width, console.width if console.is_terminal else None):
        console.out(line, highlight=False)


def _cells(columns: Sequence[TableColumn[R]], row: R) -> list[str]:
    return [column.cell(row) for column in columns]


@dataclass(frozen=True)
class PageTable(Generic[R]):
    """The data for the template of a table. The first cell names its row, whose `kind` is best, good, bad or empty, and
    links to `link`; `runs` are the numbers of its curves. An explorable table can be sorted and filtered, and columns
    can be hidden, the `secondary` ones first if it is too wide.
    """

    caption: str
    columns: Sequence[TableColumn[R]]
    rows: Sequence[R]
    kind: Callable[[R], str] = lambda row: ""
    link: Callable[[R], str] = lambda row: ""
    runs: Callable[[R], Sequence[int]] = lambda row: ()
    is_explored: bool = False
    secondary: Sequence[str] = ()


def text_table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> PageTable[Any]:
    """Return a page table for rows of texts, with the columns of `text_columns`."""
    return PageTable(caption, text_columns(titles, numbers), rows)
