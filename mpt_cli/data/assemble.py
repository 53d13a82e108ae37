"""From the arrays of a source to a DataSet: dtypes, checks, split, standardising, fingerprint."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mpt_cli.data.checks import check_examples
from mpt_cli.data.describe import describe, input_dtype, input_shape, max_abs_input
from mpt_cli.data.dtypes import divisors, to_numbers
from mpt_cli.data.examples import Array, DataSet, Examples
from mpt_cli.data.fingerprint import fingerprint_arrays
from mpt_cli.data.split import draw, split
from mpt_cli.data.targets import Target, final_targets, labels_from_one_hot, read_target
from mpt_cli.errors import DataError
from mpt_cli.settings.data import DataSettings


@dataclass(frozen=True)
class Raw:
    """Arrays as a source found them.

    `title` names them in messages and in the description, `note` ends the description. `validation` is a set of the
    source's own. `in_order`: the examples follow one another (text) or are random anyhow (synthetic): the last ones
    are held out and nothing is copied. `standardise`: which columns of x, and with it a regression's targets.
    `preprocessing` as in DataSet; standardising and the scaling of uint8 add to it.
    """

    title: str
    train: Examples
    validation: Examples | None = None
    task: str = "auto"
    num_classes: int | None = None
    in_order: bool = False
    standardise: Array | None = None
    note: str = ""
    preprocessing: dict[str, Any] = field(default_factory=dict)


def build_data_set(raw: Raw, settings: DataSettings, seed: int) -> DataSet:
    """Checked, split by seed and described; DataError where the arrays can't be trained on.

    `settings.limit` caps the examples before the split; each of the two sets where the source has its own validation.
    """
    parts, target = _prepare(raw)
    train = draw(parts[0], settings.limit, seed, raw.in_order)
    if len(parts) > 1:
        validation: Examples | None = draw(parts[1], settings.limit, seed, raw.in_order)
    else:
        train, validation = split(train, settings.validation_fraction, seed, raw.in_order)
    drawn = replace(raw, train=train, validation=validation, preprocessing=divisors(raw.train.x) | raw.preprocessing)
    return _data_set(drawn if raw.standardise is None else _standardise(drawn, raw.standardise, target), target)


def prepare(examples: Examples, target: Target, where: str, is_batch: bool = False) -> Examples:
    """Examples as `to_numbers` left them, checked and with their targets in final form."""
    check_examples(examples, target, where, is_batch)
    return replace(examples, y=final_targets(examples.y, target))


def _prepare(raw: Raw) -> tuple[list[Examples], Target]:
    titles = [raw.title] if raw.validation is None else [raw.title, f"{raw.title} (validation)"]
    sets = [raw.train] if raw.validation is None else [raw.train, raw.validation]
    parts = [to_numbers(part, title) for part, title in zip(sets, titles, strict=True)]
    if raw.task != "regression":
        parts = [labels_from_one_hot(part) for part in parts]
    target = read_target(parts, raw.task, raw.num_classes)
    held_out = replace(target, given=True)  # a class may be missing there
    parts = [prepare(part, held_out if place else target, title)
             for place, (part, title) in enumerate(zip(parts, titles, strict=True))]
    _check_alike(parts, raw.title)
    return parts, target


def _check_alike(parts: list[Examples], title: str) -> None:
    kinds = [(input_shape(part.x), input_dtype(part.x), input_shape(part.y)) for part in parts]
    if kinds[0] != kinds[-1]:
        raise DataError(f"{title}: training and validation examples differ. Received: x {kinds[0][0]} {kinds[0][1]} "
                        f"with y {kinds[0][2]}, against x {kinds[-1][0]} {kinds[-1][1]} with y {kinds[-1][2]}.")


def _standardise(raw: Raw, columns: Array, target: Target) -> Raw:
    """Columns to mean 0 and deviation 1 by the training split alone; regression targets too, with a note of both."""
    mean, deviation = _moments(raw.train.x)
    mean, deviation = np.where(columns, mean, 0), np.where(columns, deviation, 1)
    done, note = {"inputs": _with_moments(raw, "inputs", mean, deviation, columns)}, raw.note
    y_mean, y_deviation = np.zeros(1), np.ones(1)
    if target.task == "regression":
        y_mean, y_deviation = _moments(raw.train.y)
        done["targets"] = _with_moments(raw, "targets", y_mean, y_deviation, np.ones(len(y_mean), bool))
        note = "; ".join(filter(None, [note, f"targets standardised by mean {_numbers(y_mean)} and deviation "
                                       f"{_numbers(y_deviation)}, metrics are in standard deviations"]))

    def apply(part: Examples) -> Examples:
        y = part.y if target.task != "regression" else _scaled(part.y, y_mean, y_deviation)
        return replace(part, x=_scaled(part.x, mean, deviation), y=y)

    validation = None if raw.validation is None else apply(raw.validation)
    return replace(raw, train=apply(raw.train), validation=validation, note=note,
                   preprocessing=raw.preprocessing | done)


def _with_moments(raw: Raw, key: str, mean: Array, deviation: Array, columns: Array) -> list[dict[str, Any]]:
    """What the source tells of each column, and what the column was standardised by where it was."""
    told = raw.preprocessing.get(key) or [{} for _ in columns]
    return [entry | ({"mean": float(middle), "deviation": float(spread)} if scaled else {})
            for entry, middle, spread, scaled in zip(told, mean, deviation, columns, strict=True)]


def _moments(array: Array) -> tuple[Array, Array]:
    deviation = array.std(axis=0, dtype=np.float64)
    return array.mean(axis=0, dtype=np.float64), np.where(deviation > 0, deviation, 1)


def _scaled(array: Array, mean: Array, deviation: Array) -> Array:
    return ((array - mean) / deviation).astype(np.float32)


def _numbers(values: Array) -> str:
    return ", ".join(f"{value:.5g}" for value in values)


def _data_set(raw: Raw, target: Target) -> DataSet:
    parts = [part for part in (raw.train, raw.validation) if part is not None]
    fingerprint, of = fingerprint_arrays(parts)
    shape = input_shape(raw.train.x)
    return DataSet(raw.train, raw.validation, target.task, shape, input_dtype(raw.train.x), target.num_classes,
                   fingerprint, describe(raw.title, raw.train, raw.validation, shape, target, raw.note),
                   max_abs_input(parts), of, raw.preprocessing)
