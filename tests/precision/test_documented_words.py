"""Each argument, attribute, method, error and example of the four documents, run with our classes: the rows of the
table in `docs/reference/precision.md`, which `PYTHONPATH=tests python tests/precision/test_documented_words.py` prints.

What a document says is in the words of the row's check; names that Keras 3 has no more are its own.
"""

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
from backends import BACKEND, gradients, only_on
from keras import ops

import mpt_cli as mpt
from mpt_cli.precision import FixedScale
from mpt_cli.precision import LossScaleOptimizer as Scaled

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
INF = float("inf")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/precision.md"
TF_KERAS, KERAS_3 = "tf.keras, LossScaleOptimizer", "Keras 3 and R, optimizer_loss_scale"
POLICY, GRADIENT = "tf.keras, Policy", "tf.custom_gradient"
if BACKEND == "tensorflow":
    import tensorflow as tf


class Row(NamedTuple):
    """Words of one kind in one document, of which `check` runs all."""

    source: str
    kind: str
    words: tuple[str, ...]
    check: Callable[[], None]
    differs: str
    backend: str


ROWS: list[Row] = []


def row(source: str, kind: str, *words: str, differs: str = "", backend: str = ""):
    def noted(check):
        ROWS.append(Row(source, kind, words, check, differs, backend))
        return check

    return noted


def table():
    lines = ["| document | | word | |", "|---|---|---|---|"]
    order = [TF_KERAS, KERAS_3, POLICY, GRADIENT, "argument", "attribute", "method", "rule", "error", "example"]
    for each in sorted(ROWS, key=lambda each: (order.index(each.source), order.index(each.kind))):
        only = {"tensorflow": " (TensorFlow)", "jax": " (JAX)", "": ""}[each.backend]
        state = f"differs: {each.differs}" if each.differs else f"works{only}"
        lines += [f"| {each.source} | {each.kind} | {word} | {state} |" for word in each.words]
    return "\n".join(lines)


def floats(*tensors):
    return [ops.convert_to_numpy(tensor).tolist() for tensor in tensors]


def stepped(optimizer, *slopes: float, start: float = 1.0):
    """A weight after steps with these true gradients; what is not finite is so however it is scaled."""
    variable = keras.Variable(start)
    optimizer.build([variable])
    optimizer.scale_loss(1.0)
    for slope in slopes:
        optimizer.apply([ops.convert_to_tensor(np.float32(slope)) * optimizer.loss_scale], [variable])
    return variable


def refused(words: str, *arguments, error: type = ValueError, **named):
    with pytest.raises(error, match=words):
        Scaled(*(arguments or (SGD(0.25),)), **named)


@row(TF_KERAS, "argument", "`inner_optimizer`", "`dynamic`", "`initial_scale`", "`dynamic_growth_steps`")
@row(
    TF_KERAS,
    "attribute",
    "`inner_optimizer`",
    "`dynamic`",
    "`initial_scale`",
    "`dynamic_growth_steps`",
    "`dynamic_counter`",
    "`loss_scale`",
)
@row(KERAS_3, "attribute", "`inner_optimizer`", "`initial_scale`", "`dynamic_growth_steps`")
def arguments_are_read_back():
    inner = SGD(0.25)
    for optimizer, expected in (
        (Scaled(inner), (True, 2.0**15, 2000, 0)),
        (Scaled(SGD(0.25), True, 4, np.int64(5)), (True, 4.0, 5, 0)),
        (Scaled(SGD(0.25), False, np.float32(8.0)), (False, 8.0, None, None)),
    ):
        for _ in range(2):  # before and after it is built
            counter = optimizer.dynamic_counter
            found = (optimizer.dynamic, optimizer.initial_scale, optimizer.dynamic_growth_steps, counter)
            assert (*found[:3], counter if counter is None else int(counter)) == expected
            scale = optimizer.loss_scale
            assert (scale.dtype, scale.shape, float(scale)) == ("float32", (), expected[1])
            optimizer.build([keras.Variable(1.0)])
    assert Scaled(other := SGD(0.25)).inner_optimizer is other


@row(
    TF_KERAS,
    "rule",
    "the scale halves and the step is skipped where a gradient is not finite",
    "the scale doubles after `dynamic_growth_steps` finite steps",
    "the counter is reset to 0",
)
def the_scale_follows_its_rule():
    optimizer, found = Scaled(SGD(0.0), initial_scale=8.0, dynamic_growth_steps=2), []
    variable = stepped(optimizer)
    for slope in (1.0, INF, 1.0, 1.0, float("nan")):
        optimizer.apply([ops.convert_to_tensor(np.float32(slope))], [variable])
        found.append((float(optimizer.loss_scale), int(optimizer.dynamic_counter)))
    assert found == [(8.0, 1), (4.0, 0), (4.0, 1), (8.0, 0), (4.0, 0)]
    optimizer = Scaled(SGD(0.5), False, 8.0)
    assert (float(stepped(optimizer, 1.0, -INF).value), float(optimizer.loss_scale)) == (0.5, 8.0)


