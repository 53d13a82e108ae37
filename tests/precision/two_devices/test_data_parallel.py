"""`keras.distribution.DataParallel` on two JAX devices: a bad half of a batch skips the step on both."""

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import LogMaxScale, LossScaleOptimizer, keep_skips_whole

pytestmark = only_on("jax")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 3)).astype("float32")
Y = RANDOM.normal(size=(32, 1)).astype("float32")
BAD_X = X.copy()
BAD_X[12:16] = np.inf  # the second half of the second batch of 8, on the second device
GOOD = np.r_[0:8, 16:32]


@pytest.fixture(autouse=True)
def data_parallel():
    import jax

    assert len(jax.devices()) == 2
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
    yield
    keras.distribution.set_distribution(before)


def fitted(x, y, whole=True, **arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    arguments = arguments or {"initial_scale": 4.0}
    inner = keras.optimizers.AdamW(0.1, weight_decay=0.1, global_clipnorm=1.0)
    model.compile(LossScaleOptimizer(inner, **arguments), "mse", metrics=["mae"])
    if whole:
        keep_skips_whole(model)
    return model, model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history


def test_a_batch_that_is_bad_on_one_device_is_skipped_on_both():
    model, _ = fitted(BAD_X, Y, whole=False)
    assert (int(model.optimizer.applied_steps), int(model.optimizer.skipped_steps)) == (3, 1)
    for variable in model.trainable_variables:
        shards = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
        assert len(shards) == 2
        np.testing.assert_array_equal(*shards)
        assert np.isfinite(shards[0]).all()


def test_both_devices_round_a_weight_to_the_same_number():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(64, dtype="bfloat16"), keras.layers.Dense(1)])
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(2.0**-9), rounding_seed=1), "mse")
    first = np.asarray(model.layers[0].kernel.value, "float32")
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    shards = [np.asarray(shard.data, "float32") for shard in model.layers[0].kernel.value.addressable_shards]
    assert len(shards) == 2 and int(model.optimizer.applied_steps) == 4
    np.testing.assert_array_equal(*shards)
    assert (shards[0] != first).any()


@pytest.mark.parametrize("arguments", [{}, {"rule": LogMaxScale()}], ids=["dynamic", "logmax"])
def test_whole_skips_keep_everything_as_if_the_batch_was_absent(arguments):
    model, history = fitted(BAD_X, Y, **arguments)
    clean, clean_history = fitted(X[GOOD], Y[GOOD], **arguments)
    assert (int(model.optimizer.applied_steps), int(model.optimizer.skipped_steps)) == (3, 1)
    for found, expected in zip(model.variables, clean.variables, strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-7, err_msg=found.path)
    for name, value in history.items():
        np.testing.assert_allclose(value, clean_history[name], rtol=1e-5, err_msg=name)


def test_accumulation_works_there():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model.compile(LossScaleOptimizer(inner, initial_scale=4.0), "mse")
    model.fit(BAD_X, Y, batch_size=8, shuffle=False, verbose=0)
    assert (int(model.optimizer.applied_steps), int(model.optimizer.iterations)) == (3, 1)
