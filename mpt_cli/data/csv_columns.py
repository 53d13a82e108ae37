"""Columns of text cells as numbers, one-hot vectors or classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpt_cli.data.examples import Array
from mpt_cli.errors import DataError

_MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-"}
_MOST_TEXTS = 1000  # distinct texts in a one-hot column; more is a name or an identifier
_MOST_CLASSES = 20  # distinct whole numbers that `task: auto` takes for classes
_MOSTLY = 0.9  # share of numbers from which a column counts as numeric with stray text in it


@dataclass(frozen=True)
class Column:
    """float64 (n, 1) of a numeric column, (n, k) of zeros and ones of a text column; `inputs` tells what each is."""

    values: Array
    numeric: bool
    inputs: list[dict[str, Any]]


def read_column(name: str, cells: list[str], lines: list[int]) -> Column:
    """DataError for missing or infinite numbers, stray text among numbers, and too many distinct texts."""
    numbers = _numbers(name, cells, lines)
    if numbers is not None:
        return Column(numbers[:, None], True, [{"name": name}])
    texts, codes = np.unique(np.array(cells), return_inverse=True)
    if len(texts) > _MOST_TEXTS:
        raise DataError(f"column {name!r} has {len(texts):,} different texts, too many to encode one by one. "
                        "Remove it from the file.")
    return Column((codes[:, None] == np.arange(len(texts))).astype(np.float64), False,
                  [{"name": name, "equals": text} for text in texts.tolist()])


def read_target_column(name: str, cells: list[str], lines: list[int],
                       task: str) -> tuple[Array, str, list[str] | None]:
    """Targets, task, and the names of the classes where it is classification.

    Classes are the distinct values in sorted order. `task` auto: text is classification, and so are whole numbers of
    which at most 20, and at most half as many as rows, are distinct.
    """
    numbers = _numbers(name, cells, lines)
    if task == "auto":
        task = "classification" if numbers is None or _few_whole(numbers) else "regression"
    if task == "regression":
        if numbers is None:
            raise DataError(f"data.target: column {name!r} holds text, which data.task=regression can't predict.")
        return numbers, task, None
    if numbers is not None and (numbers != np.trunc(numbers)).any():
        raise DataError(f"data.target: column {name!r} holds numbers that aren't whole; use data.task=regression.")
    missing = [line for line, cell in zip(lines, cells, strict=True) if not cell]
    if missing:
        raise DataError(f"data.target: column {name!r} has {len(missing):,} empty values, first in line {missing[0]}.")
    return _classes(name, np.array(cells) if numbers is None else numbers)


def _classes(name: str, values: Array) -> tuple[Array, str, list[str]]:
    kinds, codes = np.unique(values, return_inverse=True)
    if len(kinds) < 2:
        raise DataError(f"data.target: column {name!r} has the same value in every row.")
    return codes, "classification", [kind if isinstance(kind, str) else str(int(kind)) for kind in kinds.tolist()]


def _few_whole(numbers: Array) -> bool:
    distinct = len(np.unique(numbers))
    return bool((numbers == np.trunc(numbers)).all()) and distinct <= min(_MOST_CLASSES, len(numbers) / 2)


def _numbers(name: str, cells: list[str], lines: list[int]) -> Array | None:
    """The cells as float64, None where the column is text."""
    try:
        values: Array = np.array(cells).astype(np.float64)
    except ValueError:
        values = np.array([_number(cell) for cell in cells])
    bad = ~np.isfinite(values)
    if not bad.any():
        return values
    strange = [cell for cell, is_bad in zip(cells, bad, strict=True) if is_bad and cell.lower() not in _MISSING]
    numeric = len(cells) - int(bad.sum())
    if strange and all(_is_text(cell) for cell in strange) and numeric < _MOSTLY * len(cells):
        return None
    if not numeric and not strange:
        raise DataError(f"column {name!r} is empty in every row.")
    first = int(bad.argmax())
    raise DataError(f"column {name!r} holds numbers, but {int(bad.sum()):,} of its values are missing, infinite or "
                    f"text, first {cells[first]!r} in line {lines[first]}. Fill or remove these rows.")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _is_text(cell: str) -> bool:
    return np.isnan(_number(cell)) and cell.lower() not in _MISSING
