"""What the audit calls unsafe in float16 really goes wrong there, and computing it in float32 repairs it."""

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import Policy, apply_policy, find_bad_combinations
from mpt_cli.precision.audit import operation_risks

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
    "exponentials of more than 65504 elements": (lambda d: layers.Softmax(dtype=d), 1.0, (70000,)),
}


def around(layer, shape) -> keras.Model:
    """A mixed_float16 model in which `layer` stands before a float32 head that adds up what comes out of it."""
    with Policy("mixed_float16").scope():
        inputs = keras.Input(shape)
        hidden = layer(layers.Identity()(inputs))
        return keras.Model(inputs, layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="float32")(hidden))


def found(model: keras.Model) -> list[str]:
    findings = find_bad_combinations(model, "sgd")
    assert not any(finding.fatal for finding in findings)
    return [finding.what for finding in findings]


def result(model: keras.Model, fill: float) -> np.ndarray:
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
    assert "in float16 and inf above 65504" in what
    result(model, 20.0)
    assert np.isinf(float(model.losses[0]))
    repaired = apply_policy(model, Policy("mixed_float16", None, {model.layers[-2].name: "float32"}))
    assert found(repaired) == []
    result(repaired, 20.0)
    assert np.isfinite(float(repaired.losses[0]))


def alternating(x):
    return ops.concatenate([x, -x], axis=-1)


OPERATIONS = {
    "a sum over 70000 elements in float16": (lambda x: ops.sum(x, axis=-1), 1.0, (70000,)),
    "running sums over 70000 elements in float16": (lambda x: ops.cumsum(x, axis=1), 1.0, (70000,)),
    "the sum of squares overflows": (lambda x: ops.norm(x), 300.0, (4,)),
    "squares overflows at 65504": (lambda x: ops.std(alternating(x), axis=-1), 300.0, (4,)),
    "sum of squares": (lambda x: ops.var(alternating(x), axis=-1), 300.0, (4,)),
    "a norm of 256": (lambda x: ops.normalize(x), 300.0, (4,)),
    "exponentials of 70000 elements are summed": (lambda x: ops.softmax(x), 1.0, (70000,)),
    "the constant 1e-08 is 0 in float16": (lambda x: ops.divide(x, x + 1e-8), 0.0, (4,)),
    "the constant -1e-09 is 0": (lambda x: ops.divide(x, ops.add(-1e-9, x)), 0.0, (4,)),
    "the constant 2e-08 is 0": (lambda x: ops.divide(x, ops.maximum(x, 2e-8)), 0.0, (4,)),
}


@pytest.mark.parametrize("words", OPERATIONS)
def test_an_unsafe_operation_is_wrong_in_float16_and_right_after_a_cast(words):
    function, fill, shape = OPERATIONS[words]
    with Policy("mixed_float16").scope():
        inputs = keras.Input(shape)
        hidden = layers.Identity()(inputs)
        model = keras.Model(inputs, function(hidden))
        right = keras.Model(inputs, function(ops.cast(hidden, "float32")))
    [what] = found(model)
    assert words in what
    assert found(right) == []
    expected = result(right, fill)
    assert np.isfinite(expected).all()
    assert not np.allclose(result(model, fill), expected, rtol=0.1, atol=1e-7)


@pytest.mark.parametrize("function", [
    lambda x: ops.expand_dims(x, axis=2), lambda x: ops.expand_dims(x, axis=-3), lambda x: ops.stack([x, x], axis=2),
], ids=["after the last", "before the first", "stacked"])  # fmt: skip
def test_an_axis_of_the_output_alone_is_no_trouble(function):
    with Policy("mixed_float16").scope():
        inputs = keras.Input((4,))
        assert found(keras.Model(inputs, function(layers.Dense(2)(inputs)))) == []


def test_the_dtypes_are_those_of_the_policies_and_not_those_the_graph_was_made_with():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, ops.norm(layers.Dense(4, name="hidden")(inputs), axis=-1))
    assert found(model) == []
    model.get_layer("hidden").dtype_policy = "mixed_float16"
    assert len(found(model)) == 1
    model.get_layer("hidden").dtype_policy = "float32"
    assert found(model) == []


def test_operations_of_nested_models_are_seen():
    with Policy("mixed_float16").scope():
        inputs = keras.Input((4,))
        inner = keras.Model(inputs, ops.norm(layers.Dense(4)(inputs), axis=-1, keepdims=True))
        outputs = layers.Dense(2, dtype="float32")(inner(inputs))
        chain = keras.Sequential([inputs, inner, layers.Dense(2, dtype="float32")])
    assert [len(list(operation_risks(model))) for model in (keras.Model(inputs, outputs), chain)] == [1, 1]


@pytest.mark.parametrize("layer", [
    layers.LayerNormalization(epsilon=1e-12), layers.BatchNormalization(epsilon=1e-12), layers.RMSNormalization(),
    layers.GroupNormalization(2), Inverse(epsilon=1e-4), CarefulInverse(),
    layers.Dense(2, kernel_regularizer="l2"), layers.Normalization(mean=[1.0], variance=[1.0]),
], ids=lambda layer: type(layer).__name__)  # fmt: skip
def test_safe_layers_raise_no_alarm(layer):
    layer.dtype_policy = "mixed_float16"
    assert found(around(layer, (4,))) == []


@pytest.mark.parametrize("function", [
    lambda x: ops.mean(x, axis=-1), lambda x: ops.sum(x, axis=-1), lambda x: ops.cumsum(x, axis=1), lambda x: x + 1e-4,
    lambda x: ops.norm(x, ord=1), lambda x: ops.norm(ops.cast(x, "float32")),
    lambda x: ops.sum(ops.cast(x, "float32")), lambda x: ops.softmax(x) * 2.0,
])  # fmt: skip
def test_safe_operations_raise_no_alarm(function):
    with Policy("mixed_float16").scope():
        inputs = keras.Input((1000,))
        assert found(keras.Model(inputs, function(layers.Identity()(inputs)))) == []


@only_on("tensorflow")  # JAX takes half a minute to build each
@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV3Small", "EfficientNetV2B0"])
def test_keras_applications_raise_no_alarm(name):
    with Policy("mixed_float16").scope():
        model = getattr(keras.applications, name)(weights=None, classes=10, classifier_activation=None)
    assert found(apply_policy(model, Policy("mixed_float16"))) == []
