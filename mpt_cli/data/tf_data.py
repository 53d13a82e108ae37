"""tf.data.Datasets as arrays where they are small, as streams of NumPy batches otherwise."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpt_cli.data.examples import Array, Examples, Stream, leaves
from mpt_cli.data.tf_elements import element_spec, example_bytes, is_batched
from mpt_cli.errors import DataError

MEMORY_BYTES = 256 * 2**20  # datasets up to here are read into arrays
MOST_UNCOUNTED = 500_000  # a dataset of unknown length is taken for a stream beyond this many examples
SHUFFLE_BYTES = 256 * 2**20  # of the buffer in which a stream is shuffled
_MOST_SHUFFLED = 50_000
_PORTION = 256  # examples read at a time


@dataclass(frozen=True)
class Source:
    """A dataset of the user's: `batched` tells whether its elements are batches. `where` names it in messages."""

    dataset: Any
    batched: bool
    where: str

    def portions(self, batch_size: int) -> Any:
        """The dataset in batches of this size, the last one smaller."""
        return self.dataset.rebatch(batch_size) if self.batched else self.dataset.batch(batch_size)


def is_dataset(value: object) -> bool:
    """Whether this is a tf.data.Dataset; False without importing TensorFlow where nobody has."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, tensorflow.data.Dataset)


def find_source(dataset: Any, where: str) -> Source:
    """A dataset whose elements are (x, y) or (x, y, sample_weight), of one example or of a batch: see `is_batched`.

    DataError where an element isn't that.
    """
    return Source(dataset, is_batched(element_spec(dataset, where), where), where)


def read_dataset(source: Source, limit: int | None = None) -> Examples | Stream:
    """Arrays of a finite dataset of up to MEMORY_BYTES, as measured while reading; a Stream otherwise.

    A stream takes the first `limit` examples; of arrays the caller draws them. DataError where reading fails.
    """
    length = _length(source)
    arrays = None if length == float("inf") else _arrays(source, MOST_UNCOUNTED if length is None else None)
    return arrays or open_stream(source, length, limit)


def open_stream(source: Source, length: float | None, limit: int | None = None) -> Stream:
    """A stream over the dataset; `length` in examples, None unknown, inf endless."""
    if limit is not None and (length is None or length > limit):
        source = Source(source.dataset.unbatch().take(limit) if source.batched else source.dataset.take(limit), False,
                        source.where)
        length = None if length is None else limit

    def opened(batch_size: int, shuffle_seed: int | None) -> Iterator[Examples]:
        return _read(source, _ordered(source, batch_size, shuffle_seed))

    endless = length == float("inf")
    return Stream(opened, None if length is None or endless else int(length), endless)


def _ordered(source: Source, batch_size: int, shuffle_seed: int | None) -> Any:
    if shuffle_seed is None:
        return source.portions(batch_size).prefetch(2)
    single = source.dataset.unbatch() if source.batched else source.dataset
    buffer = max(1, min(_MOST_SHUFFLED, SHUFFLE_BYTES // example_bytes(single.element_spec)))
    return single.shuffle(buffer, seed=shuffle_seed % 2**31).batch(batch_size).prefetch(2)


def _arrays(source: Source, most_examples: int | None) -> Examples | None:
    """All examples, or None where they are too many; at least one portion is read."""
    parts: list[Examples] = []
    size = count = 0
    for part in _read(source, source.portions(_PORTION)):
        parts.append(part)
        size, count = size + _bytes(part), count + len(part)
        if size > MEMORY_BYTES or (most_examples is not None and count > most_examples):
            return None
    if not parts:
        raise DataError(f"{source.where}: the dataset is empty.")
    return _joined(parts)


def _read(source: Source, portions: Any) -> Iterator[Examples]:
    """NumPy batches; TensorFlow's own errors become a DataError with their first line."""
    import tensorflow as tf

    try:
        for element in portions.as_numpy_iterator():
            yield Examples(*element)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise DataError(f"{source.where}: reading the dataset failed: {lines[0] if lines else error!r}") from error


def _length(source: Source) -> float | None:
    """Number of examples, None where TensorFlow doesn't know it, inf for an endless dataset."""
    import tensorflow as tf

    elements = int((source.dataset.unbatch() if source.batched else source.dataset).cardinality())
    if int(source.dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        return float("inf")
    return None if elements < 0 else float(elements)


def _joined(parts: list[Examples]) -> Examples:
    def join(pieces: list[Any]) -> Any:
        if isinstance(pieces[0], dict):
            return {key: join([piece[key] for piece in pieces]) for key in pieces[0]}
        if isinstance(pieces[0], tuple):
            return tuple(join(list(column)) for column in zip(*pieces, strict=True))
        return np.concatenate(pieces)

    weights: list[Array] = [part.sample_weight for part in parts if part.sample_weight is not None]
    return Examples(join([part.x for part in parts]), join([part.y for part in parts]),
                    np.concatenate(weights) if weights else None)


def _bytes(part: Examples) -> int:
    """Size as it will be in memory: inputs that are pixels grow fourfold to float32."""
    return sum(array.size * max(4, array.itemsize) for _, array in leaves((part.x, part.y), ""))
