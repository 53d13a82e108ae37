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


class WithoutConfig(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def call(self, x):
        return self.dense(x)


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


def network(kind: str, policy: str):
    with Policy(policy).scope():
        inputs = keras.Input((5, 4))
        x = part(kind)(keras.layers.Dense(4, name="before")(inputs)[:, :4])  # the slice: an operation, not a layer
        return keras.Model(inputs, keras.layers.Dense(3, name="head")(x))


def inside(model: keras.Model):
    [layer] = [layer for layer in layers_of(model) if layer.name == "part"]
    return [layer, *layers_of(layer)]


@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_override_reaches_all_layers_inside_the_one_it_names(kind, policy):
    model = network(kind, policy)
    weights = model.get_weights()
    model = apply_policy(model, Policy(policy, overrides={"part": "float32"}))
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


def test_a_variable_that_only_the_layer_around_can_make_in_another_dtype_is_refused():
    with pytest.raises(ValueError, match="layer 'part/query' can't have float32: its variables are float16, as the "):
        apply_policy(network("attention", "float16"), Policy("float16", overrides={"part/query": "float32"}))


def test_a_layer_inside_a_users_layer_may_have_another_dtype_of_its_variables():
    model = apply_policy(network("block", "float16"), Policy("float16", overrides={"part/first": "float32"}))
    assert {layer.name: layer.variable_dtype for layer in inside(model)} == {
        "part": "float16",
        "first": "float32",
        "second": "float16",
    }


def test_a_layer_that_cannot_be_made_anew_is_refused():
    with Policy("float16").scope():
        model = keras.Sequential([keras.Input((4,)), WithoutConfig(4), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"can't be made anew, which a change of its variables' dtype needs: WithoutC"):
        apply_policy(model, Policy("float16"))


def nested(policy: str):
    with Policy(policy).scope():
        layers = [keras.layers.Dense(4, name="first"), keras.layers.Dense(3, activation="softmax", name="last")]
        inputs = keras.Input((4,))
        inner = keras.Sequential([keras.Input((4,)), *layers], name="inner")
        return keras.Model(inputs, inner(keras.layers.Dense(4, name="outer")(inputs)))


def test_head_and_overrides_reach_into_nested_models_under_a_pure_policy():
    model = nested("float16")
    changed = apply_policy(model, Policy("float16", overrides={"first": "bfloat16"}))
    assert {layer.name: (layer.compute_dtype, layer.variable_dtype) for layer in layers_of(changed)} == {
        "outer": ("float16", "float16"),
        "first": ("bfloat16", "bfloat16"),
        "last": ("float32", "float32"),
    }
    assert {v.path.split("/")[-2]: v.dtype for v in changed.variables} == {
        "outer": "float16",
        "first": "bfloat16",
        "last": "float32",
    }
    assert keras.backend.standardize_dtype(changed(np.ones((2, 4), "float32")).dtype) == "float32"
    np.testing.assert_allclose(changed.get_weights()[4], model.get_weights()[4].astype("float32"))


def test_a_loaded_model_takes_a_pure_policy_in_nested_models_too():
    changed = apply_policy(nested("float32"), Policy("bfloat16", head=None), everywhere=True)
    assert {layer.compute_dtype for layer in layers_of(changed)} == {"bfloat16"}
    assert {v.dtype for v in changed.variables} == {"bfloat16"}
