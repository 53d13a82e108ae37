"""Make a DataSet from the arrays or stream of a source: dtypes, what is to be predicted, the one check that all data
pass, split, description and fingerprint.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpt_cli.data.examples import (
    Array,
    Arrays,
    DataSet,
    Examples,
    Stream,
    all_arrays,
    draw_examples,
    fingerprint_arrays,
    map_arrays,
    named_arrays,
    split_examples,
)
from mpt_cli.errors import DataError
from mpt_cli.settings.model_data_optimizer_keys import DataSettings

_INT32 = np.iinfo(np.int32)


def to_numbers(examples: Examples, where: str) -> Examples:
    """Return inputs as float32 or int32, targets as float32 or int64, weights as float32.

    uint8 inputs are pixels, which stay as they are. Other integers are tokens. bool becomes 0 and 1. A float64 that
    float32 can't hold becomes inf, which `prepare_examples` reports. Text among the inputs becomes UTF-8 bytes.
    DataError for other objects, complex numbers, and text in targets.
    """
    return Examples(
        _map_named(_input_array, examples.x, f"{where}: x"),
        _map_named(_target_array, examples.y, f"{where}: y"),
        _map_named(
            lambda a, name: _target_array(a, name).astype(np.float32), examples.sample_weight, f"{where}: sample_weight"
        ),
    )


def _map_named(function: Any, arrays: Arrays, name: str) -> Arrays:
    names = iter([name for name, _ in named_arrays(arrays, name)])
    return map_arrays(lambda a: function(a, next(names)), arrays)


def _numeric(array: Array, name: str) -> Array:
    if array.dtype.name == "bfloat16" or array.dtype.name.startswith("float8"):
        return array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold numbers. Received: dtype {array.dtype}.")
    return array


def _as_text(array: Array) -> Array | None:
    """Return the bytes of UTF-8; None for what is no text."""
    for kind in (str, bytes):
        if array.dtype.kind == "O" and array.size and all(isinstance(each, kind) for each in array.flat):
            array = array.astype(kind)
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8")
    return array if array.dtype.kind == "S" else None


def _input_array(array: Array, name: str) -> Array:
    if (text := _as_text(array)) is not None:
        return text
    array = _numeric(array, name)
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind in "fb":
        return _to_float32(array)
    if array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
        raise DataError(
            f"{name} has integers beyond 32 bits; the largest is {array.max()}. "
            "Tokens are small integers; make measurements floats."
        )
    return array.astype(np.int32, copy=False)


def _target_array(array: Array, name: str) -> Array:
    array = _numeric(array, name)
    return _to_float32(array) if array.dtype.kind == "f" else array.astype(np.int64)


def _to_float32(array: Array) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


@dataclass(frozen=True)
class TargetSpec:
    """The targets to predict. `targets_as_given`: the user named the loss, so targets are not checked."""

    task: str
    num_classes: int | None
    targets_as_given: bool = False


def read_target(parts: list[Examples], num_classes: int | None, targets_as_given: bool = False) -> TargetSpec:
    """Return the task and number of classes of targets as `to_numbers` leaves them.

    Integers are labels, floats a regression unless the number of classes is given; one-hot rows (n, k), k > 1, are
    labels. Targets in a dict or tuple are task "other": only the user knows what they mean. So are missing ones. With
    `targets_as_given`, task and number of classes are guessed from the values and not checked.
    """
    y = parts[0].y
    if not isinstance(y, np.ndarray):
        return TargetSpec("other", num_classes, targets_as_given)
    outputs, is_whole = y.shape[-1] if y.ndim > 1 else 1, y.dtype.kind in "iu"
    are_said = num_classes is not None and y.ndim == 1 and not targets_as_given
    task = "classification" if is_whole or is_one_hot(y) or are_said else "regression"
    if targets_as_given:
        if num_classes is None:
            flags = y.ndim == 2 and outputs > 1 and is_whole and y.size > 0 and y.min() >= 0 and y.max() <= 1
            num_classes = outputs if task == "regression" or flags else max(_count_classes(part.y) for part in parts)
        return TargetSpec(task, num_classes, targets_as_given=True)
    if task == "regression":
        if num_classes not in (None, outputs):
            raise DataError(f"data.num_classes={num_classes}, but the targets are not labels: float, shape {y.shape}.")
        return TargetSpec(task, outputs)
    return TargetSpec(task, num_classes or max(_count_classes(part.y) for part in parts))


def is_one_hot(y: Arrays) -> bool:
    """Return whether each row of a matrix is zeros and a single one."""
    if not isinstance(y, np.ndarray) or y.ndim != 2 or y.shape[1] < 2 or not len(y):
        return False
    return bool(((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def final_targets(y: Arrays, target: TargetSpec) -> Arrays:
    """Return checked targets in their final dtype and shape: int32 (n,) or (n, T), float32 (n, k).

    Targets as given only change their dtype, to int32."""
    if target.task == "other" or target.targets_as_given:
        return map_arrays(lambda a: a.astype(np.int32) if a.dtype == np.int64 else a, y)
    if target.task == "regression":
        y = y.astype(np.float32, copy=False)
        return y[:, None] if y.ndim == 1 else y
    return (y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y).astype(np.int32)


def _count_classes(y: Array) -> int:
    """Return the largest label + 1, or the columns of one-hot rows; any number for others, which are refused."""
    if is_one_hot(y) or not y.size:
        return y.shape[1] if y.size else 0
    largest = y.max()
    return int(largest) + 1 if np.isfinite(largest) else 0


def shape_problems(examples: Examples, is_batch: bool = False) -> list[str]:
    """Say which arrays have no examples, no dimensions, or different lengths.

    Those of a batch whose targets are not one array may differ in length: a `train_step` knows what to do with a batch
    of labelled and one of other examples.
    """
    arrays = all_arrays(examples)
    empty = [f"{name} holds no examples: shape {array.shape}" for name, array in arrays if not array.ndim * array.size]
    lengths = {name: len(array) for name, array in arrays} if not empty else {}
    if len(set(lengths.values())) > 1 and not (is_batch and not isinstance(examples.y, np.ndarray)):
        return ["the numbers of examples differ: " + ", ".join(f"{name} {n:,}" for name, n in lengths.items())]
    return empty


def not_finite(examples: Examples, may_lack_targets: bool) -> list[str]:
    """Say where inputs, targets and weights have NaN or inf; with `may_lack_targets` targets may have NaN."""
    return [
        problem
        for name, array in all_arrays(examples)
        if array.dtype.kind == "f"
        for is_bad in [np.isinf(array) if may_lack_targets and name.startswith("y") else ~np.isfinite(array)]
        for problem in _value_problems(name, array, is_bad, "be finite in float32")
    ]


def missing_targets(examples: Examples) -> list[str]:
    """Say how many targets are NaN, which stands for a target that is not known."""
    floats = [(name, np.isnan(array)) for name, array in named_arrays(examples.y, "y") if array.dtype.kind == "f"]
    return [
        f"{name} is NaN in {int(is_nan.sum()):,} of {is_nan.size:,} places" for name, is_nan in floats if is_nan.any()
    ]


def label_problems(y: Array, target: TargetSpec) -> list[str]:
    """Say which labels aren't 0 … num_classes-1; none for other tasks."""
    if target.task != "classification" or target.targets_as_given:
        return []
    classes = int(target.num_classes or 0)
    is_bad = (y < 0) | (y >= classes) | (y != np.trunc(y))
    return _value_problems("y", y, is_bad, f"hold class labels, whole numbers from 0 to {classes - 1}")


