"""The data that a source gives the trainer: arrays or a stream of batches, their split and their fingerprint."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
import optree
from numpy.typing import NDArray

from mpt_cli.errors import DataError


def joined(parts: Sequence[Any], length: int) -> Any:
    """Join arrays one after the other into `length` rows; those behind are zeros."""
    shape, dtype = parts[0].shape[1:], np.result_type(*parts)  # arrays of text are as wide as their longest text
    whole = np.zeros((length, *shape), dtype)
    np.concatenate(parts, out=whole[: sum(len(part) for part in parts)])
    return whole


Array = NDArray[Any]
Arrays = Any  # an Array, or a dict or tuple of Arrays; Any, so that users of a plain array need no casts


class Examples(NamedTuple):
    """Arrays in memory, or the batch of a step, as Keras takes it; the first dimension of each array is the number of
    examples.

    `y` is None where the model needs no targets; `sample_weight` None, an array, or in the structure of `y`.
    """

    x: Arrays
    y: Arrays
    sample_weight: Arrays = None

    @property
    def size(self) -> int:
        """Return the number of examples."""
        return int(named_arrays(self.x, "x")[0][1].shape[0])

    def take(self, which: "Array | slice") -> "Examples":
        """Return these examples only: a copy for an array of indices, a view for a slice."""
        return Examples(*map_arrays(lambda a: a[which], self))


class Reading(NamedTuple):
    """The epoch to read, and how to read it."""

    epoch: int = 1
    seed: int = 0
    shuffle: bool = False


@dataclass(frozen=True)
class Stream:
    """Batches that their source makes, read anew in every epoch; `read` gives those of one.

    `steps` is their number, None where it is not known before they are read. `endless`: the source never ends, so that
    `trainer.max_steps` must end the run. `in_any_order`: the caller chooses the order.
    """

    read: Callable[[Reading], Iterator[Examples]]
    steps: int | None = None
    endless: bool = False
    in_any_order: bool = False

    def batches(self, epoch: int, seed: int = 0, shuffle: bool = False) -> Iterator[Examples]:
        """Yield the batches of `epoch`. DataError where the source fails on the way, holds NaN or labels out of range,
        or gives nothing."""
        empty = True
        for batch in self.read(Reading(epoch, seed, shuffle)):
            empty = False
            yield batch
        if empty:
            raise DataError(f"The data gave no examples in epoch {epoch}.")

    def first(self) -> Examples | None:
        """Return the first batch of the first epoch; None where there is none."""
        return next(self.read(Reading()), None)

    def mapped(self, function: Callable[[Examples, int], Examples]) -> "Stream":
        """Return the stream with `function` applied to each batch and its number (from 1) in the epoch."""

        def read(reading: Reading) -> Iterator[Examples]:
            for number, batch in enumerate(self.read(reading), 1):
                yield function(batch, number)

        return replace(self, read=read)


@dataclass
class Continued:
    """Epochs of `steps` batches, for `steps_per_epoch`: each epoch begins in the stream where the one before it ended.

    After the end of the stream comes its next pass. For an epoch out of turn, as in a resumed run, the stream is read
    again from its beginning.
    """

    stream: Stream
    steps: int
    live: Iterator[Examples] = field(init=False)
    position: int = -1  # batches that `live` has given since the first epoch

    def __call__(self, reading: Reading) -> Iterator[Examples]:
        start = (reading.epoch - 1) * self.steps
        if self.position != start:
            passes = (self.stream.batches(number, reading.seed, reading.shuffle) for number in count(1))
            self.live, self.position = chain.from_iterable(passes), start
            for _ in range(start):
                next(self.live)
        for _ in range(self.steps):
            batch = next(self.live)
            self.position += 1
            yield batch


def in_epochs_of(stream: Stream, steps: int) -> Stream:
    """Return the stream in epochs of so many batches."""
    return Stream(Continued(stream, steps), steps)


@dataclass(frozen=True)
class Shapes:
    """The shapes that a model must fit: of one example without the batch (a dict or tuple of shapes for several
    inputs), with its dtype in the same structure ("string" for text), and the number of outputs.

    `num_classes` is the number of classes, of tokens, or of regression outputs; None where the data doesn't say.
    """

    input_shape: Any
    num_classes: int | None
    input_dtypes: Any = "float32"
    task: str = "classification"
    targets_as_given: bool = False  # they came with a loss that the user named, which says what outputs must be

    @property
    def input_dtype(self) -> str:
        """Return the name of the dtype, or the names joined with "+" where inputs differ."""
        return "+".join(sorted(set(optree.tree_leaves(self.input_dtypes))))

    def __str__(self) -> str:
        return f"inputs of shape {self.input_shape} and dtype {self.input_dtype}, {self.num_classes} outputs"


@dataclass(frozen=True, kw_only=True)
class DataSet(Shapes):
    """Training and validation data, ready for the trainer.

    Inputs are float32, int32 for tokens, or uint8 where the source leaves those as they are.
    Classification: int32 labels 0 … num_classes-1 of shape (n,), or (n, T) for a label per position.
    Regression: float32 targets (n, k) and num_classes = k.
    `max_abs_input` is the largest magnitude among the float inputs, so that a run in float16 can be warned (its largest
    number is 65504); of a stream, that of the first batch. `refused` says why `loss: auto` can't
    use the targets, where they were left as they came.
    """

    train: Examples | Stream
    validation: Examples | Stream | None
    fingerprint: str
    description: str
    max_abs_input: float = 0.0
    refused: DataError | None = None

    @property
    def counts(self) -> dict[str, int | None]:
        """Return how many examples there are to train on and to validate with; None for a stream and for none."""
        parts = {"train": self.train, "validation": self.validation}
        return {name: part.size if isinstance(part, Examples) else None for name, part in parts.items()}


def named_arrays(arrays: Arrays, name: str) -> list[tuple[str, Array]]:
    """Return the single arrays with their name in messages: x, x['image'], x[1]; none of None."""
    paths, found, _ = optree.tree_flatten_with_path(arrays)
    return [(name + "".join(f"[{key!r}]" for key in path), array) for path, array in zip(paths, found, strict=True)]


def map_arrays(function: Callable[..., Any], *trees: Any) -> Any:
    """Return dicts and tuples of the same form, with `function` of the arrays at each place; None stays None."""
    return optree.tree_map(function, *trees)


WHOLE_BYTES = 256 * 2**20  # up to here every byte is hashed; beyond, a sample of SAMPLE_BYTES
SAMPLE_BYTES = 64 * 2**20


def fingerprint_arrays(parts: list[Examples]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes of all arrays.

    Of more than WHOLE_BYTES in all, evenly spaced examples are hashed, about SAMPLE_BYTES of them: a change of single
    examples may then go unnoticed.
    """
    arrays = [(f"{index}.{name}", array) for index, part in enumerate(parts) for name, array in all_arrays(part)]
    total_bytes = sum(array.nbytes for _, array in arrays)
    stride = 1 if total_bytes <= WHOLE_BYTES else -(-total_bytes // SAMPLE_BYTES)
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(f"{name} {array.dtype.str} {array.shape} {stride};".encode())
        digest.update(np.ascontiguousarray(array[::stride]).view(np.uint8).data)
    return digest.hexdigest()


def all_arrays(part: Examples) -> list[tuple[str, Array]]:
    """Return inputs, targets and weights with their names in messages."""
    return [found for name, arrays in part._asdict().items() for found in named_arrays(arrays, name)]


def draw_examples(examples: Examples, limit: int | None, seed: int, in_order: bool = False) -> Examples:
    """Draw at most `limit` of the examples by seed; `in_order` keeps their order."""
    if limit is None or limit >= examples.size:
        return examples
    chosen = np.random.default_rng([seed, 0]).permutation(examples.size)[:limit]
    return examples.take(np.sort(chosen) if in_order else chosen)


def split_examples(
    examples: Examples, fraction: float, seed: int, in_order: bool = False
) -> tuple[Examples, Examples | None]:
    """Split into training and validation part; fraction 0 holds nothing out.

    By a permutation drawn from the seed, or, `in_order`, the last part as it stands. Both parts are non-empty;
    DataError where there are too few examples for that.
    """
    if fraction == 0:
        return examples, None
    number = examples.size
    if number < 2:
        raise DataError(
            f"{number} example can't be split into training and validation. "
            "Use more examples, or data.validation_fraction=0 for none."
        )
    held_out = min(max(round(number * fraction), 1), number - 1)
    if in_order:
        return examples.take(slice(0, number - held_out)), examples.take(slice(number - held_out, number))
    order = np.random.default_rng([seed, 1]).permutation(number)
    return examples.take(order[held_out:]), examples.take(order[:held_out])
