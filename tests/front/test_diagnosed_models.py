"""`mpt.diagnose(model, x, y)`: what `mpt diagnose` finds, of objects, which stay as they are."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import ops

import mpt_cli as mpt
from mpt_cli.diagnose.report import sentences
from mpt_cli.diagnose.safe_windows import GradientCounts, LayerRange
from mpt_cli.errors import ConfigError
from mpt_cli.precision.gradients.exponent_counts import EXPONENT_BIAS, SLOTS

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 6)).astype("float32"), RNG.normal(size=(64, 2)).astype("float32")
QUIET = {"batches": 2, "quiet": True, "batch_size": 16}


def net(policy: str = "float32"):
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
    assert found.policy.name == "mixed_float16" and found.step == 3
    assert [layer.name for layer in found.layers if layer.window is not None] == ["hidden"]
    assert found.window is not None and found.window.lowest_power <= np.log2(found.recommended)
    assert np.log2(found.recommended) < found.window.highest_power
    scale = f"loss_scale.initial_scale=2**{int(np.log2(found.recommended))}"
    assert [line.partition(": ")[0] for line in str(found).splitlines()] == ["finding", "set", "evidence"]
    assert f"\nset: {scale}" in str(found) or f"{scale} leaves" in str(found)
    after = [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.layers[1].compute_dtype == "float32" and type(model.optimizer) is keras.optimizers.Adam

    first = mpt.diagnose(net("mixed_float16"), X, Y, **QUIET)
    light = mpt.diagnose(net("mixed_float16"), X, Y, sample_weight=np.full(len(X), 2.0**-3), **QUIET)
    assert light.window.highest_power == first.window.highest_power + 3  # gradients are that much smaller


def test_digits_are_those_of_the_dtypes_that_the_model_has_and_scales_are_of_the_model_without_their_layer():
    """float16 has steps of 1/16 at 100, bfloat16 of 1/2."""
    x, model = 100 + 0.25 * X, net("mixed_bfloat16")
    model.layers[1].kernel.assign(model.layers[1].kernel / 100)  # else tanh is 1 throughout
    found = mpt.diagnose(model, x, Y, **QUIET)
    lost, of_float16 = found.digits, mpt.diagnose(model, x, Y, policy="mixed_float16", **QUIET).digits
    assert lost is not None and of_float16 is not None and lost.noise > 16 * of_float16.noise
    assert found.keep_in_float32 == lost.remedy == ["hidden"] and found.window is None
    assert '\nset: dtype="float32" where you make layer hidden\n' in str(found)
    assert not any("no scale fits" in text for _, text in sentences(found))
    assert {layer.dtype_policy.name for layer in model.layers[1:]} == {"mixed_bfloat16", "float32"}


def test_inputs_beyond_float16_are_refused_only_where_a_layer_in_float16_reads_them():
    ids, raw = keras.Input((2,), dtype="int32"), keras.Input((3,))
    with mpt.Policy("mixed_float16").scope():
        for name in ("float32", "mixed_float16"):
            lifted = keras.layers.Dense(4, "tanh", dtype=name)(raw)
            lifted = keras.layers.Concatenate()([keras.layers.Flatten()(keras.layers.Embedding(10, 4)(ids)), lifted])
            model = keras.Model([ids, raw], keras.layers.Dense(2, dtype="float32")(lifted))
            model.compile("sgd", "mse", jit_compile=False)
            x = [np.zeros((64, 2), int), np.eye(64, 3, -9, "float32") * -1e6]
            if name == "float32":
                assert mpt.diagnose(model, x, Y, **QUIET).recommended
    with pytest.raises(ConfigError, match=r"^data: inputs reach 1e\+06, and float16 holds none above 65504"):
        mpt.diagnose(model, x, Y, **QUIET)


class Own(keras.Model):
    """No config, a Lambda, a loss in its call, and one that is registered nowhere."""

    def __init__(self, size: int):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation=lambda x: ops.tanh(x))
        self.twice = keras.layers.Lambda(lambda x: 2 * x)
        self.head = keras.layers.Dense(size, dtype="float32")

    def call(self, x):
        x = self.twice(self.hidden(x))
        self.add_loss(0.5 * ops.mean(ops.square(ops.cast(x, "float32"))))
        return self.head(x)


class WithLoss(Own):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - ops.cast(y_pred, y.dtype))) + sum(self.losses)


@pytest.mark.parametrize(
    ("kind", "loss", "policy"),
    [(Own, lambda y, y_pred: ops.mean(ops.square(y - y_pred)), None), (WithLoss, None, "mixed_bfloat16")],
)
def test_a_model_that_only_its_author_can_make_again_is_examined_itself(kind, loss, policy):
    keras.utils.set_random_seed(1)
    model = kind(2)
    model.compile(keras.optimizers.SGD(0.125), loss, jit_compile=False)
    given = {"policy": policy} if policy else {}
    with mpt.Policy("float32").scope():
        model.fit(X, Y, batch_size=32, verbose=0)
    before = [*map(np.array, model.get_weights())]
    found = mpt.diagnose(model, X, Y, after_steps=2, **given, **QUIET)
    assert (found.policy.name, found.step) == ("mixed_float16", 2)
    assert found.recommended is not None and not found.faults
    assert (policy is None) == ("; mixed_bfloat16 needs no loss scale" not in str(found))
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert type(model.optimizer) is keras.optimizers.SGD and int(model.optimizer.iterations) == 2
    model.fit(X, Y, batch_size=32, verbose=0)
    assert int(model.optimizer.iterations) == 4


def compiled(model: keras.Model):
    model.compile("sgd", "mse", jit_compile=False)
    return model


def large(stddev: float):
    return keras.initializers.RandomNormal(stddev=stddev, seed=1)


def attending(**its_dtype: str):
    inputs = keras.Input((3, 2))
    attention = keras.layers.MultiHeadAttention(1, 8, name="attend", kernel_initializer=large(3.0), **its_dtype)
    x = keras.layers.Dense(8, name="down")(attention(inputs, inputs))
    return compiled(keras.Model(inputs, keras.layers.Dense(2, name="head")(keras.layers.Flatten()(x))))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float16 attention on a CPU")
def test_what_overflows_inside_a_layer_of_keras_is_named_by_that_layer_and_mended_where_it_is_made():
    x = np.tile(100 * X.reshape(-1, 3, 2), (2, 1, 1))[:64]
    found = mpt.diagnose(attending(), x, Y, **QUIET)
    assert str(found).startswith("finding: layer attend overflowed in the forward pass")
    assert found.keep_in_float32 == ["attend"] and found.is_safe
    again = mpt.diagnose(attending(dtype="float32"), x, Y, **QUIET)
    assert not again.mended and not again.keep_in_float32 and again.is_safe
    assert "under mixed_float16, with gradients of 2 layers (attend, head) not in float16, as mpt.fit trains it" in str(
        again
    )


class Residual(keras.Model):
    def __init__(self):
        super().__init__()
        self.more = keras.layers.Dense(6, name="more")
        self.big = keras.layers.Dense(6, kernel_initializer=large(60000.0), name="big")
        self.small = keras.layers.Dense(6, kernel_initializer=large(1e-5), name="small")
        self.last = keras.layers.Dense(2, dtype="float32", name="last")

    def call(self, x):
        x = self.more(x) + x
        return self.last(x + self.small(self.big(x)))


@pytest.mark.slow
def test_a_sum_that_takes_no_float32_leaves_the_remedy_untried():
    model = compiled(Residual())
    model(X)
    found = mpt.diagnose(model, X, Y, **QUIET)
    assert found.mended or found.faults["residual/big"] == "overflowed"
    if keras.backend.backend() == "tensorflow":  # JAX adds float16 and float32
        assert "residual/big in float32 may (not tried: model: layer residual (Residual) must give AddV2" in str(found)
    else:
        assert found.is_safe and "residual/big" in found.keep_in_float32


class Scores(keras.Layer):
    """A product between its layers."""

    def __init__(self):
        super().__init__(name="scores")
        self.first = keras.layers.Dense(8, kernel_initializer=large(30.0), dtype=self.dtype_policy)

    def call(self, x):
        return ops.log1p(self.first(x) ** 2 * ops.square(self.first(x)))


@pytest.mark.slow
def test_a_layer_that_overflows_between_the_layers_inside_it_is_the_one_named():
    inputs = keras.Input((6,))
    x = keras.layers.LayerNormalization(name="norm")(Scores()(inputs))
    found = mpt.diagnose(compiled(keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(8)(x)))), X, Y, **QUIET)
    assert "scores" in found.mended and found.keep_in_float32 == ["scores"] and found.is_safe


@pytest.mark.slow
def test_a_layer_that_only_meets_an_overflow_in_a_plain_operation_stays_in_float16():
    inputs = keras.Input((6,))
    big, beside = keras.layers.Rescaling(1e5, name="big")(inputs), keras.layers.Dense(6, name="beside")(inputs)
    stacked = ops.stack([big + 1, beside + 1], -1)
    outputs = keras.layers.Rescaling(1e-5, dtype="float32")(stacked)
    found = mpt.diagnose(compiled(keras.Model(inputs, outputs)), X, np.zeros((len(X), 6, 2)), **QUIET)
    assert found.keep_in_float32 == ["big"] and found.is_safe


class Lengths(keras.Layer):
    """1e-12 is 0 in float16, and the square root has no gradient at 0."""

    def call(self, x):
        return ops.sqrt(ops.square(x) + 1e-12)


def test_a_layer_without_weights_whose_gradient_is_nan_in_float16_alone_is_named():
    inputs = keras.Input((6,))
    first = keras.layers.Dense(6, use_bias=False, kernel_initializer="identity", name="first")(inputs)
    outputs = keras.layers.Dense(2)(keras.layers.Dense(4)(Lengths(name="lengths")(first)))
    x = np.where(np.arange(6) == 0, 0, X)
    found = mpt.diagnose(compiled(keras.Model(inputs, outputs)), x, Y, **QUIET)
    assert found.keep_in_float32 == ["lengths"] and found.is_safe


@pytest.mark.slow
def test_digits_that_an_overflow_hides_are_found_behind_it():
    inputs = keras.Input((6,))
    lost = keras.layers.Rescaling(1e-13, name="cool")(keras.layers.Rescaling(1e5, name="big")(inputs))
    apart = keras.layers.Dense(6, use_bias=False, name="apart")(inputs)
    model = compiled(keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Add()([lost, apart]))))
    model.get_layer("apart").kernel.assign(np.eye(6) - np.roll(np.eye(6), 1, 0))  # takes off the common offset
    found = mpt.diagnose(model, 1000 + 0.25 * X, Y, **QUIET)
    assert found.digits.remedy == ["apart"] and {"big", "apart"} <= {*found.keep_in_float32}
    assert str(found).startswith("finding: with layer big, lost in the forward pass, in float32: Half precision loses")


@pytest.mark.slow
def test_a_batch_that_lost_its_loss_on_the_way_is_measured_though_it_is_rare():
    x = np.full((64, 6), 1e-3, "float32")
    x[-1] = 1000
    first, last = keras.layers.Dense(6, kernel_initializer="ones"), keras.layers.Dense(2)
    model = compiled(keras.Sequential([keras.Input((6,)), first, keras.layers.Rescaling(1e3, name="big"), last]))
    found = mpt.diagnose(model, x, Y[:1].repeat(64, 0), after_steps=4, **QUIET)
    assert next(iter(found.mended)).endswith("big"), str(found)


class Mixing(Own):
    def __init__(self, size: int):
        super().__init__(size)
        self.head = keras.layers.Dense(size)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred))


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX mixes dtypes")
def test_a_loss_that_mixes_dtypes_is_told_by_its_place():
    mixing = Mixing(2)
    mixing.compile("sgd", None, jit_compile=False)
    with pytest.raises(ConfigError, match=r"model: it must give Sub one dtype .*in compute_loss.*float16 × float32"):
        mpt.diagnose(mixing, X, Y, **QUIET)


class Summing(Mixing):
    def compute_loss(self, x, y, y_pred, *_, **__):
        return ops.log(ops.sum(ops.exp(y_pred + 10)))


def test_where_the_loss_overflows_in_the_dtype_of_the_outputs_their_layer_is_named():
    with mpt.Policy("mixed_float16").scope():
        model = compiled(Summing(2))
    found = mpt.diagnose(model, X, Y, **QUIET)
    assert found.keep_in_float32 == [model.head.path] and found.is_safe
    assert "measured at step 0, 2 batches of 16 under mixed_float16, with gradients of layer summing/" in str(found)


def test_what_can_not_be_diagnosed_is_said():
    for words, call in {
        r"y: must be given with arrays": lambda: mpt.diagnose(net(), X, **QUIET),
        r"model: must be a keras.Model": lambda: mpt.diagnose("conf=digits_mlp", X),
    }.items():
        with pytest.raises(ConfigError, match=words):
            call()


@pytest.mark.slow
def test_layers_whose_scales_exclude_each_other_are_named_with_what_each_needs():
    found = mpt.diagnose(net(), X, Y, **QUIET)
    rows = []
    for name, exponent in (("large", 20), ("tiny", -60)):
        counts = np.zeros(SLOTS)
        counts[EXPONENT_BIAS + exponent] = 9
        rows.append(LayerRange(name, "float16", None, GradientCounts(counts, "float16", of_weights=True)))
    clash = replace(found, layers=rows, highest_safe=-7, recommended=None)
    low = rows[1].window.lowest_power
    assert (
        "finding: no loss scale fits: gradients overflow above 2**-7 (by their sizes, those of layer large first), and "
        f"those of layer tiny need 2**{low}, below which float16 flushes them"
    ) in str(clash)


def test_a_model_with_its_own_train_step_is_refused_at_once_for_that_reason():
    class Own(keras.Sequential):
        def train_step(self, *data):
            raise AssertionError("nothing is traced")

    with pytest.raises(ConfigError, match="Own has its own train_step, whose gradients can't be inspected"):
        mpt.diagnose(compiled(Own([keras.Input((6,)), keras.layers.Dense(2)])), X, Y, **QUIET)
