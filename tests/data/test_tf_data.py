"""tf.data.Datasets as arrays and as streams."""

import numpy as np
import pytest
import tensorflow as tf

from mpt_cli.data import streams
from mpt_cli.data.examples import Examples, Stream
from mpt_cli.data.streams import (
    as_tf_dataset,
    element_spec,
    is_batched,
    is_tf_dataset,
    open_tf_batches,
    read_tf_dataset,
)
from mpt_cli.errors import DataError

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10) % 3


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays or (X, Y))


def read(made, limit=None):
    return read_tf_dataset(as_tf_dataset(made, "it"), limit)


def spec(*shapes, dtype=tf.float32):
    return tuple(tf.TensorSpec(shape, dtype) for shape in shapes)


@pytest.fixture
def small_memory(monkeypatch):
    monkeypatch.setattr(streams, "MEMORY_BYTES", 50)  # four examples of 8 + 8 bytes


@pytest.mark.parametrize(("shapes", "batched"), [
    ([(2,), ()], False),
    ([(8, 8, 1), ()], False),
    ([(4,), (4,)], False),
    ([(4,), (2,)], False),
    ([(64, 64, 3), (10,)], False),
    ([(None, 2), (None,)], True),
    ([(None, 8, 8, 1), (None, 1)], True),
    ([(None, 2), ()], False),
    ([(32, 8, 8, 1), (32,)], True),
    ([(32, 8, 8, 1), (32,), (32,)], True),
    ([(None, 2), (None,), (None,)], True),
])
def test_batches_are_told_from_single_examples(shapes, batched):
    assert is_batched(spec(*shapes), "it") is batched


@pytest.mark.parametrize("shapes", [[(32, 10), (32,)], [(64, 64, 3), (64, 64, 3)], [(32, 10), (32, 5)]])
def test_where_it_is_not_clear_the_user_is_asked(shapes):
    message = r"^it: it isn't clear whether elements of shape .* are examples or batches\. Batch without drop_remainder"
    with pytest.raises(DataError, match=message):
        is_batched(spec(*shapes), "it")


@pytest.mark.parametrize(("elements", "message"), [
    (dataset(X, Y, Y, Y), r"must be x, \(x, y\) or \(x, y, sample_weight\)\. Received: \(TensorSpec"),
    (dataset(X, np.array(["a"] * 10)), r"must be tensors of numbers, targets and weights dense ones\. .*string"),
    (dataset(X[:2], tf.ragged.constant([[1, 2], [3]])), r"targets and weights dense ones\. Received: Ragged"),
    (dataset().map(lambda x, y: (tf.py_function(lambda a: a, [x], tf.float32), y)),
     r"doesn't say how many dimensions its tensors have\. Set them with tensor\.set_shape"),
])
def test_elements_that_cannot_be_trained_on(elements, message):
    with pytest.raises(DataError, match=message):
        element_spec(elements, "it")


@pytest.mark.parametrize("make", [
    dataset, lambda: dataset().batch(4), lambda: dataset().batch(4).prefetch(1),
    lambda: dataset().batch(3).map(lambda x, y: (x, y)).unbatch()])
def test_a_small_dataset_becomes_the_arrays_it_holds(make):
    examples = read(make())
    assert isinstance(examples, Examples)
    assert (examples.x.tolist(), examples.y.tolist(), examples.sample_weight) == (X.tolist(), Y.tolist(), None)


def test_dicts_tuples_and_weights():
    made = tf.data.Dataset.from_tensor_slices(({"a": X, "b": (Y, X)}, Y, Y / 2)).batch(4)
    examples = read(made)
    assert examples.x["a"].tolist() == X.tolist()
    assert examples.x["b"][0].tolist() == Y.tolist()
    assert examples.sample_weight.tolist() == (Y / 2).tolist()


@pytest.mark.parametrize("batch", [None, 3])
def test_a_large_dataset_is_a_stream_of_the_same_examples_in_new_batches(small_memory, batch):
    made = dataset() if batch is None else dataset().batch(batch)
    stream = read(made)
    assert isinstance(stream, Stream)
    assert (stream.examples, stream.endless) == (10 if batch is None else None, False)  # a last batch may be smaller
    for epoch in (0, 1):
        batches = list(stream.batches(4, epoch, 0, shuffle=False))
        assert [len(x) for x, _, _ in batches] == [4, 4, 2]
        assert np.concatenate([x for x, _, _ in batches]).tolist() == X.tolist()
        assert np.concatenate([y for _, y, _ in batches]).tolist() == Y.tolist()


def order(stream, epoch, seed):
    return np.concatenate([x for x, _, _ in stream.batches(4, epoch, seed, shuffle=True)])[:, 0].tolist()


@pytest.mark.parametrize("batch", [None, 3])
def test_a_stream_is_shuffled_by_seed_and_epoch(small_memory, batch):
    stream = read(dataset() if batch is None else dataset().batch(batch))
    orders = [order(stream, epoch, seed) for epoch, seed in ((0, 5), (0, 5), (1, 5), (0, 6))]
    assert orders[0] == orders[1]
    assert len({tuple(o) for o in orders}) == 3
    assert all(sorted(o) == X[:, 0].tolist() for o in orders)


