"""The operations of a traced forward pass, what of them needs float32, and the policies that are chosen by it, for nets
that are written here: what is expected of each was found by hand."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from keras.layers import Activation, Conv2D, Dense, Dropout, Flatten, GroupNormalization, LayerNormalization

from mpt_cli.precision import Policy, apply_policy, layers_of
from mpt_cli.precision.keras_internals import names_as_in_a_fresh_process
from mpt_cli.precision.operations import choose_policies, needs_of
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


class Gate(keras.layers.Layer):
    """Exponentials of what a layer inside gives."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.inner = Dense(units, name="inner")

    def call(self, x):
        return x * ops.softmax(self.inner(x))


def with_exponentials():
    x = inputs = keras.Input((8,))
    x = Shares(name="shares")(Dense(16, name="first")(x))
    x = Gate(16, name="gate")(Dense(16, name="second")(Dropout(0.1, name="dropout")(x)))
    return keras.Model(
        inputs, Dense(8, name="head")(RootMeanSquare(name="norm")(LayerNormalization(name="layer_norm")(x)))
    )


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
    "convolutional": (convolutional, (8, 8, 8)),
    "subclassed": (Subclassed, (8,)),
    "operations": (of_operations, (8,)),
}


def inputs_of(name: str):
    return np.random.default_rng(0).normal(size=(8, *NETS[name][1])).astype("float32")


def net(name: str):
    with MIXED.scope(), names_as_in_a_fresh_process():
        model = NETS[name][0]()
        if not model.built:  # others are not run: JAX would compile each of their operations
            model(inputs_of(name))
    return model


def built(name: str, **overrides: str):
    return apply_policy(net(name), Policy("mixed_float16", overrides=overrides))


def needs(model: Any, x: np.ndarray):
    return {part and name_of(part): need for part, need in needs_of(model, x).items()}


def in_float32(model: Any):
    return {name_of(layer) for layer in layers_of(model) if layer.compute_dtype == "float32"}


def test_a_cumulative_sum_in_float16_is_found_and_one_in_float32_is_not():
    for dtype, expected in (("mixed_float16", ["cumulative sum or product"]), ("float32", [])):
        with Policy(dtype).scope():
            inputs = keras.Input((4096,))
            model = keras.Model(inputs, ops.cumsum(keras.layers.Identity(name="same")(inputs), axis=1))
        assert [*needs(model, np.zeros((8, 4096), "float32")).values()] == expected


class Walk(keras.layers.Layer):
    """Takes exponentials of float16 numbers in a loop and, where a number is positive, logarithms."""

    def call(self, x):
        def body(i, total):
            return i + 1, total + ops.cond(ops.sum(x) > 0, lambda: ops.log(ops.abs(total) + 1), lambda: ops.exp(total))

        return ops.while_loop(lambda i, total: i < 3, body, (0, x))[1]


def test_operations_inside_loops_and_branches_are_found():
    with MIXED.scope():
        inputs = keras.Input((4,))
        model = keras.Model(inputs, Walk(name="walk")(inputs))
    ((layer, need),) = needs(model, np.zeros((2, 4), "float32")).items()
    assert layer == "walk" and {*need.split(", ")} == {"exp", "log"}


FLOAT32 = {  # the layers in float32, the reasons, and what is left
    "exponentials": (
        {"shares", "gate", "gate/inner", "norm", "head"},
        {"shares": "exp needs float32", "gate": "exp needs float32", "norm": "sum of squares needs float32"},
        (),
    ),
    "convolutional": ({"head"}, {}, ()),  # GroupNormalization casts by itself; exponents of elu, softplus are at most 0
    "subclassed": ({"subclassed/head"}, {}, ("(model): log in float16",)),
    "operations": ({"head"}, {}, ("exp: exp in float16",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_the_layers_that_need_it_get_float32_with_their_reasons(name):
    model, (expected, reasons, left) = net(name), FLOAT32[name]
    chosen = choose_policies(model, MIXED, inputs_of(name))
    assert in_float32(model) == expected
    assert chosen.left == left and chosen.reasons == reasons
    assert in_float32(built(name, **chosen.overrides)) == expected


def test_overrides_that_were_asked_for_and_dtypes_of_the_author_stay():
    policy = Policy("mixed_float16", overrides={"sha*": "mixed_float16", "first": "float32"})
    model = net("exponentials")
    chosen = choose_policies(model, policy, inputs_of("exponentials"))
    assert in_float32(model) == {"first", "gate", "gate/inner", "norm", "head"}
    assert list(chosen.overrides.items())[-2:] == [("sha*", "mixed_float16"), ("first", "float32")]
    assert chosen.left == ("shares: exp in float16",) and chosen.reasons["shares"] == "policy.overrides"
    with MIXED.scope():
        inputs = keras.Input((8,))
        x = Shares(name="own", dtype="mixed_bfloat16")(inputs)
        model = keras.Model(inputs, Dense(8, name="head")(x))
    chosen = choose_policies(model, MIXED, inputs_of("operations"))
    assert model.get_layer("own").compute_dtype == "bfloat16" and chosen.overrides == {}
    assert chosen.reasons["own"] == "its author gave it this policy"