@row(
    TF_KERAS,
    "error",
    "`inner_optimizer` is no optimizer",
    "it is a LossScaleOptimizer",
    "it is wrapped already",
    "`dynamic` is no bool",
    "a fixed scale without `initial_scale`",
    "a fixed scale with `dynamic_growth_steps`",
    "a scale or a count that is none",
)
def invalid_arguments_raise_value_errors():
    for inner in (None, "adam", Scaled, keras.layers.Dense(1)):
        refused(r"must be a keras\.optimizers\.Optimizer", inner)
    for wrapper in (Scaled, keras.optimizers.LossScaleOptimizer):
        refused("must not be a LossScaleOptimizer itself", wrapper(SGD(0.25)))
    inner = SGD(0.25)
    refused(
        r"must be a number at least 1.17549e-38 and at most 1.70141e\+38. Received: initial_scale=0",
        inner,
        initial_scale=0,
    )
    assert Scaled(inner).inner_optimizer is inner  # which is free after a refusal
    refused("is wrapped by another LossScaleOptimizer already", inner)
    for words, named in (
        ("`dynamic` must be True or False. Received: dynamic='dynamic'", {"dynamic": "dynamic"}),
        ("`initial_scale` must be given when `dynamic` is False", {"dynamic": False}),
        (
            "`dynamic_growth_steps` must not be given when `dynamic` is False",
            {"dynamic": False, "initial_scale": 2.0, "dynamic_growth_steps": 3},
        ),
        ("`hysteresis` must not be given", {"dynamic": False, "initial_scale": 2.0, "hysteresis": 2}),
        ("must be a number at least", {"initial_scale": float("nan")}),
        ("must be a number from", {"dynamic": False, "initial_scale": 1e39}),
        ("must be a number at least", {"initial_scale": 1e-40, "min_scale": 1e-41}),
        ("must be a number at least .* Received: initial_scale=True", {"initial_scale": True}),
        (
            r"`dynamic_growth_steps` must be a whole number from 1 to 2\*\*31 - 1. Received: dynamic_growth_steps=0",
            {"dynamic_growth_steps": 0},
        ),
        ("whole number", {"dynamic_growth_steps": 2.5}),
        ("whole number", {"dynamic_growth_steps": True}),
        ("whole number", {"dynamic_growth_steps": 2**31}),
        ("`growth_factor` must be", {"growth_factor": 1.0}),
        ("`backoff_factor` must be a number at least 1.17549e-38 and below 1", {"backoff_factor": 1.0}),
        ("`hysteresis` must be", {"hysteresis": 0}),
        ("min_scale=4.0, initial_scale=2.0", {"initial_scale": 2.0, "min_scale": 4.0}),
        ("must lie between `min_scale` and `max_scale`", {"initial_scale": 2.0**40}),
        ("does not support arguments: `foo`, `bar`", {"foo": True, "bar": 3}),
        ("`rule` must be a ScaleRule. Received: rule=8", {"rule": 8}),
        ("`initial_scale` must not be given beside `rule`", {"rule": FixedScale(2.0), "initial_scale": 4.0}),
        ("`dynamic` must not be given beside `rule`", {"rule": FixedScale(2.0), "dynamic": False}),
    ):
        refused(words, **named)


@row(
    TF_KERAS,
    "attribute",
    "`learning_rate`",
    "`lr`",
    "`iterations`",
    "`clipnorm`",
    "`clipvalue`",
    "`global_clipnorm`",
    "every hyperparameter of the inner optimizer, read and set",
)
@row(KERAS_3, "attribute", "`learning_rate`", "`iterations`")
@row(TF_KERAS, "example", "`beta_1` is the inner optimizer's")
def attributes_are_those_of_the_inner_optimizer():
    optimizer = Scaled(Adam(0.5, beta_1=0.8, clipnorm=3.0))
    stepped(optimizer, 1.0, INF)
    inner = optimizer.inner_optimizer
    assert (optimizer.beta_1, optimizer.clipnorm, int(optimizer.iterations)) == (0.8, 3.0, 1)
    for name, value in (("beta_1", 0.7), ("clipnorm", 2.0), ("clipvalue", 1.0), ("global_clipnorm", 1.0)):
        setattr(optimizer, name, value)
        assert getattr(inner, name) == getattr(optimizer, name) == value
    for name, value in (("learning_rate", 0.25), ("lr", 0.125)):
        setattr(optimizer, name, value)
        assert float(inner.learning_rate) == float(optimizer.lr) == float(optimizer.learning_rate) == value
    own = {"name", "loss_scale_factor"}  # the wrapper's own, and one that stays None
    for name in sorted(n for n in vars(inner) if not n.startswith("_") and n not in own):
        assert getattr(optimizer, name) is getattr(inner, name), name
    with pytest.raises(AttributeError, match="Neither LossScaleOptimizer nor its inner Adam has an attribute 'beta_3'"):
        optimizer.beta_3 = 0.7
    for name in ("loss_scale", "dynamic", "iterations", "applied_steps", "rule", "weights"):
        with pytest.raises(AttributeError):
            setattr(optimizer, name, 1)


