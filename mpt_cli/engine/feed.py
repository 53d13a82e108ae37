"""Where the steps of an epoch get their examples: from data that stays on the device, or in chunks sent to it.

Both hand out the same batches in the same order, which depends on the seed and the epoch only, so that it makes no
difference to the result which one runs or where a run is taken up again.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mpt_cli.data.examples import (
    Batch,
    Examples,
    Ragged,
    Rows,
    Stream,
    all_arrays,
    join_arrays,
    joined,
    leaves,
    map_arrays,
)
from mpt_cli.engine.loop import BatchIndices, Engine

CHUNK_BYTES = 64 * 2**20
WAIT_SECONDS = 0.1  # for data, between two looks whether to wait on


@dataclass(frozen=True)
class StepChunk:
    """Steps for one call: `batch_indices[:count]` of `source`."""

    source: Batch  # on the device
    batch_indices: BatchIndices
    count: int

    def divide(self, done: int) -> "tuple[StepChunk, StepChunk]":
        """The first `done` of its steps, and the others."""
        rest = np.roll(self.batch_indices, -done, axis=0) if done < self.count else self.batch_indices
        return StepChunk(self.source, self.batch_indices, done), StepChunk(self.source, rest, self.count - done)


@dataclass(frozen=True)
class BatchPlan:
    """How examples are divided into steps. `capacity` is the most steps of one call.

    A last, smaller batch is cut to a multiple of `devices`, over which it must split evenly.
    """

    batch_size: int
    capacity: int
    drop_remainder: bool = False
    shuffle: bool = False
    seed: int = 0
    devices: int = 1

    def steps_of(self, examples: int) -> int:
        """Steps of an epoch over `examples`."""
        return examples // self.batch_size + (self.rest_of(examples) > 0)

    def rest_of(self, examples: int) -> int:
        """Size of the last, smaller batch; 0 when there is none or it is left out."""
        rest = examples % self.batch_size
        return 0 if self.drop_remainder else rest - rest % self.devices

    def steps_per_epoch(self, data: Examples | Stream) -> int | None:
        """Steps of an epoch over `data`; None where a stream does not know its length."""
        return data.steps if isinstance(data, Stream) else self.steps_of(len(data))

    def has_only_whole_batches(self, data: Examples | Stream) -> bool:
        """Whether no batch of `data` is smaller than the others, where that is known ahead."""
        return isinstance(data, Examples) and self.rest_of(len(data)) == 0

    def examples_of(self, examples: int, epoch: int, step: int) -> NDArray[np.int32]:
        """Those of the `step` (from 1) of `epoch`, of so many `examples` in all."""
        first, used = (step - 1) * self.batch_size, examples - examples % self.batch_size + self.rest_of(examples)
        return self.order(examples, epoch)[first : min(first + self.batch_size, used)]

    def order(self, examples: int, epoch: int) -> NDArray[np.int32]:
        """The examples of `epoch` (from 1) in the order they are used."""
        if not self.shuffle:
            return np.arange(examples, dtype=np.int32)
        return np.random.default_rng([self.seed, epoch]).permutation(examples).astype(np.int32)


def _never() -> bool:
    return False


def byte_size(data: Examples | Stream | None) -> int | None:
    """Bytes of all arrays; None for a stream, and for Rows that are made dense batch by batch."""
    if data is None:
        return 0
    if isinstance(data, Stream) or any(_made_dense(array) for _, array in leaves(data.x, "x")):
        return None
    return _batch_bytes(data.as_batch())


class ResidentFeed:
    """All examples on the device; a step is a row of indices into them. One pass after the other over a data set."""

    def __init__(self, data: Examples, engine: Engine, plan: BatchPlan) -> None:
        self.plan, self.examples = plan, len(data)
        self.steps = plan.steps_per_epoch(data)
        self._source = engine.to_device(data.as_batch())
        self._order = np.zeros(0, np.int32)
        self._next = 0

    def start(self, epoch: int, skip_steps: int = 0) -> None:
        """Begin `epoch`, after its first `skip_steps` steps."""
        self._order = self.plan.order(self.examples, epoch)
        self._next = skip_steps

    def take(self, most: int, stops: Callable[[], bool] = _never) -> StepChunk | None:
        """Return the next steps, at most `most`; None at the end of the epoch, and once `stops()` while waiting."""
        size = self.plan.batch_size
        left = self.examples // size - self._next
        if left > 0:
            count = min(most, left, self.plan.capacity)
            indices = self._order[self._next * size : (self._next + count) * size].reshape(count, size)
            self._next += count
            return StepChunk(self._source, _padded(indices, self.plan.capacity), count)
        first = self.examples // size * size
        rest = self._order[first : first + self.plan.rest_of(self.examples)]
        if self._next >= (self.steps or 0):
            return None
        self._next += 1
        return StepChunk(self._source, rest[None, :], 1)

    def examples_of(self, epoch: int, step: int) -> NDArray[np.int32] | None:
        """Which examples the `step` (from 1) of `epoch` has; None of a stream."""
        return self.plan.examples_of(self.examples, epoch, step)

    def empty_chunk(self) -> StepChunk:
        """No step, in the shapes that the first steps of an epoch have; the position stays."""
        size, capacity = self.plan.batch_size, self.plan.capacity
        shape = (capacity, size) if self.examples >= size else (1, self.plan.rest_of(self.examples))
        return StepChunk(self._source, np.zeros(shape, np.int32), 0)


class ChunkFeed:
    """Chunks of several batches, read and sent ahead in a thread while the device works on the one before. Used as a
    `ResidentFeed`.
    """

    def __init__(self, data: Examples | Stream, engine: Engine, plan: BatchPlan) -> None:
        self.data, self.engine, self.plan = data, engine, plan
        self.steps = plan.steps_per_epoch(data)
        self._usual: list[Any] = []  # the form of the batches that are sent several at a time
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="mpt-feed")
        self._chunks: Iterator[StepChunk] = iter(())
        self._ahead: Future[StepChunk | None] | None = None
        self._chunk: StepChunk | None = None
        self._used = 0

    def start(self, epoch: int, skip_steps: int = 0) -> None:
        if self._ahead is not None:
            self._ahead.result()
        self._chunks = self._read(epoch, skip_steps)
        self._chunk, self._used = None, 0
        self._ahead = self._worker.submit(next, self._chunks, None)

    def take(self, most: int, stops: Callable[[], bool] = _never) -> StepChunk | None:
        if self._chunk is None or self._used == self._chunk.count:
            if self._ahead is None:
                return None
            while not self._ahead.done():
                wait([self._ahead], timeout=WAIT_SECONDS)
                if stops():
                    return None
            self._chunk, self._used = self._ahead.result(), 0
            self._ahead = None if self._chunk is None else self._worker.submit(next, self._chunks, None)
        if self._chunk is None:
            return None
        chunk, first = self._chunk, self._used
        count = min(most, chunk.count - first)
        self._used += count
        return StepChunk(chunk.source, np.roll(chunk.batch_indices, -first, axis=0), count)

    def examples_of(self, epoch: int, step: int) -> NDArray[np.int32] | None:
        return None if isinstance(self.data, Stream) else self.plan.examples_of(len(self.data), epoch, step)

    def empty_chunk(self) -> StepChunk:
        first = first_batch(self.data, self.plan.batch_size)
        first = self._fitted(first) or first
        self._usual = _form(first)
        return replace(self._chunk_of([first]), count=0)

    def _read(self, epoch: int, skip_steps: int) -> Iterator[StepChunk]:
        batches: list[Batch] = []
        for number, read in enumerate(self._batches(epoch)):
            batch = self._fitted(whole := for_backend(read))
            if number == 0:
                self._usual = _form(whole if batch is None else batch)
            if number < skip_steps or batch is None:
                continue
            if batches and _form(batch) != _form(batches[0]):
                yield self._chunk_of(batches)
                batches = []
            batches.append(batch)
            if len(batches) >= self._slots(batch):
                yield self._chunk_of(batches)
                batches = []
        if batches:
            yield self._chunk_of(batches)

    def _fitted(self, batch: Batch) -> Batch | None:
        """As much of it as splits evenly over the devices; None where that is nothing, or no remainder is wanted."""
        length, devices = _length(batch), self.plan.devices
        if isinstance(self.data, Stream):
            left = length - length % devices
        else:
            left = length if length == self.plan.batch_size else self.plan.rest_of(length)
        return batch if left == length else _cut(batch, left) if left else None

    def _slots(self, batch: Batch) -> int:
        is_whole = isinstance(self.data, Stream) or _length(batch) == self.plan.batch_size
        is_one = not is_whole or _form(batch) != self._usual or len(_lengths(batch)) > 1
        return 1 if is_one else self._chunk_steps(batch)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        plan = self.plan
        if isinstance(self.data, Stream):
            yield from self.data.batches(epoch, plan.seed, plan.shuffle)
            return
        order = plan.order(len(self.data), epoch)
        for first in range(0, len(order), plan.batch_size):
            yield self.data.take(order[first : first + plan.batch_size]).as_batch()

    def _chunk_steps(self, batch: Batch) -> int:
        return max(1, min(self.plan.capacity, CHUNK_BYTES // max(_batch_bytes(batch), 1)))

    def _chunk_of(self, batches: list[Batch]) -> StepChunk:
        """One source of `capacity` batches, or fewer where that many would be too large; unused rows are zero.

        Of batches that don't have the form of the first one, which may come in any length, it holds one; so of those
        whose parts have different lengths: of the indices, a shorter part takes as many as it has.
        """
        count, sizes = len(batches), _lengths(batches[0])
        slots, size = self._slots(batches[0]), max(sizes)
        source = self.engine.to_device(_joined(batches, slots * size) if len(sizes) == 1 else batches[0])
        batch_indices = np.arange(slots * size, dtype=np.int32).reshape(slots, size)
        return StepChunk(source, batch_indices, count)


Feed = ResidentFeed | ChunkFeed


def build_feed(data: Examples | Stream, engine: Engine, plan: BatchPlan, resident: bool) -> Feed:
    """A `ResidentFeed` for arrays if `resident`, otherwise a `ChunkFeed`."""
    if resident and isinstance(data, Examples):
        return ResidentFeed(data, engine, plan)
    return ChunkFeed(data, engine, plan)


def _length(batch: Batch) -> int:
    return len(Examples(*batch))


def _lengths(batch: Batch) -> set[int]:
    """Those of its arrays: one, but for batches that only a model's own train_step can take."""
    return {len(array) for _, array in all_arrays(Examples(*batch))}