def _value_problems(name: str, array: Array, is_bad: Array, rule: str) -> list[str]:
    """Return a sentence where any value breaks the rule."""
    if not is_bad.any():
        return []
    index = np.argwhere(is_bad)[0].tolist()
    count = f"{int(is_bad.sum()):,} of {is_bad.size:,} values"
    return [f"{name} must {rule}: not so for {count}, first {array[tuple(index)]:g} at {index}"]


def prepare_examples(examples: Examples, target: TargetSpec, where: str, is_batch: bool = False) -> Examples:
    """Check examples as `to_numbers` left them, and return them with their targets in final form: labels (n,) in place
    of one-hot rows (n, k).

    DataError, with all problems at once, unless they can be trained on; `where` opens the message: the file, or the key
    that names the source.
    """
    if target.task == "classification" and not target.targets_as_given and is_one_hot(examples.y):
        examples = examples._replace(y=examples.y.argmax(axis=1))
    problems = shape_problems(examples, is_batch) or not_finite(examples, target.targets_as_given)
    if problems := problems or label_problems(examples.y, target):
        raise DataError(f"{where}: " + "; ".join(problems) + ".")
    return examples._replace(y=final_targets(examples.y, target))


def weighted_by_class(data: Examples | Stream, weights: Mapping[int, float]) -> Any:
    """Return the same with a weight for each example by its class, as Keras's `class_weight`; classes left out have 1.

    Targets are class numbers, or rows of which the largest entry says the class. DataError where there is more than one
    target, or where there are weights already.
    """
    if isinstance(data, Stream):
        return data.mapped(lambda batch, number: weighted_by_class(batch, weights))
    if not isinstance(data.y, np.ndarray):
        raise DataError("class_weight needs one target whose classes it can weight. Give sample weights.")
    if data.sample_weight is not None:
        raise DataError("class_weight and sample weights of the data can't be used together. Multiply them.")
    return data._replace(sample_weight=class_factors(data.y, weights))


