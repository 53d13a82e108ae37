"""CSV files with a header line: numbers standardised, text one-hot encoded, one column to predict."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.data.assemble import Raw, build_data_set
from mpt_cli.data.csv_columns import read_column, read_target_column
from mpt_cli.data.describe import shown_classes
from mpt_cli.data.examples import DataSet, Examples
from mpt_cli.data.files import readable_file
from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.settings.data import Csv
from mpt_cli.settings.suggest import did_you_mean


@dataclass(frozen=True)
class Table:
    """Cells of a file by column, and the line each row ends on, for messages."""

    columns: dict[str, list[str]]
    lines: list[int]


def load_csv(settings: Csv, seed: int) -> DataSet:
    """x float32 (n, columns), text columns as one column per distinct text; the target as `settings.task` says."""
    file = readable_file(settings.path)
    table = _read(file, _separator(settings.separator))
    if settings.target not in table.columns:
        raise DataError(f"data.target: {file} has no column {settings.target!r}. It has: {', '.join(table.columns)}. "
                        f"{did_you_mean(settings.target, table.columns)}".rstrip())
    target = table.columns.pop(settings.target)
    if not table.columns:
        raise DataError(f"data.path: {file} has no column beside the target {settings.target!r}.")
    y, task, classes = read_target_column(settings.target, target, table.lines, settings.task)
    columns = [read_column(name, cells, table.lines) for name, cells in table.columns.items()]
    numeric = np.concatenate([np.full(column.values.shape[1], column.numeric) for column in columns])
    x = np.concatenate([column.values for column in columns], axis=1)
    done = {"inputs": [entry for column in columns for entry in column.inputs]} | _predicted(settings.target, classes)
    note = f"classes of {settings.target}: {shown_classes(classes)}" if classes else ""
    return build_data_set(Raw(file.name, Examples(x, y), None, task, len(classes) if classes else None,
                              standardise=numeric, note=note, preprocessing=done), settings, seed)


def _predicted(name: str, classes: list[str] | None) -> dict[str, Any]:
    return {"targets": [{"name": name}]} if classes is None else {"classes": classes}


def _separator(text: str) -> str:
    separator = "\t" if text == "\\t" else text
    if len(separator) != 1 or separator in '"\r\n':
        raise ConfigError(Problem("data.separator", "must be one character.", text, "For tabs write \\t."))
    return separator


def _read(file: Path, separator: str) -> Table:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=separator, strict=True)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError as error:
        raise DataError(f"data.path: {file} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except csv.Error as error:
        raise DataError(f"data.path: {file}, line {reader.line_num}, can't be read as CSV: {error}.") from error
    names = [name.strip() for name in header]
    _check_rows(file, names, rows)
    cells = {name: [row[place].strip() for _, row in rows] for place, name in enumerate(names)}
    return Table(cells, [line for line, _ in rows])


def _check_rows(file: Path, names: list[str], rows: list[tuple[int, list[str]]]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"data.path: {file} has two columns named {twice[0]!r}. Is its first line the header?")
    if not rows:
        raise DataError(f"data.path: {file} has a header line and no rows.")
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(f"data.path: {file}, line {line}, has {len(row)} values; the header has {len(names)}. "
                            "Is data.separator right, and is the file complete?")