@row(TF_KERAS, "example", "`epsilon` can't be read", differs="it is the inner optimizer's, read and set, as all others")
def epsilon_reaches_the_inner_optimizer():
    optimizer = Scaled(Adam(epsilon=1e-5))
    optimizer.epsilon = 1e-4
    assert optimizer.epsilon == optimizer.inner_optimizer.epsilon == 1e-4


@row(TF_KERAS, "example", "`minimize`, then a `GradientTape`", backend="tensorflow")
def the_example_with_a_tape():
    opt = Scaled(SGD(0.25))
    var = tf.Variable(1.0)
    loss_fn = lambda: var**2  # noqa: E731  (as documented)
    opt.minimize(loss_fn, var_list=[var])
    assert var.numpy() == 0.5
    with tf.GradientTape() as tape:
        loss = loss_fn()
        scaled_loss = opt.get_scaled_loss(loss)
    scaled_grad = tape.gradient(scaled_loss, var)
    (grad,) = opt.get_unscaled_gradients([scaled_grad])
    opt.apply_gradients([(grad, var)])
    assert var.numpy() == 0.25
    assert (int(opt.iterations), int(opt.dynamic_counter)) == (2, 2)


@row(KERAS_3, "method", "`apply_gradients`")
@row(
    TF_KERAS,
    "method",
    "`minimize`",
    "`apply_gradients`",
    "`get_scaled_loss`",
    "`get_unscaled_gradients`",
    "`get_gradients`",
    "`get_updates`",
)
def gradients_are_scaled_and_unscaled():
    variable, other = keras.Variable(8.0), keras.Variable(2.0)
    optimizer = Scaled(SGD(0.25), initial_scale=2.0**20)
    optimizer.build([variable, other])
    assert int(optimizer.minimize(lambda: variable**2, [variable])) == 1 and float(variable.value) == 4.0
    assert floats(optimizer.get_scaled_loss(3.0), optimizer.get_scaled_loss(lambda: 3.0)()) == [3.0 * 2**20] * 2
    assert optimizer.get_unscaled_gradients([None, ops.array(2.0**20)])[0] is None
    found = optimizer.get_gradients(lambda: variable**2 + 3 * other, [variable, other])
    assert floats(*found) == [8.0, 3.0]
    assert int(optimizer.apply_gradients(zip(found, [variable, other], strict=True))) == 2
    assert int(optimizer.get_updates(lambda: variable**2, [variable])[0]) == 3
    assert floats(variable.value, other.value) == [1.0, 1.25]


@row(TF_KERAS, "argument", "`minimize`: `loss`, `var_list`, `grad_loss`, `name`", "`apply_gradients`: `name`")
def arguments_of_a_step():
    variable = keras.Variable([1.0, 2.0])
    optimizer = Scaled(SGD(0.25), initial_scale=2.0**20)
    optimizer.build([variable])
    optimizer.minimize(lambda: variable**2, [variable], ops.array([1.0, 3.0]), "with_weights")
    assert floats(variable.value) == [[0.5, -1.0]]  # 0.25 * 2 * (1, 2) * (1, 3) less
    optimizer.minimize(lambda: variable**2, variable)  # a vector, which would be read as a list of its elements
    assert floats(variable.value) == [[0.25, -0.5]]
    (slopes,) = optimizer.get_gradients(lambda: 2 * variable, lambda: variable)
    optimizer.apply_gradients([(slopes, variable)], "named")
    assert floats(variable.value) == [[-0.25, -1.0]]


