"""round_to against ml_dtypes on every value that can go wrong, and its straight-through gradient."""

import keras
import ml_dtypes
import numpy as np
import pytest
from backends import MODES, compiled, float64_allowed, gradients, only_on
from keras import ops

from mpt_cli.precision.gradients import round_to
from mpt_cli.precision.gradients.rounding import FORMATS

NAMES = tuple(FORMATS)


def bits_of_all_kinds() -> np.ndarray:
    """float32 values: every float16 and its float32 neighbours (all ties among them), and random bit patterns."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    tie = (halves[:-1] + halves[1:]) / 2
    random_bits = np.random.default_rng(3).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    around = [np.nextafter(tie, np.float32(side)) for side in (-np.inf, np.inf)]
    edges = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.99, 65520.0, 3.4e38])
    values = np.concatenate([halves, tie, *around, random_bits, edges])
    # float32 subnormals are left out: kernels flush them
    return values[~((values != 0) & (np.abs(values) < 2.0**-126))]


def expected(values: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return values.astype(np.dtype(getattr(ml_dtypes, name, name))).astype(values.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_rounds_as_ml_dtypes_does(name, mode):
    values = bits_of_all_kinds()
    found = ops.convert_to_numpy(compiled(lambda x: round_to(x, name), mode)(ops.convert_to_tensor(values)))
    np.testing.assert_array_equal(found, expected(values, name))


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_rounded_once_and_not_by_way_of_float32(name):
    step = FORMATS[name].mantissa_bits
    just_above_a_tie = 1 + 2.0 ** -(step + 1) + 2.0**-40  # float32 would make it the tie, and the tie 1.0
    with float64_allowed():
        found = ops.convert_to_numpy(round_to(ops.convert_to_tensor(np.float64([just_above_a_tie])), name))
    assert found[0] == 1 + 2.0**-step


@pytest.mark.parametrize("name", NAMES)
def test_zero_keeps_its_sign(name):
    found = ops.convert_to_numpy(round_to(ops.convert_to_tensor(np.float32([-0.0, 0.0])), name))
    assert np.signbit(found).tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_of_value_and_gradient_is_that_of_x(dtype):
    x = ops.cast(ops.convert_to_tensor([1.3, 0.1]), dtype)
    assert keras.backend.standardize_dtype(round_to(x, "bfloat16").dtype) == dtype
    assert keras.backend.standardize_dtype(gradients(lambda v: round_to(v, "bfloat16"), x)[0].dtype) == dtype


@pytest.mark.parametrize("mode", MODES)
def test_gradient_passes_straight_through_also_where_the_value_overflowed(mode):
    x, weights = ops.convert_to_tensor(np.float32([1.3, 1e6, 1e-9])), np.float32([0.1, 0.2, 0.3])
    slopes = compiled(lambda v: gradients(lambda u: round_to(u, "float16") * weights, v)[0], mode)(x)
    np.testing.assert_array_equal(ops.convert_to_numpy(slopes), weights)


@only_on("tensorflow")
def test_a_tensor_of_unknown_shape_is_rounded():
    import tensorflow as tf

    rounded = tf.function(lambda x: round_to(x, "float16"), input_signature=[tf.TensorSpec((None,), tf.float32)])
    assert rounded(tf.constant([1e6, 1 / 3])).numpy().tolist() == [np.inf, 0.333251953125]


@pytest.mark.parametrize("mode", MODES)
def test_second_order_gradient_passes_the_rounding(mode):
    def slope(x):
        return gradients(lambda u: round_to(u, "float16") ** 3, x)[0]

    second = compiled(lambda x: gradients(slope, x)[0], mode)
    assert float(second(ops.convert_to_tensor(np.float32([3.0])))[0]) == 18.0


def test_unknown_formats_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"must be one of float16, bfloat16\. Received: dtype='float8'"):
        round_to(ops.ones(1), "float8")