def class_factors(y: Array, weights: Mapping[int, float]) -> Array:
    """Return the weight of the class of each target, float32; 1 for a class that `weights` leave out.

    >>> class_factors(np.array([[0, 1], [1, 0]]), {1: 5.0}).tolist()
    [5.0, 1.0]
    """
    if y.ndim > 1:
        y = y.argmax(axis=-1) if y.shape[-1] > 1 else y[..., 0]
    classes, inverse = np.unique(np.round(y).astype(np.int64), return_inverse=True)
    factors = np.array([weights.get(int(each), 1.0) for each in classes], np.float32)
    return factors[inverse].reshape(y.shape)


def input_shape(x: Any) -> Any:
    """Return the shape of one example; a dict or tuple of shapes where x is one."""
    return map_arrays(lambda array: array.shape[1:], x)


def dtype_name(array: Any) -> str:
    """Return the name of the dtype: string for bytes."""
    return "string" if array.dtype.kind == "S" else str(array.dtype.name)


def data_set_fields(parts: list[Examples]) -> dict[str, Any]:
    """Return the fields of a DataSet that follow from its arrays, training first, or a stream's first batch."""
    x = parts[0].x
    arrays = [array for part in parts for _, array in named_arrays(part.x, "x")]
    peaks = [max(float(a.max(initial=0)), -float(a.min(initial=0))) for a in arrays if a.dtype.kind == "f"]
    return {
        "input_shape": input_shape(x),
        "input_dtypes": map_arrays(dtype_name, x),
        "max_abs_input": max(peaks, default=0.0),
        "fingerprint": fingerprint_arrays(parts),
    }


def _count_text(part: Examples | Stream) -> str:
    if isinstance(part, Examples):
        return f"{part.size:,}"
    return "endless" if part.endless else "streamed"


@dataclass(frozen=True)
class RawArrays:
    """Arrays as a source found them.

    `title` names them in messages and in the description, `note` ends the description. `validation` is a validation
    set of the source. `in_order`: hold out the last examples without a copy, as they follow one another (text) or are
    random (synthetic). `targets_as_given`: do not change the targets (but for float64 and int64), because the user
    named the loss.
    """

    title: str
    train: Any  # Examples, or a Stream, whose inputs stay as they are
    validation: Any = None
    num_classes: int | None = None
    in_order: bool = False
    note: str = ""
    targets_as_given: bool = False