def test_an_endless_dataset_is_an_endless_stream():
    stream = read(dataset().repeat())
    assert (stream.examples, stream.endless) == (None, True)
    assert len(next(iter(stream.batches(32, 0, 0, shuffle=False)))[0]) == 32


def generated(count):
    def generate():
        for place in range(count):
            yield X[place % 10], Y[place % 10]
    return tf.data.Dataset.from_generator(generate, output_signature=spec((2,), ()))


def test_a_generator_is_read_to_its_end(monkeypatch):
    assert len(read(generated(7))) == 7


def test_a_generator_beyond_the_limit_is_a_stream_of_unknown_length(monkeypatch):
    monkeypatch.setattr(streams, "MOST_UNCOUNTED", 8)
    stream = read(generated(9))
    assert (stream.examples, stream.endless) == (None, False)
    assert sum(len(x) for x, _, _ in stream.batches(4, 0, 0, shuffle=True)) == 9


@pytest.mark.parametrize("batch", [None, 3])
def test_a_limited_stream_takes_the_first_examples(small_memory, batch):
    stream = read(dataset() if batch is None else dataset().batch(batch), limit=7)
    assert stream.examples == (7 if batch is None else None)
    assert np.concatenate([x for x, _, _ in stream.batches(4, 0, 0, shuffle=False)]).tolist() == X[:7].tolist()


def test_an_empty_dataset():
    with pytest.raises(DataError, match=r"^it: the dataset is empty\.$"):
        read(dataset().take(0))


def test_an_error_of_the_users_generator_is_shown_without_a_traceback():
    def generate():
        yield X[0], Y[0]
        raise RuntimeError("disk on fire")
    made = tf.data.Dataset.from_generator(generate, output_signature=spec((2,), ()))
    with pytest.raises(DataError, match=r"^it: reading the dataset failed: .*disk on fire") as caught:
        read(made)
    assert "\n" not in str(caught.value)


def test_examples_of_different_shapes():
    def generate():
        yield X[0], 1
        yield X[0, :1], 1
    made = tf.data.Dataset.from_generator(generate, output_signature=spec((None,), ()))
    with pytest.raises(DataError, match=r"^it: reading the dataset failed: .*shape"):
        read(made)


@pytest.mark.parametrize("make", [
    lambda: dataset(X, X).batch(5, drop_remainder=True),
    lambda: dataset(Y, Y).batch(5, drop_remainder=True).prefetch(1),
    lambda: dataset(X, X).batch(5, drop_remainder=True).map(lambda x, y: (x, y)).shuffle(2)])
def test_batches_of_a_fixed_size_are_told_by_how_they_were_made(make):
    assert as_tf_dataset(make(), "it").batched


@pytest.mark.parametrize("batch", [None, 2])
def test_ragged_and_sparse_elements(batch):
    words = tf.ragged.constant([[1, 2], [3], [4, 5, 6]])
    places = tf.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    made = dataset(({"words": words, "places": places}), [0, 1, 0])
    source = as_tf_dataset(made if batch is None else made.batch(batch), "it")
    assert source.batched == (batch is not None)
    x = read_tf_dataset(source).x
    assert (x["words"].splits.tolist(), x["words"].values.tolist()) == ([0, 2, 3, 6], [1, 2, 3, 4, 5, 6])
    assert x["places"].dense().tolist() == [[0, 5], [0, 0], [7, 0]]


def shuffled(drawn):
    drawn.append(tf.random.set_seed(3))
    return dataset(X[:, 0], Y).shuffle(10).batch(4)


def passes(drawn, *epochs):
    stream = open_tf_batches(shuffled(drawn), lambda: shuffled(drawn), "it")
    return [[batch.x.tolist() for batch in stream.batches(64, epoch, 0, shuffle=True)] for epoch in epochs]


def test_batches_of_the_users_stay_as_they_are_and_epoch_n_is_the_nth_pass():
    made = shuffled([])
    wanted = [[x.numpy().tolist() for x, _ in made] for _ in range(3)]
    assert wanted[0] != wanted[1] and [len(x) for x in wanted[0]] == [4, 4, 2]
    drawn = []
    assert passes(drawn, 1, 2, 3) == wanted and len(drawn) == 1
    assert passes([], 3, 1) == [wanted[2], wanted[0]]


def test_looking_at_the_first_batch_does_not_read_a_dataset_anew():
    drawn = []
    stream = open_tf_batches(shuffled(drawn), lambda: shuffled(drawn), "it")
    looks = [stream.first(1).x.tolist() for _ in range(3)]
    whole = [batch.x.tolist() for batch in stream.batches(64, 1, 0, shuffle=False)]
    assert looks == [whole[0]] * 3 and sum(map(len, whole)) == 10 and len(drawn) == 1
    assert (stream.steps, stream.endless) == (3, False)
    assert open_tf_batches(shuffled([]).repeat(), None, "it").endless


def test_is_dataset():
    assert is_tf_dataset(dataset())
    assert not is_tf_dataset((X, Y))
