"""Read sources that make their own batches: a tf.data.Dataset, a `keras.utils.PyDataset` or a generator, in one thread
and reproducibly. TensorFlow is imported only inside functions.

PyDatasets and generators may draw random numbers from Python's and NumPy's global generators. Before each batch both
are seeded from the seed of the run and the number of the batch, and afterwards restored. So a resumed run sees the same
batches as an unbroken one.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isgenerator
from itertools import count, zip_longest
from typing import Any

import numpy as np

from mpt_cli.data.examples import Examples, Reading, Stream
from mpt_cli.errors import DataError, MptError, UserCodeError, first_line, summarise_error


def call_seeded(call: Callable[[], Any], seed: int) -> Any:
    """Return the result of a function of the user's, with TensorFlow seeded by `seed`.

    A `dataset.shuffle(n)` without a seed takes one from TensorFlow's when it is made. A function that imported
    TensorFlow itself, unseeded, and returns such a dataset is called again.
    """
    was_loaded = seed_tensorflow(seed)
    returned = call()
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    if was_loaded or not any(map(is_tf_dataset, parts)):
        return returned
    seed_tensorflow(seed)
    return call()


def seed_tensorflow(seed: int) -> bool:
    """Seed TensorFlow if it is loaded, and return whether it is; import nothing."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.random.set_seed(seed)
    return tensorflow is not None


