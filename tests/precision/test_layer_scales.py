"""Gradients of layers at scales of their own: what they are, by hand and against float32, and what is refused."""

import keras
import numpy as np
import pytest
from backends import BACKEND, MODES, compiled
from keras import layers, ops

from mpt_cli.precision import Policy, apply_policy
from mpt_cli.precision.finite import measure
from mpt_cli.precision.gradients.layer_scales import (
    LayerScales,
    at_layer_scales,
    factors_by_layer,
    layer_scales,
    set_layer_scales,
)
from mpt_cli.precision.policy import matches, parts_of

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


def gradients(model, x=X, scale=1.0, mode="eager"):
    """Of scale times the mean of all outputs and of what layers add to it, by each trainable weight, as arrays."""
    variables = model.trainable_variables

    def loss():
        with at_layer_scales(model):
            outputs = model(x, training=True)
        losses = [ops.mean(ops.cast(each, "float32")) for each in keras.tree.flatten(outputs)]
        return sum([*losses, *(ops.cast(each, "float32") for each in model.losses)]) * scale

    if BACKEND == "tensorflow":
        import tensorflow as tf

        def differentiate():
            with tf.GradientTape() as tape:
                found = loss()
            return [tf.convert_to_tensor(g) for g in tape.gradient(found, [v.value for v in variables])]

        return [np.asarray(g) for g in compiled(differentiate, mode)()]
    import jax

    def pure(values):
        with keras.StatelessScope(list(zip(variables, values, strict=True)), collect_losses=True):
            return loss()

    found = compiled(jax.grad(pure), mode)([v.value for v in variables])
    return [np.asarray(g) for g in found]


def sequential(policy="mixed_float16", **kernel):
    keras.utils.set_random_seed(3)
    with Policy(policy).scope():
        model = keras.Sequential([
            keras.Input((3,)), layers.Dense(5, "tanh", name="low", **kernel), layers.ReLU(name="relu"),
            layers.Dense(4, "tanh", name="high", **kernel), layers.Dense(2, name="head"),
        ], name="net")  # fmt: skip
    return apply_policy(model, Policy(policy))


class Shared(keras.Model):
    """A layer called twice, one whose loss is its own, plain operations between them, and two outputs."""

    def __init__(self):
        super().__init__()
        self.twice = layers.Dense(3, "tanh", name="twice", kernel_regularizer=keras.regularizers.L2(0.5))
        self.other = layers.Dense(3, name="other", activity_regularizer=keras.regularizers.L2(0.25))
        self.adding = Adding(name="adding")
        self.inner = keras.Sequential([keras.Input((3,)), layers.Dense(3, name="inside")], name="inner")

    def call(self, x):
        y = self.twice(ops.relu(self.adding(self.twice(x))))
        return self.inner(y), self.other(y + ops.matmul(y, ops.cast(self.twice.kernel, y.dtype)))


class Adding(layers.Layer):
    def build(self, shape):
        self.weight = self.add_weight(shape=(shape[-1],), initializer="ones", name="weight")

    def call(self, x):
        y = x * ops.cast(self.weight, x.dtype)
        self.add_loss(ops.mean(ops.square(ops.cast(y, "float32"))))
        return y


def shared(policy="float32"):
    keras.utils.set_random_seed(5)
    with Policy(policy).scope():
        model = Shared()
        model(X)
    return model


FACTORS = {"twice": 2.0**9, "adding": 2.0**-7, "in*": 2.0**5, "other": 2.0**-3}


def put_onto(model, factors):
    """`set_layer_scales` of a model that needs no float16 for it."""
    by_name = {part.name: factor for pattern, factor in factors.items() for part in parts_of(model)
               if matches(part, pattern)}  # fmt: skip
    all_factors = tuple(by_name.get(part.name, 1.0) for part in parts_of(model))
    scaled = tuple((part, by_name[part.name]) for part in parts_of(model) if part.name in by_name)
    model._mpt_layer_scales = LayerScales(all_factors, scaled)


