"""The dtype policy: global inside a scope, on layers after `apply_policy`, and what it says about scaling."""

import copy
import dataclasses
import pickle

import keras
import numpy as np
import pytest

from mpt_cli.precision import Policy, apply_policy, computes_in_float16, head_layers, layers_of


def functional(policy: str = "float32"):
    with Policy(policy).scope():
        inputs = keras.Input((8, 8, 1))
        x = keras.layers.Conv2D(4, 3, activation="relu", name="conv_1")(inputs)
        x = keras.layers.BatchNormalization(name="norm")(x)
        x = keras.layers.Conv2D(4, 3, name="conv_2")(x)
        x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
        return keras.Model(inputs, keras.layers.Dense(3, activation="softmax", name="head")(x))


@keras.saving.register_keras_serializable("tests_of_policy")
class Subclassed(keras.Model):
    def __init__(self, dtype_of_hidden=None, head="head", **kwargs):
        super().__init__(**kwargs)
        self.dtype_of_hidden = dtype_of_hidden
        self.hidden = keras.layers.Dense(4, dtype=dtype_of_hidden, name="hidden")
        self.head = keras.layers.Dense(2, name=head)

    def call(self, x):
        return self.head(self.hidden(x))

    def get_config(self):
        return {"dtype_of_hidden": self.dtype_of_hidden, **super().get_config()}


def built(model: keras.Model):
    model(np.ones((1, 8), "float32"))
    return model


def policies(model: keras.Model):
    return {layer.name: layer.dtype_policy.name for layer in layers_of(model)}


def test_the_scope_sets_the_global_policy_and_puts_the_old_one_back_after_an_exception_too():
    before = keras.config.dtype_policy()
    with pytest.raises(ZeroDivisionError), Policy("mixed_float16").scope():
        assert keras.config.dtype_policy().name == "mixed_float16"
        _ = 1 / 0
    assert keras.config.dtype_policy() is before


@pytest.mark.parametrize(("name", "expected"), [("mixed_float16", "float32"), ("float64", "float64")])
def test_dtypes_of_loss_and_head(name, expected):
    policy = Policy(name)
    assert policy.loss_dtype == policy.head_policy == expected
    assert Policy(name, head=None).head_policy == name


def test_overrides_land_on_their_layers_the_last_match_winning():
    overrides = {"conv*": "mixed_bfloat16", "conv_2": "float32", "head": "mixed_bfloat16"}
    model = apply_policy(functional("mixed_float16"), Policy("mixed_float16", overrides=overrides))
    assert policies(model) == {
        "conv_1": "mixed_bfloat16",
        "norm": "mixed_float16",
        "conv_2": "float32",
        "pool": "mixed_float16",
        "head": "mixed_bfloat16",
    }


def test_an_override_of_a_model_inside_holds_for_its_layers():
    with Policy("mixed_float16").scope():
        tower = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="first")], name="tower")
        model = keras.Sequential([keras.Input((4,)), tower, keras.layers.Dense(2, name="last")])
    model = apply_policy(model, Policy("mixed_float16", head=None, overrides={"tower": "float32"}))
    assert policies(model) == {"first": "float32", "last": "mixed_float16"}


def test_an_override_that_matches_nothing_names_the_layers_there_are():
    with pytest.raises(ValueError, match=r"no layer matches the pattern 'cnov\*'\. The model's layers are: conv_1"):
        apply_policy(functional(), Policy("float32", overrides={"cnov*": "float16"}))


def test_a_subclassed_model_changes_in_place_or_says_that_it_cannot():
    with Policy("mixed_float16").scope():
        model = built(Subclassed())
    assert apply_policy(model, Policy("mixed_float16")) is model
    assert policies(model) == {"hidden": "mixed_float16", "head": "float32"}
    with Policy("float16").scope():
        model = built(Subclassed())
    with pytest.raises(ValueError, match="of layer 'head' are float16 and can't change dtype after the subclassed"):
        apply_policy(model, Policy("float16"))


def test_heads_are_found_behind_layers_without_weights_and_in_every_output():
    inputs, shared = keras.Input((8,)), keras.layers.Dense(8, name="hidden")
    x = shared(shared(inputs))
    one = keras.layers.Activation("softmax", name="softmax")(keras.layers.Dense(2, name="classes")(x))
    other = keras.layers.Dense(1, name="value")(x)
    model = keras.Model(inputs, [one, other])
    assert {layer.name for layer in head_layers(model)} == {"softmax", "classes", "value"}
    assert len(layers_of(model)) == 4  # a layer that is used twice is listed once


def test_the_head_of_a_nested_model_is_inside_it_and_inside_a_wrapper_there():
    with Policy("mixed_float16").scope():
        inputs = keras.Input((3, 8))
        last = keras.layers.TimeDistributed(keras.layers.Dense(2, name="inside"), name="wrapper")
        inner = keras.Sequential([keras.Input((3, 8)), keras.layers.Dense(4, name="first"), last])
        model = keras.Model(inputs, keras.layers.Softmax(name="softmax")(inner(inputs)))
    model = apply_policy(model, Policy("mixed_float16"))
    assert {layer.name for layer in head_layers(model)} == {"softmax", "wrapper", "inside"}
    assert policies(model).pop("first") == "mixed_float16"
    assert keras.backend.standardize_dtype(model(np.ones((1, 3, 8))).dtype) == "float32"


def test_the_head_of_a_subclassed_model_is_the_layer_of_that_name():
    assert [layer.name for layer in head_layers(built(Subclassed()))] == ["head"]
    assert head_layers(built(Subclassed(head="other"))) == []


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("by layer", "mixed_bfloat16"),
        ("pure", "float16"),
        ("subclassed", "mixed_float16"),
        ("nested", "mixed_float16"),
    ],
)
def test_float16_is_noticed_in_a_model_that_was_made_and_one_that_was_loaded(kind, policy, tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, dtype=policy)])
    if kind == "subclassed":
        model = built(Subclassed(policy))
    if kind == "nested":
        model = keras.Sequential([keras.Input((8,)), model, keras.layers.Dense(2)])
    model.save(tmp_path / "model.keras")
    assert keras.config.dtype_policy().name == "float32"
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        assert computes_in_float16(each) == ("bfloat16" not in policy)


def test_a_policy_is_equal_to_its_name_and_to_a_policy_that_says_the_same():
    policy = Policy("mixed_float16", overrides={"a*": "float32"})
    assert policy == "mixed_float16" and {policy, "mixed_float16"} == {policy}
    again = pickle.loads(pickle.dumps(policy))
    assert (again, again.overrides, copy.deepcopy(policy)) == (policy, {"a*": "float32"}, policy)
    assert dataclasses.replace(policy, head=None).head is None
