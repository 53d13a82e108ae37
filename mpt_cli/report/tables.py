"""Rows of any kind as a table: aligned lines, CSV, a table for the terminal or for a page; and rows of a
label and a text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from rich.table import Table
from rich.text import Text

from mpt_cli.telemetry.console import PrintableConsole

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True)
class TableColumn(Generic[R_contra]):
    """A title and the text of its cells; numbers are aligned right, and long texts of a page are wrapped."""

    title: str
    cell: Callable[[R_contra], str]
    is_number: bool = True
    wraps: bool = False
    stays: bool = False  # longest in a narrow terminal


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


WRAPPED = 12  # characters that a narrow terminal keeps for a text that is wrapped


def rich_table(columns: Sequence[TableColumn[R]], rows: Sequence[R], style: Callable[[R], str], fixed: int) -> Table:
    """Return a table for the terminal; `style` gives the style of a row, in rich's words. Numbers and the first `fixed`
    columns are never wrapped.
    """
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        is_whole = column.is_number or index < fixed
        widest = max(map(len, [column.title, *map(column.cell, rows)]))
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=is_whole,
            overflow="fold",
            min_width=widest if is_whole else min(widest, WRAPPED),
        )
    for row in rows:
        table.add_row(*map(Text, _cells(columns, row)), style=style(row))
    return table


def print_table(
    columns: Sequence[TableColumn[R]],
    rows: Sequence[R],
    console: PrintableConsole,
    style: Callable[[R], str] = lambda row: "",
    fixed: int = 0,
) -> None:
    """Print a table. In a terminal, leave out columns from the right until the rest fits, texts after numbers, those
    that stay last, and none of the first `fixed` (0: none at all); in a pipe, print all of them in aligned plain lines.
    """
    shown = [*columns]
    if console.is_live:
        for column in sorted(columns[: fixed - 1 : -1], key=lambda column: (column.stays, not column.is_number)):
            if console.measure(rich_table(shown, rows, style, fixed)).minimum < console.width:
                break
            shown.remove(column)
    if console.is_live and len(shown) > fixed:
        console.print(rich_table(shown, rows, style, fixed), crop=False)
    else:  # rich would cut columns that can't be wrapped
        console.say("\n".join(plain_lines(shown, rows)))
    if left_out := [column.title for column in columns if column not in shown]:
        console.say(f"A wider terminal also shows: {', '.join(left_out)}")


SHORTEST_LABEL = 9


def print_labelled(rows: Sequence[tuple[str, str]], console: PrintableConsole) -> None:
    """Print labels with their texts."""
    label_width = max([SHORTEST_LABEL, *map(len, dict(rows))]) + 2
    for label, text in rows:
        console.say(f"{label:<{label_width}}{text}", indent=label_width)


def _cells(columns: Sequence[TableColumn[R]], row: R) -> list[str]:
    return [column.cell(row) for column in columns]


@dataclass(frozen=True)
class PageTable(Generic[R]):
    """The data for the template of a table. The first cell names its row, whose `kind` is best, good, bad or empty, and
    links to `link`; `runs` are the numbers of its curves. An explorable table can be sorted and filtered, and columns
    can be hidden.
    """

    caption: str
    columns: Sequence[TableColumn[R]]
    rows: Sequence[R]
    kind: Callable[[R], str] = lambda row: ""
    link: Callable[[R], str] = lambda row: ""
    runs: Callable[[R], Sequence[int]] = lambda row: ()
    is_explored: bool = False