@pytest.mark.parametrize("mode", MODES)
def test_in_float32_the_gradients_are_those_without(mode):
    """Of layers called twice, with losses of their own, weights that plain operations use as well, and two outputs."""
    model = shared()
    expected = gradients(model, mode=mode)
    put_onto(model, FACTORS)
    for new, old in zip(gradients(model, mode=mode), expected, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-6)  # sums of the same numbers in another order


@pytest.mark.parametrize("mode", MODES)
def test_in_a_chain_they_are_those_without_to_the_bit(mode):
    model = sequential("float32")
    expected = gradients(model, mode=mode)
    put_onto(model, {"low": 2.0**40, "relu": 2.0**30, "high": 2.0**-20})
    for new, old in zip(gradients(model, mode=mode), expected, strict=True):
        np.testing.assert_array_equal(new, old)


def product(first, second):
    """The mean of second * (first * x), in float16 throughout."""
    with Policy("mixed_float16").scope():
        model = keras.Sequential([
            keras.Input((1,)),
            *(layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(value), name=name)
              for name, value in (("first", first), ("second", second))),
        ])  # fmt: skip
    return model


@pytest.mark.parametrize("mode", MODES)
def test_float16_gradients_by_hand(mode):
    """x = 3, first = 2^-10, second = 2^-20, and the loss times 2^-10. Without factors the gradient of first's output,
    2^-30, is 0 in float16; with 2^20 it is 2^-10, also between the layers, and that of the weight 3 * 2^-30."""
    model, x = product(2.0**-10, 2.0**-20), np.full((1, 1), 3.0, "float32")
    first, second = (float(g.item()) for g in gradients(model, x, 2.0**-10, mode))
    assert (first, second) == (0.0, 3 * 2.0**-20)
    set_layer_scales(model, {"first": 2.0**20, "second": 2.0**20})
    first, second = (float(g.item()) for g in gradients(model, x, 2.0**-10, mode))
    assert (first, second) == (3 * 2.0**-30, 3 * 2.0**-20)


def test_one_factor_takes_the_place_of_two_between_layers():
    """2^-30 is passed from the second layer at 2^20 to the first at 2^25: at neither's boundary it is 0."""
    model, x = product(2.0**-10, 2.0**-20), np.full((1, 1), 3.0, "float32")
    set_layer_scales(model, {"first": 2.0**25, "second": 2.0**20})
    assert float(gradients(model, x, 2.0**-10)[0].item()) == 3 * 2.0**-30


def test_a_factor_below_one_keeps_a_layer_from_overflow():
    """x = 2^10 makes the gradient of the weight 2^18 at a loss of 2^8; at 2^-10 it is 2^8 in float16."""
    model, x = product(2.0**-10, 1.0), np.full((1, 1), 2.0**10, "float32")
    assert np.isinf(gradients(model, x, 2.0**8)[0]).all()
    set_layer_scales(model, {"first": 2.0**-10})
    assert float(gradients(model, x, 2.0**8)[0].item()) == 2.0**18


def test_an_overflow_inside_is_not_hidden():
    model = product(1.0, 1.0)
    set_layer_scales(model, {"first": 2.0**20})
    found = gradients(model, np.ones((1, 1), "float32"))
    assert not np.isfinite(found[0]).any()
    assert not bool(measure([ops.convert_to_tensor(g) for g in found], model.trainable_variables).finite)


def test_the_largest_gradient_is_the_largest_that_float16_holds():
    """Where a loss scale follows it: 3 * 2^-30 of a layer at 2^20 stands for 3 * 2^-10."""
    model = product(1.0, 1.0)
    set_layer_scales(model, {"first": 2.0**20})
    found = [ops.convert_to_tensor(np.full((1, 1), value, "float32")) for value in (3 * 2.0**-30, 2.0**-20)]
    assert float(measure(found, model.trainable_variables).largest) == 3 * 2.0**-10


def test_what_a_regularizer_adds_is_not_taken_for_what_float16_holds():
    with Policy("mixed_float16").scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1, use_bias=False, kernel_regularizer="l2")])
    set_layer_scales(model, {"*": 2.0**40})
    gradient = ops.convert_to_tensor(np.full((1, 1), 2.0**-3, "float32"))
    assert float(measure([gradient], model.trainable_variables).largest) == 2.0**-3