@row(
    TF_KERAS,
    "argument",
    "`minimize`: `tape`",
    "`apply_gradients`: `experimental_aggregate_gradients`",
    backend="tensorflow",
)
def arguments_of_a_step_on_tensorflow():
    variable, optimizer = tf.Variable(1.0), Scaled(SGD(0.25))
    with tf.GradientTape() as tape:
        loss = variable**2
    optimizer.minimize(loss, [variable], tape=tape)
    assert float(variable) == 0.5
    (gradient,) = optimizer.get_gradients(lambda: variable**2, [variable])
    optimizer.apply_gradients([(gradient, variable)], experimental_aggregate_gradients=False)
    assert float(variable) == 0.25
    built_inside = Scaled(SGD(0.25))
    step = tf.function(lambda: built_inside.minimize(lambda: variable**2, [variable], name="mine"))
    operations = step.get_concrete_function().graph.get_operations()
    assert any(operation.name.startswith("mine/") for operation in operations)
    assert (int(step()), float(variable)) == (1, 0.125)


@row(TF_KERAS, "rule", "a warning, once, where loss or gradients are not scaled")
def forgetting_to_scale_is_told():
    optimizer, variable = Scaled(SGD(0.5)), keras.Variable(4.0)
    with pytest.warns(UserWarning, match=r"are unscaled, but the loss .* LossScaleOptimizer\.get_scaled_loss"):
        optimizer.get_unscaled_gradients([ops.array(8.0)])
    optimizer = Scaled(SGD(0.5))
    with pytest.warns(UserWarning, match=r"Call LossScaleOptimizer\.scale_loss \(or get_scaled_loss\) on the loss"):
        optimizer.apply_gradients([(ops.array(8.0), variable)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.apply_gradients([(ops.array(8.0), variable)])


@row(
    TF_KERAS,
    "error",
    "`minimize` of a tensor without a tape",
    "`get_gradients` of what a loss does not depend on",
    "gradients are all None",
    "`apply_gradients` outside of a replica",
    backend="tensorflow",
)
def gradients_that_there_are_none_of():
    optimizer, variable = Scaled(SGD(0.25)), tf.Variable(1.0)
    with pytest.raises(ValueError, match="`tape` is required when `loss` is a tensor"):
        optimizer.minimize(tf.constant(1.0), [variable])
    with pytest.raises(ValueError, match="`loss` must depend on all of `params`"):
        optimizer.get_gradients(lambda: tf.constant(1.0), [variable])
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([(None, variable)])
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope(), pytest.raises(ValueError, match="in a replica context"):
        optimizer.apply([tf.constant(1.0)], [variable])


@row(TF_KERAS, "error", "`minimize` of what is no function", backend="jax")
def a_loss_that_is_no_function():
    with pytest.raises(ValueError, match="On the JAX backend `loss` must be a function without arguments"):
        Scaled(SGD(0.25)).minimize(ops.array(1.0), [keras.Variable(1.0)])


@row(TF_KERAS, "method", "`get_gradients` of a tensor in a graph", backend="tensorflow")
def gradients_in_a_graph():
    optimizer, variable = Scaled(SGD(0.25)), tf.Variable(4.0)
    assert float(tf.function(lambda: optimizer.get_gradients(variable**2, [variable])[0])()) == 8.0


@row(TF_KERAS, "attribute", "`weights`")
@row(KERAS_3, "method", "`set_weights`")
@row(TF_KERAS, "method", "`get_weights`", "`set_weights`")
def weights_are_the_inner_optimizer_s():
    optimizer, other = (Scaled(SGD(0.5, momentum=0.5)) for _ in range(2))
    stepped(optimizer, 1.0)
    stepped(other)
    assert optimizer.weights == optimizer.inner_optimizer.variables
    other.set_weights(optimizer.get_weights())
    assert [value.tolist() for value in other.get_weights()] == floats(*optimizer.weights) == [1, 0.5, -0.5]
    assert optimizer.variables[-3:] == optimizer.weights and len(optimizer.variables) == 7


@row(TF_KERAS, "method", "`variables()`", differs="a property, as in Keras 3; the scale's variables come first")
@row(KERAS_3, "attribute", "`variables`")
def variables_are_a_list():
    optimizer = Scaled(SGD(0.5))
    stepped(optimizer)
    own = ["scale", "counter", "hysteresis_left", "tally"]
    inner = ["iteration", "learning_rate"]
    assert [v.name for v in optimizer.variables] == [*(f"loss_scale_{name}" for name in own), *inner]


@row(TF_KERAS, "method", "`get_slot`, `get_slot_names`, `add_slot`", differs="Keras 3 has no slots; read `variables`")
@row(TF_KERAS, "method", "`add_weight`", differs="`add_variable`, its name in Keras 3")
def slots_are_no_more():
    optimizer = Scaled(SGD(0.5))
    for name in ("get_slot", "get_slot_names", "add_slot"):
        with pytest.raises(AttributeError, match=f"`{name}`: Keras 3 has no slots. Read `variables` instead"):
            getattr(optimizer, name)
    assert optimizer.add_variable(shape=(2,), name="mine").shape == (2,)


@row(TF_KERAS, "method", "`get_config`", "`from_config`")
@row(KERAS_3, "method", "`get_config`", "`from_config`")
@row(KERAS_3, "attribute", "`name`")
def configurations_are_read():
    for optimizer in (Scaled(SGD(0.5), initial_scale=3.0, name="mine"), Scaled(SGD(0.5), False, 3.0, name="mine")):
        config = optimizer.get_config()
        again = Scaled.from_config(config)
        assert again.get_config() == optimizer.get_config() == config  # `from_config` left its argument alone
        assert (again.name, float(again.loss_scale), again.dynamic) == ("mine", 3.0, optimizer.dynamic)
    keras_own = keras.optimizers.LossScaleOptimizer(SGD(0.5), initial_scale=4.0, dynamic_growth_steps=3)
    old = dict.fromkeys(("weight_decay", "clipnorm", "loss_scale_factor")) | {"use_ema": False, "ema_momentum": 0.99}
    ours = Scaled.from_config(keras_own.get_config() | old)
    assert (float(ours.loss_scale), ours.dynamic_growth_steps, float(ours.learning_rate)) == (4.0, 3, 0.5)


OPTIONS = {
    "weight_decay": 0.125,
    "clipnorm": 1.0,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 3,
    "gradient_accumulation_steps": 2,
}


@row(
    KERAS_3,
    "argument",
    "`inner_optimizer`",
    "`initial_scale`",
    "`dynamic_growth_steps`",
    "`name`",
    *(f"`{name}`" for name in OPTIONS),
    "`clipvalue`",
    "`global_clipnorm`",
)
def options_are_set_on_the_inner_optimizer():
    """Each acts as where the inner optimizer has it, and stands once in the configuration."""
    for option in ({"clipvalue": 0.5}, {"global_clipnorm": 0.25}, OPTIONS, {"weight_decay": 0.25}):
        found = Scaled(SGD(0.5), initial_scale=8.0, dynamic_growth_steps=2, name="mine", **option)
        expected = Scaled(SGD(0.5, **option), True, 8.0, 2)
        weights = [stepped(each, 3.0, INF, 2.0, -1.0, 1.0).value for each in (found, expected)]
        assert floats(weights[0]) == floats(weights[1]) and int(found.applied_steps) == 4
        assert floats(*found.weights) == floats(*expected.weights)
        config = found.get_config()
        assert option.items() <= config["inner_optimizer"]["config"].items() and not option.keys() & config.keys()
        assert Scaled.from_config(config).get_config() == config
    assert Scaled(keras.optimizers.AdamW(), weight_decay=0.125).weight_decay == 0.125  # 0.004 there, by its default


@row(KERAS_3, "argument", "`loss_scale_factor`")
def a_loss_scale_factor_is_a_fixed_scale():
    optimizer = Scaled(SGD(0.5), loss_scale_factor=8.0)
    weight = stepped(optimizer, 1.0, INF)
    assert (optimizer.dynamic, float(optimizer.loss_scale), float(weight.value)) == (False, 8.0, 0.5)
    assert Scaled.from_config(optimizer.get_config()).rule == FixedScale(8.0)
    with pytest.warns(UserWarning, match="`loss_scale_factor=100.0` of the inner optimizer is ignored"):
        assert Scaled(SGD(0.25, loss_scale_factor=100.0)).inner_optimizer.loss_scale_factor is None
    for name, value in (("dynamic", True), ("initial_scale", 8.0), ("dynamic_growth_steps", 2), ("hysteresis", 2)):
        refused(f"`{name}` must not be given beside `loss_scale_factor`", loss_scale_factor=8.0, **{name: value})
    refused("`loss_scale_factor` must be a number from .* Received: loss_scale_factor=-1", loss_scale_factor=-1)
    with pytest.raises(ValueError, match="`loss_scale_factor` can't be set"):
        optimizer.loss_scale_factor = 4.0
    assert optimizer.loss_scale_factor is None


@row(KERAS_3, "error", "an option of the wrong kind or out of range", "one that contradicts the inner optimizer")
def options_that_are_refused():
    for option, words in (
        ({"clipnorm": True}, "`clipnorm` must be a finite number of at least 0. Received: clipnorm=True"),
        ({"weight_decay": "a"}, "`weight_decay` must be a finite number"),
        ({"use_ema": 1}, "`use_ema` must be"),
        ({"gradient_accumulation_steps": 2.5}, "`gradient_accumulation_steps` must be a whole number"),
        ({"gradient_accumulation_steps": 1}, "must be an integer >= 2"),
        ({"use_ema": True, "ema_momentum": 2.0}, r"must be in the range \[0, 1\]"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "Only one of `clipnorm`"),
    ):
        refused(words, **option)
    refused(
        "`clipnorm` must be given to SGD itself. Received: clipnorm=2.0, and 1.0 in SGD",
        SGD(0.5, clipnorm=1.0),
        clipnorm=2.0,
    )
    refused("Only one of `clipnorm`", SGD(0.5, clipnorm=1.0), clipvalue=2.0)
    assert Scaled(SGD(0.5, clipnorm=1.0), clipnorm=1.0).clipnorm == 1.0
    inner = SGD(0.5)
    inner.build([keras.Variable(1.0)])
    refused("`use_ema` must be given to SGD itself", inner, use_ema=True)

    class Own(SGD):
        def get_config(self):
            return {"name": self.name}

    refused("`clipnorm` must be given to Own itself", Own(), clipnorm=1.0)


@row(
    KERAS_3, "method", "`build`", "`apply`", "`scale_loss`", "`exclude_from_weight_decay`", "`finalize_variable_values`"
)
@row(KERAS_3, "attribute", "`dynamic_scale`", "`step_counter`")
def methods_of_keras_3():
    kernel, bias = keras.Variable([1.0], name="kernel"), keras.Variable([1.0], name="bias")
    optimizer = Scaled(SGD(0.5), initial_scale=4.0, weight_decay=0.5, use_ema=True, ema_momentum=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert floats(optimizer.scale_loss(2.0)) == [8.0]
    for _ in range(2):
        optimizer.apply([ops.zeros((1,)), ops.zeros((1,))], [kernel, bias])
    assert (kernel.numpy()[0], bias.numpy()[0]) == (0.5625, 1.0)
    assert (float(optimizer.dynamic_scale.value), int(optimizer.step_counter.value)) == (4.0, 2)
    optimizer.finalize_variable_values([kernel, bias])
    assert kernel.numpy()[0] == 0.5 * 0.75 + 0.5 * 0.5625


@row(KERAS_3, "method", "`stateless_apply`", backend="jax")
def a_pure_step():
    optimizer, variable = Scaled(SGD(0.5), initial_scale=4.0), keras.Variable(1.0)
    optimizer.build([variable])
    (value,), _ = optimizer.stateless_apply([v.value for v in optimizer.variables], [ops.array(4.0)], [variable.value])
    assert (float(value), float(variable.value)) == (0.5, 1.0)


def dense(optimizer="sgd", **arguments):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **arguments)
    return model


@row(POLICY, "method", "`set_global_policy`", "`global_policy`")
@row(POLICY, "rule", "`Model.compile` wraps the optimizer under mixed_float16")
def compile_wraps_under_the_global_policy():
    mpt.set_global_policy("mixed_float16")
    told: list[str] = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logging.getLogger("mpt_cli"), "warning", told.append)
            assert [type(dense().optimizer) for _ in range(2)] == [Scaled, Scaled]
        assert told == ["compile puts optimizers into mpt's LossScaleOptimizer, because of set_global_policy."]
        assert mpt.global_policy() == mpt.Policy("mixed_float16")
        assert type(dense(auto_scale_loss=False).optimizer) is SGD
        assert dense(own := Scaled(SGD(0.5))).optimizer is own
        keras.config.set_dtype_policy("mixed_float16")  # Keras's call leaves it to Keras
        assert type(dense().optimizer) is keras.optimizers.LossScaleOptimizer
        assert dense(own).optimizer is own
        mpt.set_global_policy(mpt.Policy("mixed_bfloat16"))
        assert type(dense().optimizer) is SGD
        with pytest.raises(ValueError, match="`policy` must have no `overrides`"):
            mpt.set_global_policy(mpt.Policy("float16", overrides={"a": "float32"}))
        mpt.set_global_policy(None)
        assert mpt.global_policy() == keras.config.floatx() == "float32"
    finally:
        mpt.set_global_policy("float32")
    assert not hasattr(keras.Model.compile, "unscaled")


@row(POLICY, "argument", "`name`")
@row(POLICY, "attribute", "`name`", "`compute_dtype`", "`variable_dtype`")
@row(POLICY, "method", "`get_config`", "`from_config`", "`repr`, equality")
@row(POLICY, "error", "an unknown name", "no text as name")
def policies_are_as_documented():
    for name, dtypes in (("mixed_float16", ("float16", "float32")), ("float64", ("float64", "float64"))):
        policy = mpt.Policy(name)
        assert (policy.name, policy.compute_dtype, policy.variable_dtype) == (name, *dtypes)
        assert (repr(policy), policy.get_config()) == (f'<Policy "{name}">', {"name": name})
        assert mpt.Policy.from_config(policy.get_config()) == policy != mpt.Policy("float16")
    own = mpt.Policy("float16", head=None, overrides={"a": "float32"})
    assert repr(own) == """<Policy "float16", head=None, overrides={'a': 'float32'}>"""
    assert mpt.Policy.from_config(own.get_config()) == own != mpt.Policy("float16")
    with pytest.raises(ValueError, match="Cannot convert 'bad' to a mixed precision"):
        mpt.Policy("bad")
    for wrong in (mpt.Policy("float16"), 8):
        with pytest.raises(TypeError, match=r"`name` must be the name of a policy.*Received: name="):
            mpt.Policy(wrong)


@row(POLICY, "example", "the global policy, and a layer's own")
def the_example_of_the_global_policy():
    mpt.set_global_policy("mixed_float16")
    layer1, layer2 = keras.layers.Dense(10), keras.layers.Dense(10, dtype="float32")
    mpt.set_global_policy("float32")
    assert (layer1.dtype_policy.name, layer2.dtype_policy.name) == ("mixed_float16", "float32")
    assert keras.layers.Dense(10, dtype=mpt.Policy("float64")).dtype_policy.name == "float64"


@row(POLICY, "example", "a layer casts its input")
def the_example_of_a_cast_input():
    layer = keras.layers.Conv2D(filters=4, kernel_size=2)
    assert (layer.compute_dtype, layer(np.ones((4, 4, 4, 4), "float64")).dtype) == ("float32", "float32")


@row(POLICY, "example", "a layer casts its first argument alone", differs="Keras 3 casts all of them")
def the_example_of_two_arguments():
    class Own(keras.layers.Layer):
        def call(self, a, b):
            return a + 1.0, b + 1.0

    x, y = Own(dtype="mixed_float16")(ops.ones(()), ops.ones(()))
    assert (x.dtype, y.dtype) == ("float16", "float16")


@row(POLICY, "example", "variables are cast in `call`", "a tensor that is made in the compute dtype")
def the_examples_of_layers():
    class SimpleDense(keras.layers.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], 10))

        def call(self, inputs):
            noise = keras.random.normal(shape=(10, 10), dtype=inputs.dtype)
            return ops.matmul(inputs, self.kernel) + noise

    layer = SimpleDense(dtype="mixed_float16")
    assert (layer(ops.ones((10, 10))).dtype, layer.kernel.dtype) == ("float16", "float32")


