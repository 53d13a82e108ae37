"""A stream's own order: whether it gives the same examples first each time it is read."""

from mpt_cli.data.examples import Batch, Examples, Stream
from mpt_cli.data.fingerprint import fingerprint_arrays


def first_batch(data: Examples | Stream, batch_size: int) -> Batch:
    """The first `batch_size` examples, or all where there are fewer, in the order of the source."""
    if isinstance(data, Stream):
        return next(data.batches(batch_size, epoch=1, seed=0, shuffle=False))
    first = data.take(slice(0, batch_size))
    return first.x, first.y, first.sample_weight


def warn_of_own_order(data: Examples | Stream, first: Batch) -> list[str]:
    """A warning where a stream, read once more, does not begin with the examples of `first`.

    A dataset.shuffle(n) draws another order each time it is read, which depends on how often the process has read it.
    """
    if isinstance(data, Examples):
        return []
    again = first_batch(data, len(Examples(*first)))
    if fingerprint_arrays([Examples(*again)]) == fingerprint_arrays([Examples(*first)]):
        return []
    return ["data: the dataset gives its examples in another order, or others, each time it is read. A resumed run "
            "can't repeat that: of the epoch it goes on with, it leaves some out and sees some twice. Leave shuffling "
            "to trainer.shuffle, or use dataset.shuffle(..., reshuffle_each_iteration=False)."]  # fmt: skip
