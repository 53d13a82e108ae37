"""Batches that the source itself makes: `keras.utils.PyDataset` and generators, read in one thread and exactly again.

Both may draw from Python's and NumPy's global generators. In here those begin at what the seed of the run and the place
of the batch say, and are put back afterwards: so a run that is resumed sees the batches that it would have seen.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isgenerator
from typing import Any

import numpy as np

from mpt_cli.data.examples import BatchStream, Examples, Reading, Rows, as_rows
from mpt_cli.errors import DataError, MptError, UserCodeError, summarise_error


def as_arrays(value: Any) -> Any:
    """Lists and tuples of arrays, which Keras takes for several inputs, as tuples; framework tensors as NumPy arrays,
    and ragged and sparse ones as `Rows`.

    A list or tuple of numbers is one array.

    >>> as_arrays([np.zeros(2), {"a": [np.ones(1)]}, (1, 2)])
    (array([0., 0.]), {'a': (array([1.]),)}, array([1, 2]))
    """
    if value is None or isinstance(value, (np.ndarray, Rows)):
        return value
    if isinstance(value, dict):
        return {name: as_arrays(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(as_arrays, value)) if _holds_arrays(value) else _one_array(value)
    rows = as_rows(value)
    return np.asarray(value) if rows is None else rows


def _one_array(value: Any) -> Any:
    try:
        return np.asarray(value)
    except ValueError:
        return value  # rows of different lengths: who checks the data says so, and where


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_arrays, value))
    return (hasattr(value, "shape") and value.shape != ()) or isinstance(value, dict)


def is_batch_source(value: Any) -> bool:
    """Whether `value` is a PyDataset of Keras or a generator; Keras is not imported where nobody has."""
    keras = sys.modules.get("keras")
    return isgenerator(value) or (keras is not None and isinstance(value, keras.utils.PyDataset))


def open_batches(source: Any, again: Callable[[], Any], seed: int, where: str) -> BatchStream:
    """The stream of a PyDataset or a generator; `again` makes another like it, to be read from its beginning."""
    if isgenerator(source):
        return BatchStream(read=_GeneratorPasses(again, seed, where))
    passes = _PyDatasetPasses(source, again, seed, where)
    return BatchStream(read=passes, steps=_count(source, where), in_any_order=True)


def warn_of_workers(*parts: Any) -> tuple[str, ...]:
    """A sentence where one of the streams is a PyDataset that asks for several readers: it has one thread here."""
    passes = [part.read for part in parts if isinstance(part, BatchStream) and isinstance(part.read, _PyDatasetPasses)]
    for source in (each.source for each in passes):
        workers, processes = getattr(source, "workers", 1), getattr(source, "use_multiprocessing", False)
        if workers > 1 or processes:
            asked = f"workers={workers}, use_multiprocessing={processes}"
            return (f"data: {type(source).__name__} asks for {asked}, which have no effect: its batches are read in "
                    "one thread, so that each run draws the same.",)  # fmt: skip
    return ()


def _count(source: Any, where: str) -> int:
    with _users_faults(where):
        return len(source)


class _PyDatasetPasses:
    """Batch after batch by index, in an order drawn from the seed where that is wanted.

    `on_epoch_end` is called between two epochs, also of those that a resumed run leaves out.
    """

    def __init__(self, source: Any, again: Callable[[], Any], seed: int, where: str) -> None:
        self.source, self.again, self.seed, self.where = source, again, seed, where
        self.epoch = 1

    def __call__(self, reading: Reading) -> Iterator[Examples]:
        if reading.epoch < self.epoch:
            self.source, self.epoch = self.again(), 1
        while self.epoch < reading.epoch:
            with _drawn_by(self.seed, self.epoch), _users_faults(self.where):
                self.source.on_epoch_end()
            self.epoch += 1
        order = np.arange(_count(self.source, self.where))
        if reading.shuffle:
            np.random.default_rng([reading.seed, reading.epoch]).shuffle(order)
        for index in order.tolist():
            with _drawn_by(self.seed, reading.epoch, index), _users_faults(self.where):
                batch = self.source[index]
            yield as_examples(batch, self.where)


class _GeneratorPasses:
    """A generator made anew for each pass."""

    def __init__(self, again: Callable[[], Any], seed: int, where: str) -> None:
        self.again, self.seed, self.where = again, seed, where

    def __call__(self, reading: Reading) -> Iterator[Examples]:
        with _users_faults(self.where):
            source = self.again()
        number = 0
        while True:
            with _drawn_by(self.seed, reading.epoch, number), _users_faults(self.where):
                batch = next(source, self)
            if batch is self:
                return
            yield as_examples(batch, self.where)
            number += 1


def as_examples(batch: Any, where: str) -> Examples:
    """A batch as Keras takes it: x, (x, y) or (x, y, sample_weight)."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    if len(parts) not in (1, 2, 3):
        raise DataError(f"{where}: a batch must be x, (x, y) or (x, y, sample_weight). Received: a tuple of "
                        f"{len(parts)}.")
    return Examples(*map(as_arrays, (*parts, None, None)[:3]))


@contextmanager
def _drawn_by(*seeds: int) -> Iterator[None]:
    drawn = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    with random_state_kept():
        random.seed(drawn)
        np.random.seed(drawn)
        yield


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Python's and NumPy's global generators go on afterwards as if nothing had been drawn in here."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _users_faults(where: str) -> Iterator[None]:
    try:
        yield
    except MptError:
        raise
    except Exception as error:
        raise UserCodeError(f"{where}: reading a batch raised {summarise_error(error)}") from error
