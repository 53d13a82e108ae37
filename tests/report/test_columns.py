"""Rows as a table, in each of its forms."""

from mpt_cli.report.tables import TableColumn, rich_table

NAMED = [TableColumn("name", str, is_number=False), TableColumn("le|n", lambda word: str(len(word)))]


def test_each_row_has_its_style_and_numbers_are_never_folded():
    table = rich_table(NAMED, ["good", "bad"], lambda word: "red" if word == "bad" else "")
    assert [row.style for row in table.rows] == ["", "red"]
    assert [(column.justify, column.no_wrap) for column in table.columns] == [("left", False), ("right", True)]
