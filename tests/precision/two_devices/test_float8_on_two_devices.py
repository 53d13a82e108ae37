"""Float8 layers on two devices: their statistics are those of the whole batch, the same on both."""

import contextlib

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on

from mpt_cli.precision import LossScaleOptimizer, Policy, apply_policy, keep_skips_whole
from mpt_cli.precision.scale_state import largest_magnitudes

X = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
X[4:8] *= 10  # the largest inputs of the first batch of 8 are on the second device
Y = X[:, :1] * 3
BAD_X = X.copy()
BAD_X[20:24] = np.inf


@pytest.fixture
def two_devices(request):
    if BACKEND == "tensorflow":
        return request.getfixturevalue("strategy").scope()
    devices = keras.distribution.list_devices()
    return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False).scope()


def fitted(scope, x, scaled=True):
    keras.utils.set_random_seed(4)
    with scope:
        with Policy("mixed_float16").scope():
            layers = [keras.Input((8,)), keras.layers.Dense(8, "relu", name="hidden"), keras.layers.Dense(1)]
            model = apply_policy(keras.Sequential(layers), Policy("mixed_float16", float8=True))
        optimizer = keras.optimizers.SGD(0.01)
        if scaled:
            optimizer = LossScaleOptimizer(optimizer, initial_scale=2.0**4, dynamic_growth_steps=2)
        model.compile(optimizer, "mse", jit_compile=BACKEND == "jax", auto_scale_loss=False)
        model = keep_skips_whole(model) if scaled else model
        model.fit(x, Y, batch_size=8, shuffle=False, verbose=0)
    return model


def statistics(model) -> list[tuple[str, list[np.ndarray]]]:
    """Name and value on each device."""
    found = []
    for variable in (model.trainable_variables[i] for i in largest_magnitudes(model.trainable_variables)):
        value = variable.value
        if BACKEND == "tensorflow":
            found.append((variable.name, [v.numpy() for v in getattr(value, "values", [value])]))
        else:
            found.append((variable.name, [np.asarray(shard.data) for shard in value.addressable_shards]))
    return found


@pytest.mark.parametrize("x", [X, BAD_X], ids=["clean", "bad on one device"])
def test_statistics_are_those_of_one_device_with_the_whole_batch(two_devices, x):
    both, one = fitted(two_devices, x), fitted(contextlib.nullcontext(), x)
    assert int(both.optimizer.applied_steps) == int(one.optimizer.applied_steps) == (5 if x is BAD_X else 6)
    assert float(both.optimizer.loss_scale) == float(one.optimizer.loss_scale)
    assert len(statistics(both)) == 6
    for (name, copies), (_, expected) in zip(statistics(both), statistics(one), strict=True):
        assert len(copies) == 2
        np.testing.assert_array_equal(*copies, err_msg=name)
        # float16 sums over halves of the batch; a largest gradient may round the other way
        np.testing.assert_allclose(copies[0], expected[0], rtol=2.0**-8, err_msg=name)


@only_on("tensorflow")
def test_with_keras_s_own_optimizer_alone_each_replica_keeps_its_own(two_devices):
    copies = dict(statistics(fitted(two_devices, X, scaled=False)))
    assert not np.array_equal(*copies["inputs_amax_history"])
    assert np.ptp(copies["inputs_scale"]) > 0.03
