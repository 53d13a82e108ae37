"""The probe: what it counts, that it changes nothing, and that its counts add up in every mode."""

import numpy as np
import pytest
from backends import MODES, compiled, gradients, only_on
from keras import ops

from mpt_cli.precision.gradients import (
    EXPONENT_BIAS,
    INFS,
    NANS,
    SINK_SIZE,
    SUBNORMALS,
    ZEROS,
    gradient_statistics,
    probe,
)

# value -> the slot it must be counted in
CASES = {
    0.0: ZEROS,
    1.0: EXPONENT_BIAS,
    -1.99: EXPONENT_BIAS,
    2.0: EXPONENT_BIAS + 1,
    0.99: EXPONENT_BIAS - 1,
    65504.0: EXPONENT_BIAS + 15,
    2.0**-24: EXPONENT_BIAS - 24,
    2.0**-126: EXPONENT_BIAS - 126,
    3e38: EXPONENT_BIAS + 127,
    2.0**-130: SUBNORMALS,
    np.inf: INFS,
    -np.inf: INFS,
    np.nan: NANS,
}


def sink():
    return ops.zeros((SINK_SIZE,), dtype="float32")


def counts_of(values):
    """The counts that the table above promises for `values`."""
    exact = np.zeros(SINK_SIZE, np.float32)
    for value in values:
        exact[next(slot for case, slot in CASES.items() if np.array_equal(case, value, equal_nan=True))] += 1
    return exact


def measure(weights):
    """Upstream gradient `weights` sent through a probe: gradient for x, statistics."""
    return lambda x: gradients(lambda v, s: probe(v, s) * weights, x, sink())


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_value_is_counted_in_its_slot(mode):
    values = [*CASES, 1.0, -0.0]
    found = compiled(gradient_statistics, mode)(ops.convert_to_tensor(np.float32(values)))
    np.testing.assert_array_equal(ops.convert_to_numpy(found), counts_of(values))


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_passes_unchanged_and_its_statistics_reach_the_sink(mode):
    weights = np.float32([[1.0, 0.0, np.nan], [-1.99, np.inf, 2.0**-24]])
    x = ops.convert_to_tensor(np.ones((2, 3), np.float32))
    passed, counts = compiled(measure(weights), mode)(x)
    np.testing.assert_array_equal(ops.convert_to_numpy(passed), weights)
    exact = counts_of(float(value) if value != np.float32(-1.99) else -1.99 for value in weights.flat)
    np.testing.assert_array_equal(ops.convert_to_numpy(counts), exact)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_subnormals_of_float16_are_told_from_zero(dtype):
    upstream = ops.cast(ops.convert_to_tensor([2.0**-24, 0.0, 1.0]), dtype)
    counts = ops.convert_to_numpy(gradient_statistics(upstream))
    assert (counts[EXPONENT_BIAS - 24], counts[ZEROS], counts[EXPONENT_BIAS]) == (1, 1, 1)
    assert counts.sum() == 3


def test_forward_is_bit_identical_for_every_float16():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    passed = ops.convert_to_numpy(probe(ops.convert_to_tensor(every), sink()))
    np.testing.assert_array_equal(passed.view(np.uint16), every.view(np.uint16))


def test_probes_that_share_a_sink_add_up_and_probes_with_their_own_do_not():
    def network(x, shared, own):
        return probe(probe(x, shared) * 4.0, shared) + probe(x, own) * 0.5

    x = ops.ones((3,))
    by_x, shared, own = (ops.convert_to_numpy(found) for found in gradients(network, x, sink(), sink()))
    assert by_x.tolist() == [4.5] * 3
    assert (shared[EXPONENT_BIAS], shared[EXPONENT_BIAS + 2], shared.sum()) == (3, 3, 6)
    assert (own[EXPONENT_BIAS - 1], own.sum()) == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_a_network_are_bit_identical_with_and_without_probes(mode):
    rng = np.random.default_rng(7)
    x, kernel = (ops.convert_to_tensor(rng.normal(size=size).astype("float32")) for size in ((16, 8), (8, 4)))

    def network(measured):
        mark = probe if measured else lambda tensor, _: tensor
        return lambda w, s: ops.sum(ops.tanh(mark(ops.matmul(x, mark(w, s)), s)) ** 2)

    plain = compiled(lambda w: gradients(lambda v: network(False)(v, None), w)[0], mode)(kernel)
    probed, counts = compiled(lambda w: gradients(network(True), w, sink()), mode)(kernel)
    np.testing.assert_array_equal(ops.convert_to_numpy(probed), ops.convert_to_numpy(plain))
    assert ops.convert_to_numpy(counts).sum() == 16 * 4 + 8 * 4


@pytest.mark.slow
def test_counts_do_not_stop_at_2_to_the_24_where_float32_additions_of_one_do():
    size = 2**24 + 2
    counts = ops.convert_to_numpy(gradient_statistics(ops.ones((size,), dtype="float16")))
    assert counts[EXPONENT_BIAS] == size


def test_the_value_of_the_sink_plays_no_part():
    x, used = ops.ones((2,)), ops.full((SINK_SIZE,), 9.0)
    assert ops.convert_to_numpy(gradients(lambda v, s: probe(v, s), x, used)[1]).sum() == 2
    assert ops.convert_to_numpy(probe(x, used)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("mode", MODES)
def test_second_order_gradients_pass(mode):
    x = ops.convert_to_tensor(np.float32([2.0]))
    second = compiled(lambda w: gradients(lambda v: gradients(lambda u: probe(u, sink()) ** 3, v)[0], w)[0], mode)
    assert float(second(x)[0]) == 12.0


def test_an_empty_tensor_counts_nothing():
    assert ops.convert_to_numpy(gradient_statistics(ops.zeros((0, 3)))).sum() == 0


@only_on("tensorflow")
def test_sparse_gradients_stay_sparse_and_are_counted_dense():
    import tensorflow as tf

    table, own = tf.Variable(tf.ones((5, 3))), sink()
    with tf.GradientTape() as tape:
        tape.watch(own)
        loss = tf.reduce_sum(tf.gather(probe(table, own), [1, 1]))
    slope, counts = tape.gradient(loss, [table, own])
    assert isinstance(slope, tf.IndexedSlices)
    assert (counts[EXPONENT_BIAS + 1], counts[ZEROS]) == (3, 12)  # the two slices of row 1 added up


@only_on("tensorflow")
def test_a_batch_of_unknown_size_is_traced_once():
    import tensorflow as tf

    step = tf.function(measure(np.float32(1.0)), input_signature=[tf.TensorSpec((None, 2), tf.float32)])
    assert [int(tf.reduce_sum(step(tf.ones((n, 2)))[1])) for n in (3, 5)] == [6, 10]


@pytest.mark.parametrize("bad", [np.zeros(3, np.float32), np.zeros(SINK_SIZE, np.float16)])
def test_a_sink_of_another_shape_or_dtype_is_refused(bad):
    with pytest.raises(ValueError, match=r"must be a float32 vector of 258. Received: shape=\(\d+,\), dtype=float"):
        probe(ops.ones(2), bad)