def is_tf_dataset(value: object) -> bool:
    """Return whether this is a tf.data.Dataset; without importing TensorFlow, as it can't be one if nobody has."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, tensorflow.data.Dataset)


def open_tf_batches(dataset: Any, reopen: Callable[[], Any] | None, where: str) -> Stream:
    """Return the batches of a dataset as they come, as Keras's `fit` reads them; DataError where it is not
    batched.

    `reopen` makes another dataset like it, so that an epoch can be read once more; without it the next pass is read.
    """
    import tensorflow as tf

    if any(getattr(part.shape, "rank", None) == 0 for part in tf.nest.flatten(dataset.element_spec)):
        raise DataError(f"{where}: the dataset must be batched, as Keras's fit takes it. Use dataset.batch(n).")
    known = int(dataset.cardinality())  # negative: -1 endless, -2 unknown
    steps = known if known >= 0 else None
    return Stream(_BatchPasses(dataset, reopen, where), steps, endless=known == -1)


@dataclass
class _BatchPasses:
    """Passes over a dataset, one after the other: one that shuffles draws another order for each.

    So epoch n is the n-th pass, also where a resumed run leaves out those before it: a pass is drawn when its iterator
    is made. (On TensorFlow Keras's `fit` makes one more between two epochs, so that there epoch 2 is the third pass.)
    The first batch, which is looked at before training, is kept, and training continues the pass after it.
    """

    dataset: Any
    reopen: Callable[[], Any] | None
    where: str
    passes: int = 0  # passes started so far
    head: Examples | None = None
    rest: Iterator[Examples] = field(init=False)

    def __call__(self, reading: Reading) -> Iterator[Examples]:
        if self.head is None or self.passes != reading.epoch:
            self._begin(reading.epoch)
            self.head = next(self.rest, None)
        if self.head is None:
            return
        yield self.head
        for batch in self.rest:
            self.head = None  # from now on this pass can't be restarted
            yield batch
        self.head = None

    def _begin(self, epoch: int) -> None:
        if self.reopen is not None and self.passes >= epoch:
            self.dataset, self.passes = self.reopen(), 0
        while self.passes < epoch - 1:
            iter(self.dataset)
            self.passes += 1
        self.passes = epoch
        self.rest = _read(self.dataset, self.where)


def _read(dataset: Any, where: str) -> Iterator[Examples]:
    """Yield NumPy batches; TensorFlow's own errors become a DataError with their first line."""
    import tensorflow as tf

    try:
        for element in dataset:
            yield as_examples(element, where)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise DataError(f"{where}: reading the dataset failed: {first_line(error)}") from error


def as_arrays(value: Any, name: str) -> Any:
    """Return arrays of any library as NumPy arrays, in dicts or tuples as Keras's `fit` takes several of them.
    DataError for what is no array, which it does not take either, and for ragged and sparse ones.

    >>> as_arrays([np.zeros(2), {"a": [np.ones(1)]}], "x")
    (array([0., 0.]), {'a': (array([1.]),)})
    """
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, dict):
        return {key: as_arrays(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(as_arrays(part, f"{name}[{index}]") for index, part in enumerate(value))
    if not hasattr(value, "shape"):
        raise DataError(f"{name} must be an array, or a dict or list of arrays. Received: a {type(value).__name__}.")
    array = np.asarray(value)
    if array.shape != tuple(value.shape) or hasattr(value, "todense"):
        raise DataError(
            f"{name} must be a dense array. Received: a {type(value).__name__}. Pad rows of different lengths "
            "(to_tensor), and make sparse ones dense (toarray, todense, tf.sparse.to_dense)."
        )
    return array


def is_batch_source(value: Any) -> bool:
    """Return whether `value` is a PyDataset of Keras or a generator; Keras is not imported where nobody has."""
    keras = sys.modules.get("keras")
    return isgenerator(value) or (keras is not None and isinstance(value, keras.utils.PyDataset))


def open_batches(source: Any, reopen: Callable[[], Any], seed: int, where: str) -> Stream:
    """Return the stream of a PyDataset or a generator; `reopen` makes another like it, to be read from the start."""
    if isgenerator(source):
        return Stream(partial(_generated, reopen, seed, where))
    return Stream(_PyDatasetPasses(source, reopen, seed, where), _count(source, where), in_any_order=True)


def _count(source: Any, where: str) -> int:
    with _user_errors(where):
        return len(source)


@dataclass
class _PyDatasetPasses:
    """Passes over a PyDataset, batch by batch by index, in an order drawn from the seed where that is wanted.

    `on_epoch_end` is called between two epochs, also of those that a resumed run leaves out.
    """

    source: Any
    reopen: Callable[[], Any]
    seed: int
    where: str
    epoch: int = 1

    def __call__(self, reading: Reading) -> Iterator[Examples]:
        if reading.epoch < self.epoch:
            self.source, self.epoch = self.reopen(), 1
        while self.epoch < reading.epoch:
            with _drawn_by(self.seed, self.epoch), _user_errors(self.where):
                self.source.on_epoch_end()
            self.epoch += 1
        order = np.arange(_count(self.source, self.where))
        if reading.shuffle:
            np.random.default_rng([reading.seed, reading.epoch]).shuffle(order)
        for index in order.tolist():
            with _drawn_by(self.seed, reading.epoch, index), _user_errors(self.where):
                batch = self.source[index]
            yield as_examples(batch, self.where)


def _generated(reopen: Callable[[], Any], seed: int, where: str, reading: Reading) -> Iterator[Examples]:
    """Yield the batches of a generator, which is made anew for each pass."""
    with _user_errors(where):
        source = reopen()
    end = object()
    for number in count():
        with _drawn_by(seed, reading.epoch, number), _user_errors(where):
            batch = next(source, end)
        if batch is end:
            return
        yield as_examples(batch, where)


def as_examples(batch: Any, where: str) -> Examples:
    """Return a batch as Keras takes it: x, (x, y) or (x, y, sample_weight)."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    if len(parts) not in (1, 2, 3):
        raise DataError(
            f"{where}: a batch must be x, (x, y) or (x, y, sample_weight). Received: a tuple of {len(parts)}."
        )
    return read_arrays(parts, f"{where}: ")


def read_arrays(parts: Sequence[Any], where: str) -> Examples:
    """Return x, y and sample_weight, as many as there are, as `as_arrays` does."""
    return Examples(*(as_arrays(part, f"{where}{name}") for part, name in zip_longest(parts, Examples._fields)))


@contextmanager
def _drawn_by(*seeds: int) -> Iterator[None]:
    drawn = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    with random_state_kept():
        random.seed(drawn)
        np.random.seed(drawn)
        yield


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore Python's and NumPy's global generators at the end, as if nothing had been drawn in the block."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _user_errors(where: str) -> Iterator[None]:
    try:
        yield
    except MptError:
        raise
    except Exception as error:
        raise UserCodeError(f"{where}: reading a batch raised {summarise_error(error)}") from error
