from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpt_cli as mpt
from mpt_cli.data.examples import Examples, Reading, Stream
from mpt_cli.engine import step_batches as feed_module
from mpt_cli.engine.step_batches import BatchPlan, Feed, byte_size
from mpt_cli.errors import DataError


class HostEngine:
    """Places data nowhere, so that a test can look at it."""

    def to_device(self, arrays: Any):
        return arrays


def examples(count: int, kind: str = "array", weighted: bool = False):
    """Example i holds the number i in every leaf, so that a batch says which examples it is made of."""
    numbers = np.arange(count, dtype=np.float32)
    x = {
        "array": numbers[:, None],
        "dict": {"image": np.stack([numbers, numbers], 1), "token": np.arange(count, dtype=np.int32)},
        "tuple": (numbers, (np.arange(count, dtype=np.int32), numbers[:, None])),
    }[kind]
    return Examples(x, np.arange(count, dtype=np.int32), numbers / 2 if weighted else None)


def batches(feed: Feed, epoch: int = 1, skip: int = 0, most: Callable[[], int] = lambda: 3):
    """What each step of a pass is given, as lists."""
    feed.start(epoch, skip)
    found = []
    while (chunk := feed.take(most())) is not None:
        assert 1 <= chunk.count <= len(chunk.batch_indices)
        for row in chunk.batch_indices[: chunk.count]:
            found.append([*optree.tree_map(lambda a, r=row: a[r].tolist(), chunk.source)])
    return found


def feeds(data: Examples, plan: BatchPlan):
    return [Feed(data, HostEngine(), plan, resident) for resident in (True, False)]  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 40),
    size=st.integers(1, 9),
    capacity=st.integers(1, 7),
    shuffle=st.booleans(),
    devices=st.sampled_from([1, 2]),
    epoch=st.integers(1, 3),
    skip=st.integers(0, 5),
    kind=st.sampled_from(["array", "dict", "tuple"]),
    weighted=st.booleans(),
    most=st.integers(1, 9),
)
def test_every_feed_gives_the_batches_of_the_plan(
    count, size, capacity, shuffle, devices, epoch, skip, kind, weighted, most
):
    size *= devices
    data = examples(count, kind, weighted)
    plan = BatchPlan(size, capacity, shuffle, seed=5, devices=devices)
    order = plan.order(count, epoch)
    parts = [order[first : first + size] for first in range(0, count, size)]
    if len(parts[-1]) < size:
        rest = len(parts[-1]) - len(parts[-1]) % devices
        parts[-1:] = [parts[-1][:rest]] if rest else []
    expected = []
    for part in parts:
        taken = data.take(part)
        expected.append([*optree.tree_map(lambda a: a.tolist(), taken)])

    assert plan.has_only_whole_batches(data) is all(len(batch[1]) == size for batch in expected)
    for feed in feeds(data, plan):
        assert feed.steps == len(expected)
        skipped = min(skip, len(expected))
        assert batches(feed, epoch, skipped, lambda: most) == expected[skipped:]


def test_the_order_is_new_each_epoch_and_the_same_each_time():
    plan = BatchPlan(4, 2, shuffle=True, seed=1)
    first, second = plan.order(50, 1).tolist(), plan.order(50, 2).tolist()
    assert first == plan.order(50, 1).tolist() != second and sorted(second) == list(range(50))
    assert BatchPlan(4, 2, shuffle=True, seed=2).order(50, 1).tolist() != first
    assert BatchPlan(4, 2).order(5, 7).tolist() == [0, 1, 2, 3, 4]


def test_chunks_stay_small(monkeypatch):
    monkeypatch.setattr(feed_module, "CHUNK_BYTES", 100)  # a batch of 4 has 4 * (4 + 4) = 32 bytes
    feed = Feed(examples(40), HostEngine(), BatchPlan(4, 8), resident=False)
    feed.start(1)
    chunk = feed.take(8)
    assert chunk is not None and (chunk.count, chunk.batch_indices.shape) == (3, (3, 4))
    assert [part[1] for part in batches(feed)] == np.arange(40).reshape(10, 4).tolist()


def stream_feed(sizes: list[int], plan: BatchPlan, endless: bool = False, steps: int | None = None):
    def read(reading: Reading):
        data = examples(sum(sizes), "dict", weighted=True)
        order = np.arange(data.size)
        if reading.shuffle:
            order = np.random.default_rng([reading.seed, reading.epoch]).permutation(order)
        while True:
            for last, size in zip(np.cumsum(sizes), sizes, strict=True):
                yield data.take(order[last - size : last])
            if not endless:
                return

    return Feed(Stream(read, steps, endless), HostEngine(), plan, resident=True)  # type: ignore[arg-type]


def test_batches_come_as_the_stream_gives_them():
    feed = stream_feed([4, 3, 4, 2], BatchPlan(4, 3), steps=4)
    assert feed.steps == 4
    assert [part[1] for part in batches(feed)] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10], [11, 12]]
    assert [part[2] for part in batches(feed)][-1] == [5.5, 6.0]


def test_an_error_names_the_batch_whose_shapes_are_unlike_those_of_the_first(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.ones((4, 2 + (index < 2)), "float32"), np.ones((4, 1))

    with pytest.raises(DataError, match=r"In batch 3 of the data x has the shape \(4, 2\), in the first \(4, 3\)\."):
        mpt.fit(model, Rows(), shuffle=False, run_dir=tmp_path / "run", settings={"logger.console": "quiet"})


def test_a_stream_goes_on_within_an_epoch():
    feed = stream_feed([4, 4, 4, 2], BatchPlan(4, 2, shuffle=True, seed=3))
    assert batches(feed, 2) != batches(feed, 1)
    for skip in (1, 3, 4):
        assert batches(feed, 2, skip) == batches(feed, 2)[skip:]


def test_a_stream_without_end_can_be_left():
    feed = stream_feed([4, 4], BatchPlan(4, 2), endless=True)
    assert feed.steps is None
    for epoch in (1, 2):
        feed.start(epoch)
        assert all(feed.take(2).count == 2 for _ in range(5))


def test_what_fails_while_reading_ahead_is_raised_at_its_place():
    def read(reading: Reading):
        yield examples(4)
        raise DataError("row 5 is broken")

    feed = Feed(Stream(read), HostEngine(), BatchPlan(4, 1), resident=True)  # type: ignore[arg-type]
    feed.start(1)
    assert feed.take(1) is not None
    with pytest.raises(DataError, match="row 5 is broken"):
        feed.take(1)


def test_the_size_of_data_counts_every_array():
    assert byte_size(examples(10, "tuple", weighted=True)) == 10 * (4 + 4 + 4 + 4 + 4)
    assert byte_size(None) == 0
    assert byte_size(Stream(lambda reading: iter(()))) is None
