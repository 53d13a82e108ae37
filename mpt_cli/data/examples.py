"""What a data source hands to the trainer: arrays or a stream of batches, how arrays are split, and their
fingerprint.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import DataError

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Any  # an Array, or a dict or tuple of Arrays; Any, so that users of a plain array need no casts


class Batch(NamedTuple):
    """The examples of a step; a tuple as Keras takes it."""

    x: Arrays
    y: Arrays
    sample_weight: Array | None


@dataclass(frozen=True)
class Examples:
    """Arrays in memory; the first dimension of each is the number of examples."""

    x: Arrays
    y: Arrays
    sample_weight: Array | None = None

    def __len__(self) -> int:
        return int(leaves(self.x, "x")[0][1].shape[0])

    def as_batch(self) -> Batch:
        """All of them as one batch, not copied."""
        return Batch(self.x, self.y, self.sample_weight)

    def take(self, which: "Array | slice") -> "Examples":
        """These examples only: a copy for an array of indices, a view for a slice."""
        weight = None if self.sample_weight is None else self.sample_weight[which]
        return Examples(map_arrays(lambda a: a[which], self.x), map_arrays(lambda a: a[which], self.y), weight)


@dataclass(frozen=True)
class Stream:
    """Examples that are read anew in every epoch because they don't fit, or aren't known to fit, in memory.

    `open(batch_size, shuffle_seed)` starts a pass; `shuffle_seed` None keeps the order of the source. The last batch
    may be smaller. `examples` is their number in a pass, None where it isn't known before a pass has been
    read. `endless`: a pass never ends, so only `trainer.max_steps` does.
    """

    open: Callable[[int, int | None], Iterator[Examples]]
    examples: int | None = None
    endless: bool = False

    def batches(self, batch_size: int, epoch: int, seed: int, shuffle: bool) -> Iterator[Batch]:
        """NumPy batches of one pass; shuffled within a buffer, in an order that `seed` and `epoch` fix.

        DataError when the source fails on the way, holds NaN or labels out of range, or gives nothing at all (a
        generator that can be read only once does that in the second epoch).
        """
        shuffle_seed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]) if shuffle else None
        empty = True
        for batch in self.open(batch_size, shuffle_seed):
            empty = False
            yield batch.as_batch()
        if empty:
            raise DataError(f"The data gave no examples in epoch {epoch}. It must give the same examples each time "
                            "it is read.")


@dataclass(frozen=True)
class DataSet:
    """Training and validation data, ready for the trainer.

    Inputs are float32 or, for tokens, int32. Classification: int32 labels 0 … num_classes-1 of shape (n,), or (n, T)
    for a label per position. Regression: float32 targets (n, k) and num_classes = k.
    `input_shape` is without the batch; a dict or tuple of shapes where x is one. `input_dtype` joins the names with
    "+" where inputs differ. `max_abs_input` is the largest magnitude among the float inputs, so that a run in float16
    can be warned (its largest number is 65504); of a stream, that of the first batch. `fingerprint_of` says what the
    fingerprint was taken over.

    `preprocessing` is what was done to the raw values, as JSON, for who feeds the trained model: `inputs` and `targets`
    in the model's order, each with its `name` and the `mean` and `deviation` it was standardised by, or with the text
    that it `equals` (1) or doesn't (0); `divided_by` for each input x, x['image'], …; the names of `classes` and the
    `characters` in the order of their numbers; how an `image` is read.
    """

    train: Examples | Stream
    validation: Examples | Stream | None
    task: str
    input_shape: Any
    input_dtype: str
    num_classes: int | None
    fingerprint: str
    description: str
    max_abs_input: float = 0.0
    fingerprint_of: str = "all bytes"
    preprocessing: dict[str, Any] = field(default_factory=dict)


def leaves(arrays: Arrays, name: str) -> list[tuple[str, Array]]:
    """The single arrays with their name in messages: x, x['image'], x[1]."""
    if isinstance(arrays, dict):
        return [leaf for key, value in arrays.items() for leaf in leaves(value, f"{name}[{key!r}]")]
    if isinstance(arrays, tuple):
        return [leaf for place, value in enumerate(arrays) for leaf in leaves(value, f"{name}[{place}]")]
    return [(name, arrays)]


def map_arrays(function: Callable[[Any], Any], arrays: Arrays) -> Any:
    """The same dict or tuple with `function` applied to each single array."""
    if isinstance(arrays, dict):
        return {key: map_arrays(function, value) for key, value in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(map_arrays(function, value) for value in arrays)
    return function(arrays)


WHOLE_BYTES = 256 * 2**20  # up to here every byte is hashed; beyond, a sample of SAMPLE_BYTES
SAMPLE_BYTES = 64 * 2**20


def fingerprint_arrays(parts: list[Examples]) -> tuple[str, str]:
    """sha256 over names, dtypes, shapes and bytes of all arrays, and what of them was hashed.

    Of more than WHOLE_BYTES in all, evenly spaced examples are hashed, about SAMPLE_BYTES of them: a change of single
    examples may then go unnoticed, which the second value says.
    """
    arrays = [(f"{place}.{name}", array) for place, part in enumerate(parts) for name, array in _all_arrays(part)]
    stride = _hash_stride(sum(array.nbytes for _, array in arrays))
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(f"{name} {array.dtype.str} {array.shape} {stride};".encode())
        digest.update(np.ascontiguousarray(array[::stride]).view(np.uint8).data)
    return digest.hexdigest(), "all bytes" if stride == 1 else f"shapes and every {stride}th example"


def _hash_stride(total_bytes: int) -> int:
    return 1 if total_bytes <= WHOLE_BYTES else -(-total_bytes // SAMPLE_BYTES)


def _all_arrays(part: Examples) -> list[tuple[str, Array]]:
    weight = [] if part.sample_weight is None else [("sample_weight", part.sample_weight)]
    return leaves(part.x, "x") + leaves(part.y, "y") + weight


def draw_examples(examples: Examples, limit: int | None, seed: int, in_order: bool = False) -> Examples:
    """At most `limit` of the examples, drawn by seed; `in_order` keeps them in the order they have."""
    if limit is None or limit >= len(examples):
        return examples
    chosen = np.random.default_rng([seed, 0]).permutation(len(examples))[:limit]
    return examples.take(np.sort(chosen) if in_order else chosen)


def split_examples(
    examples: Examples, fraction: float, seed: int, in_order: bool = False
) -> tuple[Examples, Examples | None]:
    """Training and validation part; fraction 0 holds nothing out.

    By a permutation drawn from the seed, or, `in_order`, the last part as it stands. Both parts are non-empty;
    DataError where there are too few examples for that.
    """
    if fraction == 0:
        return examples, None
    count = len(examples)
    if count < 2:
        raise DataError(f"{count} example can't be split into training and validation. "
                        "Use more examples (data.limit), or data.validation_fraction=0 for none.")
    held_out = min(max(round(count * fraction), 1), count - 1)
    train, validation = _split_indices(count, held_out, seed, in_order)
    return examples.take(train), examples.take(validation)


def _split_indices(count: int, held_out: int, seed: int, in_order: bool) -> tuple["Array | slice", "Array | slice"]:
    if in_order:
        return slice(0, count - held_out), slice(count - held_out, count)
    order = np.random.default_rng([seed, 1]).permutation(count)
    return order[held_out:], order[:held_out]