def test_the_gradient_of_an_embedding_stays_sparse():
    with Policy("mixed_float16").scope():
        model = keras.Sequential([keras.Input((2,), dtype="int32"), layers.Embedding(6, 3, name="tokens"),
                                  layers.Dense(1, name="head")])  # fmt: skip
    model = apply_policy(model, Policy("mixed_float16"))
    x = np.array([[1, 4], [4, 4]], "int32")
    expected = gradients(model, x)
    set_layer_scales(model, {"tokens": 2.0**6})
    for new, old in zip(gradients(model, x), expected, strict=True):
        np.testing.assert_array_equal(new, old)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape, at_layer_scales(model):
            loss = tf.reduce_sum(tf.cast(model(x), "float32"))
        found = tape.gradient(loss, model.trainable_variables[0].value)
        assert isinstance(found, tf.IndexedSlices) and found.values.dtype == tf.float32


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
def test_inside_a_recurrent_layer_and_attention(mode):
    """Weights read in a loop, and layers inside a layer, go with it."""
    keras.utils.set_random_seed(2)
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    inputs = keras.Input((5, 4))
    y = layers.LSTM(4, return_sequences=True, name="lstm", use_cudnn=False)(inputs)
    model = keras.Model(inputs, layers.MultiHeadAttention(2, 3, name="attention")(y, y))
    expected = gradients(model, x, mode=mode)
    put_onto(model, {"lstm": 2.0**11, "attention": 2.0**-4, "query": 2.0**7})
    for new, old in zip(gradients(model, x, mode=mode), expected, strict=True):
        np.testing.assert_allclose(new, old, rtol=2e-6, atol=1e-8)  # XLA fuses anew around the factors


def test_a_pattern_takes_all_inside_and_the_last_one_wins():
    model = sequential()
    set_layer_scales(model, {"*": 4.0, "h*": 2.0**-3})
    assert factors_by_layer(model) == {"net/low": 4.0, "relu": 4.0, "net/high": 2.0**-3}  # and not the float32 head
    assert layer_scales(model).description == "low relu x 2^2, high x 2^-3"
    set_layer_scales(model, {})
    assert layer_scales(model) is None


def test_a_model_without_float16_has_none():
    model = sequential("mixed_bfloat16")
    assert set_layer_scales(model, {"low": 4.0}) is None


def test_the_model_is_as_before_outside():
    model = sequential()
    set_layer_scales(model, {"low": 4.0})
    held = [dict(vars(holder)) for holder in (*model.layers, *model.variables)]
    with at_layer_scales(model):
        assert "call" in vars(model.layers[0])
    assert [dict(vars(holder)) for holder in (*model.layers, *model.variables)] == held


def test_an_unknown_layer_is_refused():
    with pytest.raises(ValueError, match=r"no layer matches the pattern 'lwo'. The model's layers are: low, relu, hi"):
        set_layer_scales(sequential(), {"lwo": 2.0})


def test_a_layer_in_float32_is_left_as_it_is():
    assert set_layer_scales(sequential(), {"head": 2.0}) is None
    assert set_layer_scales(sequential(), {"head": 2.0, "low": 2.0}).idle == ("head",)


def test_weights_in_float16_are_refused():
    with pytest.raises(ValueError, match=r"low' must have weights in float32, .* Use mixed_float16"):
        set_layer_scales(sequential("float16"), {"low": 2.0})


def test_a_layer_that_another_one_runs_is_refused():
    with Policy("mixed_float16").scope():
        inside = layers.Dense(2, name="inside")
        model = keras.Sequential([keras.Input((3, 4)), layers.TimeDistributed(inside, name="each")])
    with pytest.raises(ValueError, match=r"can't have a scale of its own: TimeDistributed 'each' runs it. Name 'each'"):
        set_layer_scales(model, {"*inside": 2.0})
    assert len(set_layer_scales(model, {"each": 2.0}).scaled) == 2
