"""The operations of a traced forward pass, what of them needs float32, and the policies that are chosen by it, for nets
that are written here: what is expected of each was found by hand."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from keras.layers import Activation, Add, Conv2D, Dense, Dropout, Flatten, GroupNormalization, LayerNormalization

from mpt_cli.precision import Policy, apply_policy, layers_of
from mpt_cli.precision.keras_internals import names_as_in_a_fresh_process
from mpt_cli.precision.operations import choose_policies, report_operations, trace_forward
from mpt_cli.precision.policy import name_of

MIXED = Policy("mixed_float16")


class Shares(keras.layers.Layer):
    """A softmax by hand, which overflows in float16: e^12 is 162,755."""

    def call(self, x):
        powers = ops.exp(x + 12.0)
        return powers / ops.sum(powers, axis=-1, keepdims=True)


class RootMeanSquare(keras.layers.Layer):
    def call(self, x):
        return x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-3)


class Attention(keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.query, self.key, self.value, self.out = (
            Dense(units, name=name) for name in ("query", "key", "value", "out")
        )

    def build(self, shape):
        for layer in (self.query, self.key, self.value, self.out):
            layer.build(shape)

    def call(self, x):
        scores = ops.matmul(self.query(x), ops.transpose(self.key(x), (0, 2, 1)))
        return self.out(ops.matmul(ops.softmax(scores), self.value(x)))


def with_exponentials():
    x = inputs = keras.Input((8,))
    x = Shares(name="shares")(Dense(16, name="first")(x))
    x = Dense(16, name="second")(Dropout(0.1, name="dropout")(x))
    return keras.Model(inputs, Dense(8, name="head")(RootMeanSquare(name="norm")(x)))


def with_attention():
    x = inputs = keras.Input((8, 16))
    x = Add(name="add")([x, Attention(16, name="attention")(x)])
    x = Flatten(name="flatten")(LayerNormalization(name="norm")(x))
    return keras.Model(inputs, Dense(8, name="head")(x))


def convolutional():
    x = inputs = keras.Input((8, 8, 8))
    for place in range(2):
        x = GroupNormalization(4, name=f"norm_{place}")(Conv2D(16, 3, name=f"conv_{place}")(x))
        x = Activation(("elu", "gelu")[place], name=f"activation_{place}")(x)
    x = Dense(8, "softplus", name="hidden")(Flatten(name="flatten")(x))
    return keras.Model(inputs, Dense(8, name="head")(x))


class Subclassed(keras.Model):
    """With an operation of its own between layers."""

    def __init__(self):
        super().__init__()
        self.first, self.head = Dense(8, name="first"), Dense(8, name="head")

    def call(self, x):
        return self.head(ops.log(ops.abs(self.first(x)) + 1))


def of_operations():
    """An exponential that is no layer, of what a layer gives."""
    inputs = keras.Input((8,))
    return keras.Model(inputs, Dense(8, name="head")(ops.exp(Dense(8, name="first")(inputs))))


NETS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "exponentials": (with_exponentials, (8,)),
    "attention": (with_attention, (8, 16)),
    "convolutional": (convolutional, (8, 8, 8)),
    "subclassed": (Subclassed, (8,)),
    "operations": (of_operations, (8,)),
}


def inputs_of(name: str) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(8, *NETS[name][1])).astype("float32")


def net(name: str) -> Any:
    with MIXED.scope(), names_as_in_a_fresh_process():
        model = NETS[name][0]()
        if not model.built:  # others are not run: JAX would compile each of their operations
            model(inputs_of(name))
    return model


def built(name: str, **overrides: str) -> Any:
    return apply_policy(net(name), Policy("mixed_float16", overrides=overrides))


def flags(model: Any, x: np.ndarray) -> list[tuple[str, str]]:
    found = report_operations(model, trace_forward(model, x))
    return [(flag.layer, flag.what) for flag in found.flags]


def in_float32(model: Any) -> set[str]:
    return {name_of(layer) for layer in layers_of(model) if layer.compute_dtype == "float32"}


NEEDS = {
    "exponentials": [
        ("shares", "exp in float16", {"shares": "float32"}),
        ("norm", "sum of squares in float16", {"norm": "float32"}),
    ],
    "attention": [("attention", "softmax in float16", {"attention": "float32"})],
    "convolutional": [],  # GroupNormalization casts to float32 itself; elu's exponent is at most 0, softplus's too
    "subclassed": [("(model)", "log in float16", {"subclassed/first": "float32"})],
    "operations": [("exp", "exp in float16", {"first": "float32"})],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_what_needs_float32_is_flagged_and_what_is_suggested_makes_it_go_away(name):
    model = built(name)
    found = report_operations(model, trace_forward(model, inputs_of(name)))
    assert [(f.layer, f.what, f.remedies) for f in found.flags] == NEEDS[name]
    apply_policy(model, Policy("mixed_float16", overrides=found.suggestion))
    assert flags(model, inputs_of(name)) == []


def test_sums_in_float16_are_flagged_from_where_adding_one_changes_nothing():
    with MIXED.scope():
        inputs = keras.Input((4096,))
        model = keras.Model(inputs, ops.cumsum(keras.layers.Identity(name="same")(inputs), axis=1))
    ((layer, what),) = flags(model, np.zeros((8, 4096), "float32"))
    assert what == "cumulative sum or product in float16"
    assert layer.startswith("cumsum")  # with a number where the process has made others


FLOAT32 = {  # the layers in float32, and reasons
    "exponentials": (
        {"shares", "norm", "head"},
        {
            "first": "products",
            "shares": "exp needs float32",
            "second": "products",
            "dropout": "nothing needs float32",
            "norm": "sum of squares needs float32",
            "head": "",
        },
    ),
    "attention": (
        {"attention", "attention/query", "attention/key", "attention/value", "attention/out", "head"},
        {"attention": "softmax needs float32", "attention/key": "inside attention"},
    ),
    "subclassed": ({"subclassed/first", "subclassed/head"}, {}),
    "operations": ({"first", "head"}, {"first": "its outputs go to exp: exp needs float32"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOAT32)
def test_the_layers_that_need_it_get_float32_with_their_reasons(name):
    model, (expected, reasons) = net(name), FLOAT32[name]
    chosen = choose_policies(model, MIXED, inputs_of(name))
    assert in_float32(model) == expected
    assert chosen.left == () and set(chosen.reasons) == {name_of(layer) for layer in layers_of(model)}
    assert reasons.items() <= chosen.reasons.items()
    assert in_float32(built(name, **chosen.overrides)) == expected


def test_overrides_that_were_asked_for_and_dtypes_of_the_author_stay():
    policy = Policy("mixed_float16", overrides={"sha*": "mixed_float16", "first": "float32"})
    model = net("exponentials")
    chosen = choose_policies(model, policy, inputs_of("exponentials"))
    assert in_float32(model) == {"first", "norm", "head"}
    assert list(chosen.overrides.items())[-2:] == [("sha*", "mixed_float16"), ("first", "float32")]
    assert chosen.left == ("shares: exp in float16",) and chosen.reasons["shares"] == "policy.overrides"
    with MIXED.scope():
        inputs = keras.Input((8,))
        x = Shares(name="own", dtype="mixed_bfloat16")(inputs)
        model = keras.Model(inputs, Dense(8, name="head")(x))
    chosen = choose_policies(model, MIXED, inputs_of("operations"))
    assert model.get_layer("own").compute_dtype == "bfloat16" and chosen.overrides == {}
    assert chosen.reasons["own"] == "its author gave it this policy"