@row(GRADIENT, "argument", "`f`, or none: a decorator")
@row(GRADIENT, "example", "`log1pexp`")
def the_example_of_a_stable_gradient():
    @mpt.custom_gradient
    def log1pexp(x):
        e = ops.exp(x)

        def grad(upstream):
            return upstream * (1 - 1 / (1 + e))

        return ops.log(1 + e), grad

    assert floats(*gradients(log1pexp, ops.array([0.0, 100.0]))) == [[0.5, 1.0]]
    assert floats(*gradients(lambda x: gradients(log1pexp, x)[0], ops.array(0.0))) == [0.25]
    tripled = mpt.custom_gradient()(lambda x: (x, lambda upstream: 3 * upstream))
    assert floats(*gradients(tripled, ops.array(1.0))) == [3.0]


@row(GRADIENT, "example", "`bar`, of two inputs")
@row(GRADIENT, "rule", "nested structures of inputs and outputs")
def several_inputs_and_structures():
    @mpt.custom_gradient
    def bar(x, y):
        def grad(upstream):
            return upstream * y, upstream * x

        return x * y, grad

    assert float(bar(ops.array(2.0), ops.array(3.0))) == 6.0
    assert floats(*gradients(bar, ops.array(2.0), ops.array(3.0))) == [3.0, 2.0]

    @mpt.custom_gradient
    def both(pair, z):
        def grad(of_p, of_q):
            return [of_p * 2, of_q * 3], of_p + of_q

        return {"p": pair[0] + z, "q": pair[1] * z}, grad

    def total(x, y, z):
        found = both([x, y], z)
        return found["p"] + 10 * found["q"]

    assert floats(*gradients(total, *map(ops.array, (1.0, 2.0, 3.0)))) == [2.0, 30.0, 11.0]


