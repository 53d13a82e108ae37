"""The batches of tf.data.Datasets."""

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from jax.experimental.sparse import BCOO

from mpt_cli.data.batch_streams import as_arrays, open_tf_batches
from mpt_cli.data.examples import Reading
from mpt_cli.errors import DataError

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10) % 3


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays or (X, Y))


def read(made):
    return list(open_tf_batches(made, None, "it").read(Reading()))


def spec(*shapes, dtype=tf.float32):
    return tuple(tf.TensorSpec(shape, dtype) for shape in shapes)


def test_a_dataset_must_be_batched():
    with pytest.raises(
        DataError, match=r"the dataset must be batched, as Keras's fit takes it\. Use dataset\.batch\(n\)"
    ):
        open_tf_batches(dataset(), None, "it")


def test_an_error_of_the_users_generator_is_shown_without_a_traceback():
    def generate():
        yield X[0], Y[0]
        raise RuntimeError("disk on fire")

    made = tf.data.Dataset.from_generator(generate, output_signature=spec((2,), ())).batch(4)
    with pytest.raises(DataError, match=r"^it: reading the dataset failed: .*disk on fire") as caught:
        read(made)
    assert "\n" not in str(caught.value)


RAGGED = tf.ragged.constant([[1, 2], [3]])
SPARSE = tf.SparseTensor([[1, 0]], [7.0], (2, 2))


@pytest.mark.parametrize("given", [RAGGED, SPARSE, scipy.sparse.eye_array(2), BCOO.fromdense(np.eye(2))])
def test_ragged_and_sparse_arrays_are_refused(given):
    message = r"must be a dense array\. Received: a \w+\. Pad rows of different lengths \(to_tensor\), and make sparse"
    with pytest.raises(DataError, match=rf"^x\['words'\] {message}"):
        as_arrays({"words": given}, "x")
    if tf.is_tensor(given):
        with pytest.raises(DataError, match=rf"^it: x\['words'\] {message}"):
            read(dataset({"words": given}, [0, 1]).batch(2))


def shuffled(drawn):
    drawn.append(tf.random.set_seed(3))
    return dataset(X[:, 0], Y).shuffle(10).batch(4)


def passes(drawn, *epochs):
    stream = open_tf_batches(shuffled(drawn), lambda: shuffled(drawn), "it")
    return [[batch.x.tolist() for batch in stream.batches(epoch, 0, shuffle=True)] for epoch in epochs]


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
    looks = [stream.first().x.tolist() for _ in range(3)]
    whole = [batch.x.tolist() for batch in stream.batches(1)]
    assert looks == [whole[0]] * 3 and sum(map(len, whole)) == 10 and len(drawn) == 1
    assert (stream.steps, stream.endless) == (3, False)
    assert open_tf_batches(shuffled([]).repeat(), None, "it").endless
