"""Weights in half precision whose updates are rounded stochastically: exact in the mean, repeatable to the bit."""

import keras
import numpy as np
import pytest
from keras import ops

import mpt_cli
from mpt_cli.errors import ConfigError
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.gradients import round_stochastically
from mpt_cli.precision.rounded_weights import random_bits

HALF = ("float16", "bfloat16")
STEP = 2.0**-8  # between a bfloat16 in [0.5, 1) and its neighbours


def numbers(x) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")))


def rounded(x, dtype, random) -> np.ndarray:
    return numbers(round_stochastically(np.float32(x), dtype, ops.convert_to_tensor(np.int32(random))))


@pytest.mark.parametrize(("dtype", "dropped"), [("bfloat16", 16), ("float16", 13)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_of_all_random_numbers_exactly_the_right_share_rounds_up(dtype, dropped, sign):
    size = 2**dropped
    for above in (0, 1, size // 2, size - 1):  # so many float32 steps of the `size` to the next number of dtype
        found = rounded(np.full(size, sign * (1 + above * 2.0**-23)), dtype, np.arange(size))
        up = sign * (1 + size * 2.0**-23)
        assert (found == up).sum() == above and (found == sign).sum() == size - above


def test_below_the_normal_numbers_of_float16_the_share_is_right_too():
    random = np.arange(2**16) * 2**8
    for above in (0, 1, 40_000):
        found = rounded(np.full(2**16, (3 + above * 2.0**-16) * 2.0**-24), "float16", random)
        assert (found == 4 * 2.0**-24).sum() == above and (found == 3 * 2.0**-24).sum() == 2**16 - above


@pytest.mark.parametrize("random", [0, -1])
@pytest.mark.parametrize(
    ("dtype", "largest", "half_step"), [("float16", 65504.0, 16.0), ("bfloat16", (2 - 2.0**-7) * 2.0**127, 2.0**119)]
)
def test_nothing_finite_becomes_infinite_that_a_cast_keeps(dtype, largest, half_step, random):
    below = np.nextafter(np.float32(largest + half_step), np.float32(0))
    x = [largest, below, -below, largest + half_step, np.inf, -np.inf]
    found = rounded(x, dtype, np.full(6, random))
    np.testing.assert_array_equal(found, [largest, largest, -largest, np.inf, np.inf, -np.inf])
    assert np.isnan(rounded([np.nan], dtype, [random])).all()


def test_the_random_numbers_are_the_same_on_every_backend():
    found = np.asarray(random_bits(2**32 - 1, ops.convert_to_tensor(5, "int32"), 3, (2, 2)))
    assert found.tolist() == [[1608592406, -781872643], [-1760397188, -2085266266]]


def weight(value, dtype="bfloat16", name="weight"):
    return keras.Variable(np.asarray(value, "float32"), dtype=dtype, name=name)


def built(variables, inner=None, seed=3):
    inner = keras.optimizers.SGD(2.0**-10) if inner is None else inner
    optimizer = LossScaleOptimizer(inner, rounding_seed=seed, dynamic=False, initial_scale=4.0)
    optimizer.build(variables)
    return optimizer


def step(optimizer, variables, slopes):
    """With gradients of the scaled loss."""
    optimizer.apply(
        [ops.cast(np.full(v.shape, 4 * slope, "float32"), v.dtype) for v, slope in zip(variables, slopes, strict=True)],
        variables,
    )


@pytest.mark.slow
def test_small_updates_add_up_to_what_they_are_in_the_mean():
    moved = weight(np.ones(4096))
    optimizer = built([moved])
    for _ in range(64):  # 2**-10 is a quarter of the step to the next number below, lost when rounded to nearest
        step(optimizer, [moved], [1.0])
    deviation = np.sqrt(64 * (1 / 4) * (3 / 4) / 4096) * STEP  # of the mean of 4096 sums of 64
    assert abs(numbers(moved).mean() - (1 - 64 * 2.0**-10)) < 5 * deviation
    assert moved.dtype == "bfloat16" and len(np.unique(numbers(moved))) > 10


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.5},
        {"weight_decay": 0.5},
        {"clipvalue": 0.5},
        {"gradient_accumulation_steps": 2},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", HALF)
def test_what_needs_no_rounding_is_what_float32_weights_get(settings, dtype):
    """Clipping, decay, averages and accumulation; float32 weights beside the rounded ones are trained as ever."""
    found = []
    for kind, seed in ((dtype, 3), ("float32", None)):
        variables = [weight([2.0, -1.0], kind), weight([[1.0]], "float32", "head")]
        optimizer = built(variables, keras.optimizers.SGD(0.5, **settings), seed)
        for slope in (1.0, 0.5, 1.0):
            step(optimizer, variables, [slope, slope])
        optimizer.finalize_variable_values(variables)
        state = [numbers(v) for v in optimizer.inner_optimizer.variables]
        assert {v.dtype for v in optimizer.inner_optimizer.variables} <= {"float32", "int32", "int64"}
        found.append([*map(numbers, variables), *state])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (found[0][0] != [2.0, -1.0]).all()


def trained(slopes, seed=3):
    variables = [weight(np.linspace(0.5, 1, 100)), weight(np.ones((3, 3)))]
    optimizer = built(variables, keras.optimizers.Adam(1e-3), seed)
    for slope in slopes:
        step(optimizer, variables, [slope, slope])
    return optimizer, variables


def equal(one, other) -> bool:
    return all(np.array_equal(numbers(a), numbers(b)) for a, b in zip(one, other, strict=True))


def test_a_skipped_step_changes_nothing_and_draws_no_random_numbers():
    optimizer, skipped = trained([1.0, np.inf, 0.5, np.nan, 0.25])
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (3, 2)
    assert equal(skipped, trained([1.0, 0.5, 0.25])[1])
    assert LossScaleOptimizer.from_config(optimizer.get_config()).rounding_seed == 3
    _, once = trained([1.0])
    assert equal(trained([1.0, np.inf])[1], once) and not equal(once, trained([1.0], seed=4)[1])


@pytest.mark.slow
def test_a_compiled_step_rounds_as_an_eager_one():
    def fitted(**arguments):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(64, use_bias=False, dtype="bfloat16")])
        model.set_weights([np.ones((1, 64))])
        inner = keras.optimizers.SGD(2.0**-4)
        model.compile(LossScaleOptimizer(inner, rounding_seed=5), lambda y, pred: ops.mean(pred), **arguments)
        model.fit(np.ones((6, 1), "float32"), np.ones((6, 64), "float32"), batch_size=1, verbose=0)
        assert int(model.optimizer.applied_steps) == 6
        return numbers(model.trainable_variables[0])

    found = fitted(run_eagerly=True)
    np.testing.assert_array_equal(found, fitted(jit_compile=True))
    assert len(np.unique(found)) > 2
    if keras.backend.backend() == "tensorflow":
        np.testing.assert_array_equal(found, fitted(jit_compile=False))