@row(GRADIENT, "example", "nested: a gradient with a gradient of its own", "nested: the second order in a function")
def nested_gradients():
    @mpt.custom_gradient
    def op(x):
        @mpt.custom_gradient
        def grad_fn(dy):
            return dy * 3 * x**2, lambda ddy: ddy * 1000.0

        return x**3, grad_fn

    assert floats(*gradients(op, ops.array(2.0))) == [12.0]

    @mpt.custom_gradient
    def op_with_fused_backprop(x):
        x_grad = 3 * x**2

        def first_order_gradient(dy):
            @mpt.custom_gradient
            def first_order_custom(unused_x, dy):
                def second_order_and_transpose(ddy):
                    return 100 * ddy * dy * x, ddy * x_grad

                return dy * x_grad, second_order_and_transpose

            return first_order_custom(x, dy)

        return x**3, first_order_gradient

    x = ops.array(2.0)
    assert floats(*gradients(op_with_fused_backprop, x)) == [12.0]
    assert floats(*gradients(lambda x: gradients(op_with_fused_backprop, x)[0], x)) == [200.0]


def linear_poly(weights: keras.Variable, takes_variables: bool = True):
    @mpt.custom_gradient
    def poly(x):
        def grad_fn(dpoly, variables=None):
            assert len(variables) == 1
            by_weights = ops.sum(dpoly * ops.stack([x, ops.ones_like(x)]), axis=1)
            return dpoly * ops.convert_to_tensor(variables[0])[1], [10 * by_weights]

        slope = ops.convert_to_tensor(weights)
        return slope[1] * x + slope[0], grad_fn if takes_variables else lambda dpoly: dpoly

    return poly


