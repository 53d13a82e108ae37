"""A policy for a layer holds for all layers inside it and inside nested models, or is refused."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import Policy, apply_policy, layers_of


@keras.saving.register_keras_serializable("tests_of_policy")
class Block(keras.layers.Layer):
    """A user's layer: one layer made in __init__, one in build, both without a dtype of their own."""

    def __init__(self, units=4, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.first = keras.layers.Dense(units, name="first")

    def build(self, shape):
        self.second = keras.layers.Dense(self.units, name="second")
        self.second.build(self.first.compute_output_shape(shape))

    def call(self, x):
        return self.second(self.first(x))

    def get_config(self):
        return {"units": self.units, **super().get_config()}


def part(kind: str):
    """A layer of that kind, with layers inside, called "part"."""
    if kind == "attention":
        return lambda x: keras.layers.MultiHeadAttention(2, 2, name="part")(x, x)
    recurrent = {"units": 4, "return_sequences": True, "recurrent_initializer": "glorot_uniform"}  # no QR in float16
    makers = {
        "both ways": lambda: keras.layers.Bidirectional(keras.layers.LSTM(**recurrent, name="inside"), name="part"),
        "block": lambda: Block(4, name="part"),
    }
    return makers[kind]()


KINDS = ["attention", "both ways", "block"]


def network(kind: str, policy: str) -> keras.Model:
    with Policy(policy).scope():
        inputs = keras.Input((5, 4))
        x = part(kind)(keras.layers.Dense(4, name="before")(inputs)[:, :4])  # the slice: an operation, not a layer
        return keras.Model(inputs, keras.layers.Dense(3, name="head")(x))


def inside(model: keras.Model) -> list:
    [layer] = [layer for layer in layers_of(model) if layer.name == "part"]
    return [layer, *layers_of(layer)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_override_reaches_all_layers_inside_the_one_it_names(kind):
    model = network(kind, "mixed_float16")
    weights = model.get_weights()
    model = apply_policy(model, Policy("mixed_float16", overrides={"part": "float32"}))
    layers = inside(model)
    assert len(layers) > 1
    assert {layer.dtype_policy.name for layer in layers} == {"float32"}
    assert {v.dtype for v in layers[0].trainable_variables} == {"float32"}
    assert model.get_layer("before").compute_dtype != "float32"
    for found, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))


def test_a_later_pattern_for_a_layer_inside_wins():
    overrides = {"part": "float32", "part/query": "mixed_bfloat16"}
    model = apply_policy(network("attention", "mixed_float16"), Policy("mixed_float16", overrides=overrides))
    policies = {layer.name: layer.dtype_policy.name for layer in inside(model)}
    assert (policies.pop("query"), set(policies.values())) == ("mixed_bfloat16", {"float32"})


def test_what_is_run_in_the_dtype_of_the_layer_around_it_can_have_no_other():
    sentence = "can't have float32: Bidirectional 'part' runs it in its own float16. Name 'part' in policy.overrides i"
    with pytest.raises(ValueError, match=sentence):
        apply_policy(
            network("both ways", "mixed_float16"), Policy("mixed_float16", overrides={"*forward_inside": "float32"})
        )


def nested(policy: str) -> keras.Model:
    with Policy(policy).scope():
        layers = [keras.layers.Dense(4, name="first"), keras.layers.Dense(3, activation="softmax", name="last")]
        inputs = keras.Input((4,))
        inner = keras.Sequential([keras.Input((4,)), *layers], name="inner")
        return keras.Model(inputs, inner(keras.layers.Dense(4, name="outer")(inputs)))


def test_head_and_overrides_reach_into_nested_models():
    changed = apply_policy(nested("mixed_float16"), Policy("mixed_float16", overrides={"first": "mixed_bfloat16"}))
    assert {layer.name: layer.compute_dtype for layer in layers_of(changed)} == {
        "outer": "float16",
        "first": "bfloat16",
        "last": "float32",
    }
    assert keras.backend.standardize_dtype(changed(np.ones((2, 4), "float32")).dtype) == "float32"


def test_a_loaded_model_takes_a_policy_in_nested_models_too():
    changed = apply_policy(nested("float32"), Policy("mixed_bfloat16", head=None), everywhere=True)
    assert {layer.compute_dtype for layer in layers_of(changed)} == {"bfloat16"}


def test_a_policy_with_variables_of_another_dtype_is_refused_and_changes_nothing():
    model = nested("float32")
    with pytest.raises(ValueError, match=r"'inner/first' can't have bfloat16: its variables are float32\. Give it a"):
        apply_policy(model, Policy("float32", overrides={"last": "mixed_bfloat16", "first": "bfloat16"}))
    assert {layer.compute_dtype for layer in layers_of(model)} == {"float32"}
