"""From the arrays or the stream of a source to a DataSet: split, standardising, description, fingerprint."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mpt_cli.data.examples import (
    Array,
    DataSet,
    Examples,
    Rows,
    Stream,
    draw_examples,
    fingerprint_arrays,
    leaves,
    map_arrays,
    split_examples,
)
from mpt_cli.data.prepare import (
    TargetSpec,
    divisors,
    is_one_hot,
    labels_from_one_hot,
    prepare_examples,
    read_target,
    to_numbers,
)
from mpt_cli.errors import DataError
from mpt_cli.settings.variants import DataSettings


def describe(title: str, train: Examples | Stream, validation: Examples | Stream | None, shape: Any, target: TargetSpec,
             note: str = "") -> str:
    """For example "digits: 1,438 training and 359 validation examples of 8x8x1, 10 classes"."""
    counts = f"{_count_text(train)} training"
    counts += "" if validation is None else f" and {_count_text(validation)} validation"
    text = f"{title}: {counts} examples of {shape_text(shape)}{_target_text(target)}"
    return f"{text}; {note}" if note else text


def shape_text(shape: Any) -> str:
    """8x8x1; of a dict, "image 8x8x1, age 1"."""
    if isinstance(shape, dict):
        return ", ".join(f"{key} {shape_text(value)}" for key, value in shape.items())
    if shape and isinstance(shape[0], (tuple, dict)):
        return ", ".join(shape_text(part) for part in shape)
    if shape == (None,):
        return "any length"
    return "x".join("?" if size is None else str(size) for size in shape) or "a number"


def input_shape(x: Any) -> Any:
    """Shape of one example; a dict or tuple of shapes where x is one. None for a dimension of different lengths."""
    return map_arrays(lambda array: tuple(None if size is None else int(size) for size in array.shape[1:]), x)


def input_dtype(x: Any) -> str:
    """Name of the inputs' dtype; the distinct names joined with + where they differ."""
    return "+".join(sorted({_dtype_name(array) for _, array in leaves(x, "x")}))


def input_dtypes(x: Any) -> Any:
    """The name of each input's dtype in the structure of x."""
    return map_arrays(_dtype_name, x)


def _dtype_name(array: Any) -> str:
    if isinstance(array, Rows):
        return array.dtype_name
    return "string" if array.dtype.kind == "S" else str(array.dtype.name)


def max_abs_input(parts: list[Examples]) -> float:
    """Largest magnitude among the float inputs; 0 where there are none."""
    floats = [array for part in parts for _, array in leaves(part.x, "x") if array.dtype.kind == "f"]
    return max((max(float(array.max()), -float(array.min())) for array in floats), default=0.0)


def shown_classes(names: list[str]) -> str:
    """The first ten of them."""
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def _count_text(part: Examples | Stream) -> str:
    if isinstance(part, Examples):
        return f"{len(part):,}"
    if part.endless:
        return "endless"
    return "streamed" if part.examples is None else f"{part.examples:,} streamed"


def _target_text(target: TargetSpec) -> str:
    if target.num_classes is None:
        return ""
    word = "class" if target.task == "classification" else "target"
    plural = "" if target.num_classes == 1 else "es" if word == "class" else "s"
    return f", {target.num_classes:,} {word}{plural}"


