"""Rows as a table, in each of its forms."""

from mpt_cli.report.tables import TableColumn, csv_text, plain_lines, rich_table

NAMED = [TableColumn("name", str, is_number=False), TableColumn("le|n", lambda word: str(len(word)))]


def test_texts_stand_to_the_left_numbers_to_the_right_and_a_line_ends_with_its_last_letter():
    assert plain_lines(NAMED, ["ab", "precision"]) == ["name       le|n", "ab            2", "precision     9"]
    assert plain_lines([*NAMED, TableColumn("why", lambda _: "", is_number=False)], ["a"])[1] == "a        1"
    assert csv_text([]) == "\n"


def test_each_row_has_its_style_and_numbers_are_never_folded():
    table = rich_table(NAMED, ["good", "bad"], lambda word: "red" if word == "bad" else "")
    assert [row.style for row in table.rows] == ["", "red"]
    assert [(column.justify, column.no_wrap) for column in table.columns] == [("left", False), ("right", True)]
