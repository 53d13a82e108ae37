"""Ragged inputs, and sparse ones, which are made dense: what they are read from, and what becomes of them."""

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from jax.experimental import sparse as jax_sparse

from mpt_cli.data.batch_streams import as_arrays
from mpt_cli.data.examples import Examples, Rows, as_rows, fingerprint_arrays, joined
from mpt_cli.data.prepare_data_set import TargetSpec, check_examples, to_numbers
from mpt_cli.errors import DataError

DENSE = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]], np.float32)
WORDS = [[5, 6], [], [7, 8, 9], [4]]


def words():
    return as_rows(tf.ragged.constant(WORDS, dtype="int32"))


@pytest.mark.parametrize(
    "made",
    [
        scipy.sparse.coo_array(DENSE),
        tf.SparseTensor([[2, 2], [0, 1], [2, 0]], [3.0, 2.0, 1.0], (3, 3)),
        jax_sparse.BCOO.fromdense(DENSE),
    ],
)
def test_sparse_matrices_of_all_libraries_are_made_dense(made):
    dense = as_arrays(made, "x")
    assert isinstance(dense, np.ndarray) and (dense.dtype, dense.tolist()) == (np.float32, DENSE.tolist())


@pytest.mark.parametrize("which", [[2, 0], slice(1, 3), slice(0, 0)])
def test_rows_are_picked_as_of_a_dense_array(which):
    ragged = words()[which]
    assert [ragged.values[a:b].tolist() for a, b in zip(ragged.splits, ragged.splits[1:], strict=False)] == (
        np.array(WORDS, object)[which].tolist()
    )


def test_a_ragged_batch_is_padded_to_the_longest_of_its_own_rows():
    assert words()[[3, 0]].dense().tolist() == [[4, 0], [5, 6]]
    inner = as_rows(tf.ragged.constant([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], ragged_rank=1))
    assert (inner.shape, inner[[0]].dense().tolist()) == ((2, None, 2), [[[1, 2]]])


def test_rows_are_joined_and_filled_up_with_empty_ones():
    whole = joined([words()[2:], words()[:1]], 5)
    assert whole.dense().tolist() == [[7, 8, 9], [4, 0, 0], [5, 6, 0], [0, 0, 0], [0, 0, 0]]


def test_more_than_one_ragged_dimension_is_refused():
    with pytest.raises(
        DataError,
        match=r"^x must have one dimension of different lengths, the second\. Received: a "
        r"ragged tensor of shape \(2, None, None\)\. Make it dense with to_tensor",
    ):
        as_rows(tf.ragged.constant([[[1], [2, 3]], [[4]]]))


@pytest.mark.parametrize("given", [Examples(DENSE, words()[:3]), Examples(DENSE, np.zeros(3), words()[:3])])
def test_targets_and_weights_must_be_dense(given):
    message = r"^it: \w+ must be dense: only inputs may be ragged\. Make it dense in the loader\.$"
    with pytest.raises(DataError, match=message):
        to_numbers(given, "it")


def test_values_have_the_dtypes_and_checks_of_any_input():
    halves = as_rows(tf.ragged.constant([[0.5, 1.5], [], [2.5]], dtype="float64"))
    x = to_numbers(Examples((words()[:3], halves, DENSE.astype("float64")), np.zeros(3)), "it").x
    assert [array.dtype for array in x] == [np.int32, np.float32, np.float32]
    bad = as_rows(tf.ragged.constant([[0.5, 1.5], [], [np.nan]]))
    message = r"x must be finite in float32: not so for 1 of \d+ values, first nan at \[2\]"
    with pytest.raises(DataError, match=message):
        check_examples(Examples(bad, np.zeros((3, 1))), TargetSpec("regression", 1), "it")


def test_where_rows_end_is_part_of_the_fingerprint():
    one, other = (Rows(np.arange(4), np.array(splits)) for splits in ([0, 1, 4], [0, 2, 4]))
    y = np.zeros(2)
    assert fingerprint_arrays([Examples(one, y)]) != fingerprint_arrays([Examples(other, y)])
