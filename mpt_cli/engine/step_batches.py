"""Feed the steps of an epoch with examples: from data that stays on the device, or in chunks sent to it.

Both give the same batches in the same order, which depends only on the seed and the epoch. So the result does not
depend on which one runs, nor on where a run is resumed.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpt_cli.data.examples import (
    Examples,
    Stream,
    all_arrays,
    draw_examples,
    joined,
    map_arrays,
)
from mpt_cli.engine.step_loop import BatchIndices, Engine

CHUNK_BYTES = 64 * 2**20
WAIT_SECONDS = 0.1  # between two checks whether to keep waiting for data


@dataclass(frozen=True)
class StepChunk:
    """Steps for one call or several: `batch_indices[:count]` of `source`."""

    source: Examples  # on the device
    batch_indices: BatchIndices
    count: int

    def part(self, first: int, at_most: int, capacity: int) -> "StepChunk":
        """Return its steps from `first` on, `at_most` so many, for a call of at most `capacity`."""
        rows = min(len(self.batch_indices), capacity)
        count = min(at_most, self.count - first, rows)
        return StepChunk(self.source, _padded(self.batch_indices[first : first + count], rows), count)

    def split_at(self, done: int) -> "tuple[StepChunk, StepChunk]":
        """Return the first `done` of its steps, and the others."""
        rows = len(self.batch_indices)
        return self.part(0, done, rows), self.part(done, self.count, rows)


@dataclass(frozen=True)
class BatchPlan:
    """The division of examples into steps. `capacity` is the most steps of one call.

    A last, smaller batch is cut to a multiple of `devices`, over which it must split evenly.
    """

    batch_size: int
    capacity: int
    shuffle: bool = False
    seed: int = 0
    devices: int = 1

    def steps_of(self, examples: int) -> int:
        """Return the steps of an epoch over `examples`."""
        return examples // self.batch_size + (self.rest_of(examples) > 0)

    def rest_of(self, examples: int) -> int:
        """Return the size of the last, smaller batch; 0 if there is none."""
        rest = examples % self.batch_size
        return rest - rest % self.devices

    def steps_per_epoch(self, data: Examples | Stream) -> int | None:
        """Return the steps of an epoch over `data`; None where a stream does not know its length."""
        return data.steps if isinstance(data, Stream) else self.steps_of(data.size)

    def has_only_whole_batches(self, data: Examples | Stream) -> bool:
        """Return whether no batch of `data` is smaller than the others, where that is known ahead."""
        return isinstance(data, Examples) and self.rest_of(data.size) == 0

    def order(self, examples: int, epoch: int) -> NDArray[np.int32]:
        """Return the examples of `epoch` (from 1) in the order they are used."""
        if not self.shuffle:
            return np.arange(examples, dtype=np.int32)
        return np.random.default_rng([self.seed, epoch]).permutation(examples).astype(np.int32)


def byte_size(data: Examples | Stream | None) -> int | None:
    """Return the bytes of all arrays; None for a stream."""
    if data is None:
        return 0
    return None if isinstance(data, Stream) else _bytes(data)


class Feed:
    """The steps of a data set or a stream, one pass after the other.

    With `resident` all examples are on the device, and a step is a row of indices into them. Else several batches are
    read and sent in a chunk, in a thread, while the device works on the one before.
    """

    def __init__(self, data: Examples | Stream, engine: Engine, plan: BatchPlan, resident: bool) -> None:
        self.data, self.engine, self.plan = data, engine, plan
        self.steps = plan.steps_per_epoch(data)
        self.is_resident = resident and isinstance(data, Examples)
        self._resident: Any = engine.to_device(data) if self.is_resident else None
        self._usual: list[Any] = []  # the form of the batches that are sent several at a time
        self.unlike = ""  # a sentence on the latest batch whose examples have other shapes than those of the first
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="mpt-feed")
        self._chunks: Iterator[StepChunk] = iter(())
        self._ahead: Future[StepChunk | None] | None = None
        self._chunk: StepChunk | None = None
        self._used = 0

    def start(self, epoch: int, skip_steps: int = 0) -> None:
        """Begin `epoch`, after its first `skip_steps` steps."""
        if self._ahead is not None:
            self._ahead.result()
        self._chunk, self._used = None, 0
        if self._resident is None:
            self._chunks = self._read(epoch, skip_steps)
            self._ahead = self._worker.submit(next, self._chunks, None)
        else:
            self._chunks = self._index(epoch, skip_steps)

    def take(self, at_most: int, stops: Callable[[], bool] = lambda: False) -> StepChunk | None:
        """Return the next steps, `at_most` so many; None at the end of the epoch, and once `stops()` while waiting."""
        if self._chunk is None or self._used == self._chunk.count:
            self._chunk, self._used = self._next_chunk(stops), 0
            if self._chunk is None:
                return None
        taken = self._chunk.part(self._used, at_most, self.plan.capacity)
        self._used += taken.count
        return taken

    def _next_chunk(self, stops: Callable[[], bool]) -> StepChunk | None:
        if self._ahead is None:
            return next(self._chunks, None)
        while not self._ahead.done():
            wait([self._ahead], timeout=WAIT_SECONDS)
            if stops():
                return None
        chunk = self._ahead.result()
        self._ahead = None if chunk is None else self._worker.submit(next, self._chunks, None)
        return chunk

    def empty_chunk(self) -> StepChunk:
        """Return no step, in the shapes that the first steps of an epoch have; the position stays."""
        if self._resident is not None:
            return next(self._index(1, 0)).part(0, 0, self.plan.capacity)
        first = first_batch(self.data, self.plan.batch_size)
        first = self._fitted(first) or first
        self._usual = _form(first)
        return replace(self._chunk_of([first]), count=0)

    def _index(self, epoch: int, skip_steps: int) -> Iterator[StepChunk]:
        """Yield all steps of an epoch over resident data in one chunk, and a last, smaller one in another."""
        assert isinstance(self.data, Examples)
        order, size = self.plan.order(self.data.size, epoch), self.plan.batch_size
        whole = len(order) // size
        rest = order[whole * size : whole * size + self.plan.rest_of(len(order))]
        if skip_steps < whole:
            rows = order[skip_steps * size : whole * size].reshape(-1, size)
            yield StepChunk(self._resident, _padded(rows, min(whole, self.plan.capacity)), len(rows))
        if len(rest) and skip_steps <= whole:
            yield StepChunk(self._resident, rest[None], 1)

    def _read(self, epoch: int, skip_steps: int) -> Iterator[StepChunk]:
        batches: list[Examples] = []
        for number, whole in enumerate(self._batches(epoch)):
            batch = self._fitted(whole)
            if number == 0:
                self._usual = _form(whole if batch is None else batch)
            if number < skip_steps or batch is None:
                continue
            for (name, shape, _), (_, usual, _) in zip(_form(batch), self._usual, strict=False):
                if shape[1:] != usual[1:]:
                    self.unlike = (
                        f" In batch {number + 1} of the data {name} has the shape {shape}, in the first {usual}."
                    )
            if batches and _form(batch) != _form(batches[0]):
                yield self._chunk_of(batches)
                batches = []
            batches.append(batch)
            if len(batches) >= self._slots(batch):
                yield self._chunk_of(batches)
                batches = []
        if batches:
            yield self._chunk_of(batches)

    def _fitted(self, batch: Examples) -> Examples | None:
        """Return as much of it as splits evenly over the devices; None where that is nothing."""
        over = batch.size % self.plan.devices
        return batch if not over else batch.take(slice(0, batch.size - over)) if batch.size > over else None

    def _slots(self, batch: Examples) -> int:
        """Return how many batches are sent together, of those in the usual form."""
        if _form(batch) != self._usual or len(_lengths(batch)) > 1:
            return 1
        return max(1, min(self.plan.capacity, CHUNK_BYTES // max(_bytes(batch), 1)))

    def _batches(self, epoch: int) -> Iterator[Examples]:
        plan = self.plan
        if isinstance(self.data, Stream):
            yield from self.data.batches(epoch, plan.seed, plan.shuffle)
            return
        order = plan.order(self.data.size, epoch)
        for first in range(0, len(order), plan.batch_size):
            yield self.data.take(order[first : first + plan.batch_size])

    def _chunk_of(self, batches: list[Examples]) -> StepChunk:
        """Return one source of `capacity` batches, or fewer where that many would be too large; unused rows are zero.

        Of batches that don't have the form of the first one, which may come in any length, it holds one; so of those
        whose parts have different lengths: of the indices, a shorter part takes as many as it has.
        """
        count, sizes = len(batches), _lengths(batches[0])
        slots, size = self._slots(batches[0]), max(sizes)
        joint = batches[0]
        if len(sizes) == 1:
            joint = Examples(*map_arrays(lambda *parts: joined(parts, slots * size), *batches))
        batch_indices = np.arange(slots * size, dtype=np.int32).reshape(slots, size)
        return StepChunk(self.engine.to_device(joint), batch_indices, count)


def _lengths(batch: Examples) -> set[int]:
    """Return those of its arrays: one, but for batches that only a model's own train_step can take."""
    return {len(array) for _, array in all_arrays(batch)}


def _bytes(batch: Examples) -> int:
    return sum(int(array.nbytes) for _, array in all_arrays(batch))


def _form(batch: Examples) -> list[Any]:
    """Return what batches that are sent together have in common: the shapes of all arrays."""
    return [(name, array.shape, array.dtype.kind) for name, array in all_arrays(batch)]


def _padded(indices: NDArray[np.int32], rows: int) -> BatchIndices:
    """Return at least so many rows."""
    missing = rows - len(indices)
    return indices if missing <= 0 else np.concatenate([indices, np.zeros((missing, indices.shape[1]), np.int32)])


def drawn_batches(data: Examples | Stream, batch_size: int, limit: int) -> list[Examples]:
    """Return batches of examples drawn by a fixed seed, `limit` examples at most; none of a stream."""
    if isinstance(data, Stream):
        return []
    drawn = draw_examples(data, max(limit, batch_size), 0)
    return [drawn.take(slice(first, first + batch_size)) for first in range(0, drawn.size, batch_size)]


def first_batch(data: Examples | Stream, batch_size: int) -> Examples:
    """Return the first `batch_size` examples, or all where there are fewer, in the order of the source."""
    return next(data.batches(1)) if isinstance(data, Stream) else data.take(slice(0, batch_size))