def test_weights_that_do_not_decay_and_constraints_stay_so():
    decays, stays, bound = weight([0.5]), weight([0.5], name="bias"), weight([-0.5])
    bound.constraint = keras.constraints.NonNeg()
    inner = keras.optimizers.SGD(0.5, weight_decay=0.5)
    inner.exclude_from_weight_decay(var_list=[stays])
    variables = [decays, stays, bound]
    step(built(variables, inner), variables, [0.0, 0.0, 0.0])
    assert [float(numbers(v)[0]) for v in variables] == [0.375, 0.5, 0.0]


def test_what_can_not_be_rounded_is_refused():
    with pytest.raises(
        ValueError,
        match=r"needs weights in float16 or bfloat16: there is nothing to round\. Received: "
        r"weights in float32\. Leave it out",
    ):
        built([weight([1.0], "float32")])
    variable, inner = weight([1.0]), keras.optimizers.SGD(0.1)
    inner.build([variable])
    with pytest.raises(ValueError, match=r"needs an inner optimizer that is not built"):
        built([variable], inner)
    with pytest.raises(ValueError, match=r"`rounding_seed` must be a whole number from 0 .* Received: .*=True"):
        LossScaleOptimizer(keras.optimizers.SGD(0.1), rounding_seed=True)
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*32 - 1\. Received: rounding_seed=-1"):
        LossScaleOptimizer(keras.optimizers.SGD(0.1), rounding_seed=-1)


def test_variables_that_are_not_of_keras_are_refused():
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(ValueError, match=r"needs Keras variables\. Received: own"):
            built([tf.Variable([1.0], dtype=tf.bfloat16, name="own")])


@pytest.mark.slow
def test_fit_rounds_as_the_compiled_optimizer_or_the_settings_say_also_a_second_time(tmp_path):
    x, y = np.ones((64, 4), "float32"), np.zeros((64, 1), "float32")
    for seed, settings in ((5, {}), (None, {"policy.stochastic_rounding": True})):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="bfloat16")])
        inner = keras.optimizers.Adam(0.01)
        model.compile(inner if seed is None else LossScaleOptimizer(inner, rounding_seed=seed), "mse")
        for again in "ab" if seed is None else "a":
            run = mpt_cli.fit(model, x, y, batch_size=16, settings=settings, run_dir=tmp_path / f"{seed}{again}")
            assert model.optimizer.rounding_seed is not None and run.summary["applied_steps"] == 4
        assert {v.dtype for v in model.optimizer.inner_optimizer.variables[2:]} == {"float32"}
    hidden = keras.layers.Dense(4, dtype="float32")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.ReLU(dtype="bfloat16"), hidden, keras.layers.ReLU(dtype="bfloat16")]
    )
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match=r"policy\.stochastic_rounding: must be false: no weight of the model is "):
        mpt_cli.fit(model, x, np.zeros((64, 4)), settings={"policy.stochastic_rounding": True}, run_dir=tmp_path / "c")
