"""`mpt.diagnose(model, x, y)`: what `mpt diagnose` finds, of objects, which stay as they are."""

import keras
import numpy as np
import pytest

import mpt_cli as mpt
from mpt_cli.errors import ConfigError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 6)).astype("float32"), RNG.normal(size=(64, 2)).astype("float32")
QUIET = {"batches": 2, "quiet": True, "batch_size": 16}


def net(policy: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(1)
    with mpt.Policy(policy).scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, "tanh", name="hidden")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(2, dtype="float32", name="head")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    return model


@pytest.mark.slow
def test_the_scale_follows_the_gradients_of_the_model_and_the_model_stays_as_it_is():
    model = net()
    model.fit(X, Y, batch_size=16, verbose=0)
    before = [*map(np.array, (*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)))]
    found = mpt.diagnose(model, X, Y, after_steps=3, **QUIET)
    assert found.policy.name == "mixed_float16" and found.point.step == 3
    assert [layer.name for layer in found.layers if layer.window is not None] == ["hidden"]
    assert found.window is not None and found.window.lowest_power <= np.log2(found.recommended)
    assert np.log2(found.recommended) < found.window.highest_power
    scale = f"loss_scale.initial_scale=2**{int(np.log2(found.recommended))}"
    assert [line.partition(": ")[0] for line in str(found).splitlines()] == ["finding", "set", "evidence"]
    assert f"\nset: {scale}" in str(found) or f"has {scale}" in str(found)
    after = [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.layers[1].compute_dtype == "float32" and type(model.optimizer) is keras.optimizers.Adam

    first = mpt.diagnose(net("mixed_float16"), X, Y, **QUIET)
    light = mpt.diagnose(net("mixed_float16"), X, Y, sample_weight=np.full(len(X), 2.0**-3), **QUIET)
    assert light.window.highest_power == first.window.highest_power + 3  # gradients are that much smaller


def test_what_can_not_be_diagnosed_is_said():
    class Uncloned(keras.Model):
        def __init__(self, size):
            super().__init__()
            self.head = keras.layers.Dense(size)

        def call(self, x):
            return self.head(x)

    own = Uncloned(2)
    own.compile("sgd", "mse")
    for words, call in {
        r"model: must be one that Keras can clone": lambda: mpt.diagnose(own, X, Y, **QUIET),
        r"y: must be given with arrays": lambda: mpt.diagnose(net(), X, **QUIET),
        r"model: must be a keras.Model": lambda: mpt.diagnose("conf=digits_mlp", X),
    }.items():
        with pytest.raises(ConfigError, match=words):
            call()
