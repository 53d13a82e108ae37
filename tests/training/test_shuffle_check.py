"""A stream that is shuffled anew each time it is read can't be resumed exactly, which is said at the start."""

import numpy as np
import pytest

from mpt_cli.data.examples import Examples
from mpt_cli.data.streams import TfDataset, open_tf_stream
from mpt_cli.engine.feed import first_batch, shuffle_check

WARNING = ("data: the dataset gives its examples in another order, or others, each time it is read. A resumed run "
           "can't repeat that: of the epoch it goes on with, it leaves some out and sees some twice. Leave shuffling "
           "to trainer.shuffle, or use dataset.shuffle(..., reshuffle_each_iteration=False).")  # fmt: skip


def warnings(**shuffled: object) -> list[str]:
    """About a stream of 100 examples that the user shuffled so."""
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((np.arange(100.0), np.arange(100)))
    stream = open_tf_stream(TfDataset(dataset.shuffle(100, **shuffled) if shuffled else dataset, False, "it"), 100.0)
    return shuffle_check(stream, first_batch(stream, 16))


def test_a_stream_that_is_shuffled_anew_each_time_is_warned_of():
    assert warnings(seed=3) == [WARNING]


def test_a_stream_that_repeats_is_not():
    assert warnings() == []
    assert warnings(seed=3, reshuffle_each_iteration=False) == []


def test_arrays_stay_as_they_are():
    data = Examples(np.arange(6.0)[:, None], np.arange(6))
    first = first_batch(data, 4)
    assert (first[0].tolist(), first[1].tolist(), first[2]) == ([[0], [1], [2], [3]], [0, 1, 2, 3], None)
    assert shuffle_check(data, first) == []
