"""What the audit calls unsafe in float16 really goes wrong there, and computing it in float32 repairs it."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import Policy, apply_policy, find_bad_combinations

ops, layers = keras.ops, keras.layers


class Inverse(layers.Layer):
    """1 / (x + epsilon), the usual way to avoid a division by zero."""

    def __init__(self, epsilon=1e-8, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def call(self, x):
        return x / (x + self.epsilon)


class CarefulInverse(Inverse):
    def call(self, x):
        return x / ops.cast(ops.cast(x, "float32") + self.epsilon, x.dtype)


class Energy(layers.Layer):
    def call(self, x):
        self.add_loss(ops.sum(ops.square(x)))
        return x


LAYERS = {
    "sum of squares overflows at 65504": (lambda d: layers.UnitNormalization(dtype=d), 300.0, (4,)),
    "a vector of zeros becomes nan": (lambda d: layers.UnitNormalization(dtype=d), 0.0, (4,)),
    "its epsilon=1e-08 is 0 in float16": (lambda d: Inverse(dtype=d), 0.0, (4,)),
}


def around(layer, shape):
    """A mixed_float16 model in which `layer` stands before a float32 head that adds up what comes out of it."""
    with Policy("mixed_float16").scope():
        inputs = keras.Input(shape)
        hidden = layer(layers.Identity()(inputs))
        return keras.Model(inputs, layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="float32")(hidden))


def found(model: keras.Model):
    findings = find_bad_combinations(model, "sgd")
    assert not any(finding.fatal for finding in findings)
    assert all(finding.key.startswith("policy.overrides.") for finding in findings)
    return [finding.what for finding in findings]


def result(model: keras.Model, fill: float):
    return ops.convert_to_numpy(model(np.full((2, *model.input_shape[1:]), fill, "float32"))).astype("float64")


@pytest.mark.parametrize("words", LAYERS)
def test_an_unsafe_layer_is_wrong_in_float16_and_right_in_float32(words):
    make, fill, shape = LAYERS[words]
    model, right = around(make("mixed_float16"), shape), around(make("float32"), shape)
    [what] = found(model)
    assert words in what
    assert found(right) == []
    expected = result(right, fill)
    assert np.isfinite(expected).all()
    assert not np.allclose(result(model, fill), expected, rtol=0.1, atol=1e-7)
    repaired = apply_policy(model, Policy("mixed_float16", None, {model.layers[-2].name: "float32"}))
    assert found(repaired) == []
    np.testing.assert_array_equal(result(repaired, fill), expected)


LOSSES = {
    "activity layer": lambda d: layers.ActivityRegularization(l2=1.0, dtype=d),
    "activity regularizer": lambda d: layers.Dense(300, "relu", True, "identity", activity_regularizer="l2", dtype=d),
    "add_loss": lambda d: Energy(dtype=d),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_added_in_float16_is_inf(name):
    model = around(LOSSES[name]("mixed_float16"), (300,))
    [what] = found(model)
    assert "in float16, and is inf above 65504" in what
    result(model, 20.0)
    assert np.isinf(float(model.losses[0]))
    repaired = apply_policy(model, Policy("mixed_float16", None, {model.layers[-2].name: "float32"}))
    assert found(repaired) == []
    result(repaired, 20.0)
    assert np.isfinite(float(repaired.losses[0]))


@pytest.mark.parametrize(
    "layer",
    [
        layers.LayerNormalization(epsilon=1e-12),
        layers.BatchNormalization(epsilon=1e-12),
        layers.RMSNormalization(),
        layers.GroupNormalization(2),
        Inverse(epsilon=1e-4),
        CarefulInverse(),
        layers.Dense(2, kernel_regularizer="l2"),
        layers.Normalization(mean=[1.0], variance=[1.0]),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_safe_layers_raise_no_alarm(layer):
    layer.dtype_policy = "mixed_float16"
    assert found(around(layer, (4,))) == []