def _batch_bytes(batch: Batch) -> int:
    parts = tuple(part for part in batch if part is not None)
    return sum(int(array.nbytes) for _, array in leaves(parts, "data"))


def _form(batch: Batch) -> list[Any]:
    """What batches that are sent together have in common: the shapes of all arrays."""
    return [(name, array.shape, array.dtype.kind) for name, array in all_arrays(Examples(*batch))]


def _cut(batch: Batch, length: int) -> Batch:
    return Examples(*batch).take(slice(0, length)).as_batch()


def _joined(batches: list[Batch], length: int) -> Batch:
    """The batches one after the other as `length` examples, zeros or empty rows behind them; None stays None."""
    places = zip(*batches, strict=True)
    return Batch(*(join_arrays(lambda parts: joined(parts, length), list(parts)) for parts in places))


def _padded(indices: NDArray[np.int32], capacity: int) -> BatchIndices:
    if len(indices) == capacity:
        return indices
    return np.concatenate([indices, np.zeros((capacity - len(indices), indices.shape[1]), np.int32)])


def first_batch(data: Examples | Stream, batch_size: int) -> Batch:
    """The first `batch_size` examples, or all where there are fewer, in the order of the source."""
    if isinstance(data, Stream):
        return for_backend(next(data.batches(1)))
    return for_backend(data.take(slice(0, batch_size)).as_batch())


def for_backend(batch: Batch) -> Batch:
    """The batch as Keras's `fit` hands it to the model: sparse inputs dense, and ragged ones on JAX, which has none."""
    return batch._replace(x=map_arrays(lambda array: array.dense() if _made_dense(array) else array, batch.x))


def _made_dense(array: Any) -> bool:
    return isinstance(array, Rows) and (keras.backend.backend() == "jax" or not isinstance(array, Ragged))