@row(GRADIENT, "argument", "`variables` of the gradient, None by default")
@row(GRADIENT, "example", "`linear_poly`, which reads variables")
def the_example_with_variables():
    weights, x = keras.Variable([1.0, 1.0]), ops.array([1.0, 2.0, 3.0])
    poly = linear_poly(weights)
    assert floats(poly(x), *gradients(poly, x)) == [[2.0, 3.0, 4.0], [1.0, 1.0, 1.0]]
    if BACKEND == "tensorflow":
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(poly(x))
        found = tape.gradient(total, weights.value)
    else:
        import jax

        def total(values):
            with keras.StatelessScope([(weights, values)]):
                return ops.sum(poly(x))

        found = jax.jit(jax.grad(total))(weights.value)
    assert floats(found) == [[60.0, 30.0]]


@row(GRADIENT, "error", "variables are read and the gradient takes none", "another number of gradients")
def errors_of_a_custom_gradient():
    with pytest.raises(TypeError, match=r"must (accept keyword argument 'variables'|take `variables`)"):
        linear_poly(keras.Variable([1.0, 1.0]), takes_variables=False)(ops.array(1.0))
    wrong = mpt.custom_gradient(lambda x, y: (x * y, lambda upstream: upstream))
    with pytest.raises(ValueError, match=r"2 (gradients, but returned 1|tensors\. Received: 1)"):
        gradients(wrong, ops.array(1.0), ops.array(2.0))


