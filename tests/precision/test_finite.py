"""One pass over a gradient: how large, whether finite, whether zero; wherever the bad element stands."""

import keras
import numpy as np
import pytest
from test_optimizer_steps import stepper

from mpt_cli.precision import LossScaleOptimizer, gradient_check
from mpt_cli.precision.gradient_check import (
    FLOAT32_MAX,
    GradientMeasurement,
    all_finite,
    describe_gradients,
    magnitude,
    measure,
)
from tests.backends import BACKEND, MODES, compiled

SIZES = (1, 17)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_single_nan_or_inf_is_seen_wherever_it_stands(dtype, mode):
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 unless a run asks for it")
    of = compiled(magnitude, mode)
    for size in SIZES:
        for place in {0, size // 2, size - 1}:
            values = np.arange(size, dtype="float64") / size
            assert float(of(keras.ops.convert_to_tensor(values, dtype))) <= 1
            for bad in (np.nan, -np.nan, np.inf, -np.inf):
                values[place] = bad
                assert float(of(keras.ops.convert_to_tensor(values, dtype))) == np.inf


@pytest.mark.parametrize("mode", MODES)
def test_it_is_the_largest_magnitude_of_either_sign(mode):
    of = compiled(magnitude, mode)
    assert float(of(keras.ops.convert_to_tensor(np.float32([1.0, -3.5, 2.0])))) == 3.5
    assert float(of(keras.ops.convert_to_tensor(np.float32([0.0, -0.0])))) == 0.0
    assert float(of(keras.ops.zeros((0, 4)))) == 0.0
    assert float(of(keras.ops.convert_to_tensor([0.0, -(2.0**-24)], "float16"))) == 2.0**-24
    assert float(of(keras.ops.convert_to_tensor(np.float32([FLOAT32_MAX, 1.0])))) == FLOAT32_MAX


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 unless a run asks for it")
def test_a_finite_float64_beyond_float32_is_finite():
    gradients = [keras.ops.convert_to_tensor(np.array([1e300]), "float64")]
    assert float(magnitude(gradients[0])) == FLOAT32_MAX and bool(all_finite(gradients))


def describe_bad(gradients, ranks):
    """What is said of gradients that are not finite, or whose sums are not."""
    false = keras.ops.convert_to_tensor(False)
    return describe_gradients(gradients, GradientMeasurement(false, keras.ops.zeros(())), ranks=ranks)[:4]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_description_counts_the_bad_ones_and_says_when_all_are_zero(mode):
    variables = [keras.Variable(np.zeros(3, "float32")) for _ in range(3)]

    def describe(a, b):
        gradients = [a, None, b]
        return describe_gradients(gradients, measure(gradients, variables))

    described = compiled(describe, mode)
    nan, inf = np.nan, np.inf
    table = {
        ((1.0, 0.0, 2.0), (0.0, 0.0, 0.0)): [0, 0, -1, 0, 0],
        ((0.0, 0.0, 0.0), (0.0, -0.0, 0.0)): [0, 0, -1, 0, 1],
        ((0.0, 0.0, 0.0), (nan, inf, -inf)): [1, 2, 2, 1, 0],
        ((1.0, inf, nan), (0.0, nan, 0.0)): [2, 1, 2, 0, 0],  # the nearest has nan alone
    }
    for values, expected in table.items():
        tensors = [keras.ops.convert_to_tensor(np.float32(v)) for v in values]
        assert np.asarray(described(*tensors)).tolist() == expected


IN_ORDER, BY_LAYERS = [3, 1, 6, 0, 2, 5, 4], [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ranks", "bad", "nearest"),
    [
        (IN_ORDER, [0, 1, 2, 4, 5, 6], 2),
        (IN_ORDER, [1, 4], 4),
        (BY_LAYERS, [0, 1, 2, 4, 5, 6], 4),  # of one layer's the first
        (BY_LAYERS, [0, 1, 2], 2),
        (BY_LAYERS, [0, 1], 0),
    ],
)
def test_the_nearest_bad_one_is_found_among_small_and_large_and_empty_ones(mode, ranks, bad, nearest):
    """inf and nan spread from it to all that are used before it."""
    values = [np.ones(shape, "float32") for shape in ((2,), (3, 3), (), (0,), (5,), (1, 4), (2, 2))]
    for i in bad:
        values[i].reshape(-1)[-1:] = np.inf if i == nearest else np.nan
    described = compiled(lambda *gradients: describe_bad(list(gradients), ranks), mode)
    found = np.asarray(described(*map(keras.ops.convert_to_tensor, values))).tolist()
    assert found == [len(bad) - 1, 1, nearest, 1]


def test_no_gradients_hold_nothing():
    assert [int(number) for number in describe_bad([None, keras.ops.zeros((0, 4))], range(2))] == [0, 0, -1, 0]


def sparse(rows, places, shape):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.IndexedSlices(keras.ops.convert_to_tensor(rows), tf.constant(places), tf.constant(shape))
    from jax.experimental.sparse import BCOO

    return BCOO((keras.ops.convert_to_tensor(rows), keras.ops.array([[place] for place in places])), shape=shape)


BIG = np.float32(3e38)
SPARSE_CASES = {  # rows, their places, the scale, whether what is applied is finite
    "large at different places": ([BIG, 1.0, BIG], [2, 0, 1], 1.0, True),
    "duplicates that cancel": ([BIG, 1.0, -BIG], [2, 0, 2], 1.0, True),
    "finite once divided by the scale": ([BIG, 1.0, BIG], [2, 0, 2], 8.0, True),
    "a row that is inf": ([1.0, np.inf], [0, 1], 8.0, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", SPARSE_CASES.values(), ids=SPARSE_CASES)
def test_sparse_gradients_stay_sparse_and_are_judged_by_their_rows(case, mode):
    rows, places, scale, applied = case
    seen = []

    class Watching(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            seen.append(type(gradient).__name__)
            super().update_step(gradient, variable, learning_rate)

    optimizer = LossScaleOptimizer(Watching(0.5), dynamic=False, initial_scale=scale)
    table = keras.Variable(np.zeros((4, 2)))
    optimizer.build([table])
    optimizer.scale_loss(1.0)
    stepper(optimizer, table, mode)(sparse(np.repeat(np.float32(rows)[:, None], 2, axis=1), places, (4, 2)))
    expected = np.zeros((4, 2), "float32")
    if applied:
        np.subtract.at(expected, np.array(places), np.float32(0.5) * (np.float32(rows)[:, None] / np.float32(scale)))
    assert BACKEND == "jax" or {*seen} <= {"IndexedSlices"}
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(table), expected)
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (int(applied), int(not applied))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_variables_are_finite_unless_one_holds_inf_or_nan(dtype):
    variables = [keras.Variable(np.ones(shape, "float32"), dtype=dtype) for shape in ((3, 2), (), (0,))]
    variables += [keras.Variable(np.int32([1, 2])), keras.Variable(True, dtype="bool")]
    variables[1].assign(FLOAT32_MAX if dtype == "float32" else 6e4)
    assert gradient_check.are_finite(variables) and gradient_check.are_finite([])
    for bad in (np.inf, -np.inf, np.nan):
        variables[0].assign([[1, 1], [1, bad], [1, 1]])
        assert not gradient_check.are_finite(variables)


def test_rows_of_a_sparse_gradient_are_counted_with_its_variable():
    gradient = sparse(np.float32([[np.inf], [3e38], [1.0]]), [1, 1, 0], (4, 1))
    bad = describe_bad([keras.ops.ones((2,)), None, gradient], range(3))
    assert [int(number) for number in bad] == [0, 1, 2, 1]