def build_data_set(raw: RawArrays, settings: DataSettings, seed: int) -> DataSet:
    """Check the arrays, split them by seed and describe them; DataError where they can't be trained on.

    `settings.limit` caps the examples before the split; each of the two sets where the source has its own validation.
    """
    sets = {raw.title: raw.train, f"{raw.title} (validation)": raw.validation}
    read = {title: to_numbers(part, title) for title, part in sets.items() if part is not None}
    target = read_target([*read.values()], raw.num_classes, raw.targets_as_given)
    parts = [prepare_examples(part, target, title) for title, part in read.items()]
    _check_alike(parts, raw.title)
    train = draw_examples(parts[0], settings.limit, seed, raw.in_order)
    if len(parts) > 1:
        validation: Examples | None = draw_examples(parts[1], settings.limit, seed, raw.in_order)
    else:
        train, validation = split_examples(train, settings.validation_fraction, seed, raw.in_order)
    parts = [train] if validation is None else [train, validation]
    return _described(replace(raw, train=train, validation=validation), target, parts)


def _check_alike(parts: list[Examples], title: str) -> None:
    kinds = [(input_shape(part.x), map_arrays(dtype_name, part.x), input_shape(part.y)) for part in parts]
    if kinds[0] != kinds[-1]:
        raise DataError(
            f"{title}: training and validation examples differ. Received: x {kinds[0][0]} {kinds[0][1]} "
            f"with y {kinds[0][2]}, against x {kinds[-1][0]} {kinds[-1][1]} with y {kinds[-1][2]}. "
            "Two pairs that a loader returns are training and validation: several inputs go into a list "
            "or a dict."
        )


def _described(raw: RawArrays, target: TargetSpec, looked_at: list[Examples]) -> DataSet:
    """Describe a data set as "digits: 1,438 training and 359 validation examples of shape (8, 8, 1), classes: 10"."""
    seen = data_set_fields(looked_at)
    counts = f"{_count_text(raw.train)} training"
    counts += "" if raw.validation is None else f" and {_count_text(raw.validation)} validation"
    word = "classes" if target.task == "classification" else "targets"
    outputs = "" if target.num_classes is None else f", {word}: {target.num_classes:,}"
    text = f"{raw.title}: {counts} examples of shape {seen['input_shape']}{outputs}"
    text += f"; {raw.note}" if raw.note else ""
    return DataSet(
        train=raw.train,
        validation=raw.validation,
        description=text,
        **vars(target),
        **seen,
    )


def build_stream_set(raw: RawArrays) -> DataSet:
    """Return a DataSet described by the first batch of a stream; DataError if that can't be trained on."""
    found = raw.train.first()
    if found is None:
        raise DataError(f"{raw.title}: there are no examples.")
    target = _stream_target(to_numbers(found, raw.title), raw)
    first = _prepare_batch(found, target, raw.title, is_batch=True)
    validation, held_out = raw.validation, f"{raw.title} (validation)"
    if isinstance(validation, Examples):
        validation = _prepare_batch(validation, target, held_out)
    elif validation is not None:
        validation = _checked_stream(validation, target, held_out)
    train = _checked_stream(raw.train, target, raw.title)
    data = _described(replace(raw, train=train, validation=validation), target, [first])
    return replace(data, fingerprint=hashlib.sha256(f"{data.description}\n{data.fingerprint}".encode()).hexdigest())


def _stream_target(first: Examples, raw: RawArrays) -> TargetSpec:
    target = read_target([first], raw.num_classes, raw.targets_as_given)
    if raw.targets_as_given and raw.num_classes is None and not is_one_hot(first.y):
        return replace(target, num_classes=target.num_classes if target.task == "regression" else None)
    if target.task == "classification" and raw.num_classes is None and not raw.targets_as_given:
        raise DataError(f"{raw.title}: set data.num_classes. The labels of a stream are not all known beforehand.")
    return target


def _prepare_batch(examples: Examples, target: TargetSpec, where: str, is_batch: bool = False) -> Examples:
    return prepare_examples(to_numbers(examples, where), target, where, is_batch)


def _checked_stream(stream: Stream, target: TargetSpec, title: str) -> Stream:
    """Return the stream with each batch in final dtypes; a bad one raises DataError with its number."""
    return stream.mapped(lambda batch, number: _prepare_batch(batch, target, f"{title}, batch {number}", is_batch=True))