@row(GRADIENT, "example", "`stop_gradient` around an operation without a gradient")
def the_example_with_a_stopped_gradient():
    @mpt.custom_gradient
    def shuffled(x):
        return ops.stop_gradient(keras.random.shuffle(x, seed=1)), lambda upstream: upstream

    assert floats(*gradients(shuffled, ops.array([0.25, 0.5]))) == [[1.0, 1.0]]


@pytest.mark.parametrize("each", {each.check: each for each in ROWS}.values(), ids=lambda each: each.check.__name__)
def test_the_words_of_a_row(each):
    if each.backend not in ("", BACKEND):
        pytest.skip(f"a word of {each.backend}")
    assert each.check() is None  # it raises


def test_the_page_has_the_table():
    assert table() in PAGE.read_text(encoding="utf-8")
    assert len([each for each in ROWS if each.differs]) <= 5


LOADING = """
import mpt_cli, sys
assert "keras" not in sys.modules and "tensorflow" not in sys.modules
import keras
keras.config.set_dtype_policy("mixed_bfloat16")
for name in sys.argv[1:]:
    optimizer = keras.models.load_model(name).optimizer
    print(type(optimizer).__module__, float(optimizer.loss_scale), int(optimizer.applied_steps))
"""


@pytest.mark.slow
@only_on("tensorflow")
def test_a_file_of_a_run_opens_in_keras_where_mpt_is_imported(tmp_path):
    """With the scale it had: saved after `mpt.fit`, and by a callback within it."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    by_callback = keras.callbacks.ModelCheckpoint(tmp_path / "callback.keras")
    mpt.fit(
        model,
        np.ones((64, 2)),
        np.ones((64, 1)),
        policy="mixed_float16",
        loss_scale=2.0**9,
        run_dir=tmp_path / "run",
        callbacks=[by_callback],
        settings={"logger.console": "quiet"},
    )
    model.save(tmp_path / "own.keras")
    (tmp_path / "fresh.py").write_text(LOADING)
    words, where = [sys.executable, "fresh.py", "own.keras", "callback.keras"], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-2:] == ["mpt_cli.precision.optimizer 512.0 2"] * 2, done.stderr


if __name__ == "__main__":
    print(table())