@dataclass(frozen=True)
class RawArrays:
    """Arrays as a source found them.

    `title` names them in messages and in the description, `note` ends the description. `validation` is a set of the
    source's own. `in_order`: the examples follow one another (text) or are random anyhow (synthetic): the last ones
    are held out and nothing is copied. `standardise`: which columns of x, and with it a regression's targets.
    `keep_targets`: they stay as they came (but for float64 and int64), for a loss that the user named.
    `scale_pixels`: uint8 inputs are divided by 255; else they stay as they are, as Keras's `fit` leaves them.
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
    keep_targets: bool = False
    scale_pixels: bool = True


def build_data_set(raw: RawArrays, settings: DataSettings, seed: int) -> DataSet:
    """Checked, split by seed and described; DataError where the arrays can't be trained on.

    `settings.limit` caps the examples before the split; each of the two sets where the source has its own validation.
    """
    parts, target = _prepare_sets(raw)
    train = draw_examples(parts[0], settings.limit, seed, raw.in_order)
    places = draw_examples(Examples(np.arange(len(parts[0])), None), settings.limit, seed, raw.in_order)
    if len(parts) > 1:
        validation: Examples | None = draw_examples(parts[1], settings.limit, seed, raw.in_order)
    else:
        train, validation = split_examples(train, settings.validation_fraction, seed, raw.in_order)
        places, _ = split_examples(places, settings.validation_fraction, seed, raw.in_order)
    done = _divisors(raw, raw.train.x) | raw.preprocessing
    drawn = replace(raw, train=train, validation=validation, preprocessing=done)
    drawn = drawn if raw.standardise is None else _standardise(drawn, raw.standardise, target)
    return replace(_described(drawn, target), rows=places.x)


def _divisors(raw: "RawArrays | RawStream", x: Any) -> dict[str, Any]:
    return divisors(x) if raw.scale_pixels else {}


def _prepare_sets(raw: RawArrays) -> tuple[list[Examples], TargetSpec]:
    titles = [raw.title] if raw.validation is None else [raw.title, f"{raw.title} (validation)"]
    sets = [raw.train] if raw.validation is None else [raw.train, raw.validation]
    parts = [to_numbers(part, title, raw.scale_pixels) for part, title in zip(sets, titles, strict=True)]
    if raw.task != "regression" and not raw.keep_targets:
        parts = [labels_from_one_hot(part) for part in parts]
    target = read_target(parts, raw.task, raw.num_classes, raw.keep_targets)
    held_out = replace(target, given=True)  # a class may be missing there
    parts = [prepare_examples(part, held_out if place else target, title)
             for place, (part, title) in enumerate(zip(parts, titles, strict=True))]
    _check_alike(parts, raw.title)
    return parts, target


def _check_alike(parts: list[Examples], title: str) -> None:
    kinds = [(input_shape(part.x), input_dtype(part.x), input_shape(part.y)) for part in parts]
    if kinds[0] != kinds[-1]:
        raise DataError(f"{title}: training and validation examples differ. Received: x {kinds[0][0]} {kinds[0][1]} "
                        f"with y {kinds[0][2]}, against x {kinds[-1][0]} {kinds[-1][1]} with y {kinds[-1][2]}. "
                        "Two pairs that a loader returns are training and validation: several inputs go into a list "
                        "or a dict.")


def _standardise(raw: RawArrays, columns: Array, target: TargetSpec) -> RawArrays:
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


def _with_moments(raw: RawArrays, key: str, mean: Array, deviation: Array, columns: Array) -> list[dict[str, Any]]:
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


def _described(raw: RawArrays, target: TargetSpec) -> DataSet:
    parts = [part for part in (raw.train, raw.validation) if part is not None]
    fingerprint, of = fingerprint_arrays(parts)
    shape = input_shape(raw.train.x)
    return DataSet(raw.train, raw.validation, target.task, shape, input_dtype(raw.train.x), target.num_classes,
                   fingerprint, describe(raw.title, raw.train, raw.validation, shape, target, raw.note),
                   max_abs_input(parts), of, raw.preprocessing, input_dtypes(raw.train.x), raw.keep_targets)


_FIRST_BATCH = 32


@dataclass(frozen=True)
class RawStream:
    """Streams, or a stream and validation arrays, as a source found them."""

    title: str
    train: Stream
    validation: Stream | Examples | None
    task: str = "auto"
    num_classes: int | None = None
    note: str = ""
    preprocessing: dict[str, Any] = field(default_factory=dict)
    keep_targets: bool = False
    scale_pixels: bool = True


def build_stream_set(raw: RawStream) -> DataSet:
    """DataSet whose description and fingerprint rest on the first batch; DataError where that can't be trained on."""
    found = _first_batch(raw.train, raw.title)
    first = to_numbers(found, raw.title, raw.scale_pixels)
    target = _stream_target(first, raw)
    first = _prepare_batch(first, target, raw.title, is_batch=True)
    validation = raw.validation
    if isinstance(validation, Examples):
        numbers = to_numbers(validation, raw.title, raw.scale_pixels)
        validation = _prepare_batch(numbers, target, f"{raw.title} (validation)")
    elif validation is not None:
        validation = _checked_stream(validation, target, replace(raw, title=f"{raw.title} (validation)"))
    train = _checked_stream(raw.train, target, raw)
    shape = input_shape(first.x)
    text = describe(raw.title, train, validation, shape, target, raw.note)
    return DataSet(train, validation, target.task, shape, input_dtype(first.x), target.num_classes,
                   _stream_fingerprint(text, first), text, max_abs_input([first]),
                   f"the description and the first {len(first)} examples", _divisors(raw, found.x) | raw.preprocessing,
                   input_dtypes(first.x), raw.keep_targets)


def _stream_fingerprint(text: str, first: Examples) -> str:
    return hashlib.sha256(f"{text}\n{fingerprint_arrays([first])[0]}".encode()).hexdigest()


def _first_batch(stream: Stream, title: str) -> Examples:
    if (batch := stream.first(_FIRST_BATCH)) is None:
        raise DataError(f"{title}: there are no examples.")
    return batch


def _stream_target(first: Examples, raw: RawStream) -> TargetSpec:
    target = read_target([first], raw.task, raw.num_classes, raw.keep_targets)
    if raw.keep_targets and raw.num_classes is None and not is_one_hot(first.y):
        return replace(target, num_classes=target.num_classes if target.task == "regression" else None)
    if target.task == "classification" and raw.num_classes is None and not raw.keep_targets:
        raise DataError(f"{raw.title}: set data.num_classes. The labels of a stream are not all known beforehand.")
    return target


def _prepare_batch(examples: Examples, target: TargetSpec, where: str, is_batch: bool = False) -> Examples:
    labels = target.task == "classification" and not target.as_given
    labelled = labels_from_one_hot(examples) if labels else examples
    return prepare_examples(labelled, target, where, is_batch)


def _checked_stream(stream: Stream, target: TargetSpec, raw: RawStream) -> Stream:
    """The stream with each batch in final dtypes; a bad one raises DataError with its number."""

    def checked(batch: Examples, number: int) -> Examples:
        place = f"{raw.title}, batch {number}"
        return _prepare_batch(to_numbers(batch, place, raw.scale_pixels), target, place, is_batch=True)

    return stream.mapped(checked)
