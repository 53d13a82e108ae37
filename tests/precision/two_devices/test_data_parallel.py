"""`keras.distribution.DataParallel` on two JAX devices, in `fit`: rounded weights and accumulated gradients."""

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import LossScaleOptimizer

pytestmark = only_on("jax")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 3)).astype("float32")
Y = RANDOM.normal(size=(32, 1)).astype("float32")
BAD_X = X.copy()
BAD_X[12:16] = np.inf  # the second half of the second batch of 8, on the second device


@pytest.fixture(autouse=True)
def data_parallel():
    import jax

    assert len(jax.devices()) == 2
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
    yield
    keras.distribution.set_distribution(before)


def test_both_devices_round_a_weight_to_the_same_number():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(64, dtype="bfloat16"), keras.layers.Dense(1)])
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(2.0**-9), rounding_seed=1), "mse")
    first = np.asarray(model.layers[0].kernel.value, "float32")
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    shards = [np.asarray(shard.data, "float32") for shard in model.layers[0].kernel.value.addressable_shards]
    assert len(shards) == 2 and int(model.optimizer.applied_steps) == 4
    np.testing.assert_array_equal(*shards)
    assert (shards[0] != first).any()


def test_accumulation_works_there():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model.compile(LossScaleOptimizer(inner, initial_scale=4.0), "mse")
    model.fit(BAD_X, Y, batch_size=8, shuffle=False, verbose=0)
    assert (int(model.optimizer.applied_steps), int(model.optimizer.iterations)) == (3, 1)
