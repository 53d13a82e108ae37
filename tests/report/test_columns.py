"""Rows as a table, in each of its forms."""

import io

import pytest

from mpt_cli.report.tables import TableColumn, print_table, rich_table
from mpt_cli.telemetry.console import PrintableConsole

NAMED = [TableColumn("name", str, is_number=False), TableColumn("le|n", lambda word: str(len(word)))]


def test_each_row_has_its_style_and_numbers_are_never_folded():
    table = rich_table(NAMED, ["good", "bad"], lambda word: "red" if word == "bad" else "", 0)
    assert [row.style for row in table.rows] == ["", "red"]
    assert [(column.justify, column.no_wrap) for column in table.columns] == [("left", False), ("right", True)]


VERDICT = "3 warm-up skips only, 1 not run"
WIDE = [
    TableColumn("rank", lambda row: "1"),
    TableColumn("initial_scale", lambda row: "2**10", is_number=False),
    TableColumn("n", lambda row: "one two", is_number=False),  # a varied key, like a column further to the right
    TableColumn("val_loss", lambda row: "0.6875 ± 0.1127"),
    TableColumn("n", lambda row: "3 of 4"),
    TableColumn("verdict", lambda row: VERDICT, is_number=False),
    TableColumn("memory", lambda row: "492 MiB"),
]


@pytest.mark.parametrize(
    ("width", "head", "left_out"),
    [
        (100, "rank initial_scale n val_loss n verdict memory", ""),
        (80, "rank initial_scale n val_loss n verdict memory", ""),
        (70, "rank initial_scale n val_loss n verdict", "memory"),
        (60, "rank initial_scale n val_loss verdict", "n, memory"),
        (50, "rank initial_scale n val_loss", "n, verdict, memory"),
        (30, "rank initial_scale n val_loss", "n, verdict, memory"),  # broken by the terminal, as it has to be
    ],
)
def test_a_narrow_terminal_never_cuts_or_breaks_what_names_a_row(width, head, left_out):
    stream = io.StringIO()
    console = PrintableConsole(stream, force_terminal=True, width=width, color_system=None)
    print_table(WIDE, [0], console, fixed=4)
    lines = stream.getvalue().splitlines()
    last = lines.pop() if left_out else ""
    assert lines[0].split() == head.split()
    assert lines[1].startswith("   1  2**10          one two  0.6875 ± 0.1127")
    assert last == (f"A wider terminal also shows: {left_out}" if left_out else "")
    if "verdict" in head:  # broken between words
        start = lines[0].index("verdict")
        assert " ".join(line[start : start + len(VERDICT)].split("   ")[0].strip() for line in lines[1:]) == VERDICT


def test_texts_of_a_table_without_fixed_columns_are_wrapped():
    stream = io.StringIO()
    console = PrintableConsole(stream, force_terminal=True, width=20, color_system=None)
    print_table(NAMED, ["one two three four five", "a" * 30], console)
    assert [line[:14].strip() for line in stream.getvalue().splitlines()[1:3]] == ["one two three", "four five"]
    assert stream.getvalue().count("a") == 31  # one is in "name"
