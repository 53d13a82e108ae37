"""From a stream of a source to a DataSet: the first batch tells what it holds, every batch is checked."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mpt_cli.data.assemble import prepare
from mpt_cli.data.describe import describe, input_dtype, input_shape, max_abs_input
from mpt_cli.data.dtypes import divisors, to_numbers
from mpt_cli.data.examples import DataSet, Examples, Stream
from mpt_cli.data.fingerprint import fingerprint_arrays
from mpt_cli.data.targets import Target, labels_from_one_hot, read_target
from mpt_cli.errors import DataError

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


def build_stream_set(raw: RawStream) -> DataSet:
    """DataSet whose description and fingerprint rest on the first batch; DataError where that can't be trained on."""
    found = _first(raw.train, raw.title)
    first = to_numbers(found, raw.title)
    target = _target(first, raw)
    first = _prepared(first, target, raw.title, is_batch=True)
    validation = raw.validation
    if isinstance(validation, Examples):
        validation = _prepared(to_numbers(validation, raw.title), target, f"{raw.title} (validation)")
    elif validation is not None:
        validation = _checked(validation, target, f"{raw.title} (validation)")
    train = _checked(raw.train, target, raw.title)
    shape = input_shape(first.x)
    text = describe(raw.title, train, validation, shape, target, raw.note)
    return DataSet(train, validation, target.task, shape, input_dtype(first.x), target.num_classes,
                   _fingerprint(text, first), text, max_abs_input([first]),
                   f"the description and the first {len(first)} examples", divisors(found.x) | raw.preprocessing)


def _fingerprint(text: str, first: Examples) -> str:
    return hashlib.sha256(f"{text}\n{fingerprint_arrays([first])[0]}".encode()).hexdigest()


def _first(stream: Stream, title: str) -> Examples:
    for batch in stream.open(_FIRST_BATCH, None):
        return batch
    raise DataError(f"{title}: there are no examples.")


def _target(first: Examples, raw: RawStream) -> Target:
    target = read_target([first], raw.task, raw.num_classes)
    if target.task == "classification" and raw.num_classes is None:
        raise DataError(f"{raw.title}: set data.num_classes. The labels of a stream are not all known beforehand.")
    return target


def _prepared(examples: Examples, target: Target, where: str, is_batch: bool = False) -> Examples:
    labelled = labels_from_one_hot(examples) if target.task == "classification" else examples
    return prepare(labelled, target, where, is_batch)


def _checked(stream: Stream, target: Target, where: str) -> Stream:
    """The stream with each batch in final dtypes; a bad one raises DataError with its number."""

    def opened(batch_size: int, shuffle_seed: int | None) -> Iterator[Examples]:
        for number, batch in enumerate(stream.open(batch_size, shuffle_seed), 1):
            place = f"{where}, batch {number}"
            yield _prepared(to_numbers(batch, place), target, place, is_batch=True)

    return replace(stream, open=opened)
