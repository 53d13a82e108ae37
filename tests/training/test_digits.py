"""Nets that half precision robs of digits, and what is said of them; `mpt.fit` and scripts."""

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on
from keras import layers
from strict import lines

import mpt_cli as mpt
from mpt_cli.samples import gradient_samples
from mpt_cli.samples.lost_digits import measure_digits

DIGITS_LOST = "digits lost"
QUIET = {"logger.console": "quiet", "trainer.save_model": False}


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def fit(tmp_path, net, x, y, loss="mse", epochs=1, policy="mixed_bfloat16", rate=0.01, **others):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(x.shape[1:]), *net])
    model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False, **others.pop("compiled", {}))
    return mpt.fit(
        model, x, y, policy=policy, epochs=epochs, batch_size=64, run_dir=tmp_path / policy, settings=QUIET, **others
    )


def identifiers(draw):
    x = draw.integers(0, 3000, (512, 1)).astype("float32")
    return [layers.Reshape(()), layers.Embedding(3000, 4), layers.Dense(1)], x, x % 2


def offsets(draw):
    x = (100 + 0.05 * draw.normal(size=(512, 4))).astype("float32")
    return [layers.Dense(8, "relu", name="first"), layers.Dense(1)], x, (x - 100).sum(1, keepdims=True)


def waves(draw):
    """Of which float16 leaves so much that only the loss shows the harm."""
    x = draw.uniform(size=(512, 1)).astype("float32")
    both = lambda t: keras.ops.concatenate([keras.ops.sin(402 * t), keras.ops.cos(402 * t)], -1)  # noqa: E731
    return [layers.Lambda(both, name="waves"), layers.Dense(32, "tanh"), layers.Dense(1)], x, np.sin(402 * x)


def positions(draw):
    """Which a net learns as float16 rounds them: in float32 its loss is no lower, and would be if trained there."""
    x = draw.uniform(size=(512, 1)).astype("float32")

    def encoded(t):
        angles = 2 * np.pi * t * keras.ops.cast(2.0 ** np.arange(8), t.dtype)
        return keras.ops.concatenate([keras.ops.sin(angles), keras.ops.cos(angles)], -1)

    net = [layers.Lambda(encoded, name="encoded"), layers.Dense(64, "relu"), layers.Dense(1)]
    return net, x, np.sin(2 * np.pi * 64 * x)


@pytest.mark.parametrize(
    ("net", "layer", "policy", "epochs"),
    [
        (identifiers, "reshape", "mixed_bfloat16", 1),
        (offsets, "first", "mixed_bfloat16", 1),
        (waves, "waves", "mixed_float16", 20),
        (positions, "encoded", "mixed_float16", 60),
        pytest.param(waves, "waves", "mixed_bfloat16", 1, marks=pytest.mark.long),
    ],
)
def test_the_layer_that_loses_digits_is_named_and_its_remedy_was_tried(net, layer, policy, epochs, tmp_path):
    parts, x, y = net(np.random.default_rng(0))
    run = fit(tmp_path, parts, x, y, policy=policy, epochs=epochs)
    assert run.verdict == DIGITS_LOST, run.explanation
    assert run.explanation.count(f'dtype="float32" where you make layer {layer}') == 1, run.explanation
    sample = run.summary["gradients"]
    assert sample["output_noise"] > 0.002 and sample["output_noise_left"] <= sample["output_noise"] / 4


def test_a_layer_of_which_nothing_is_left_is_named_though_the_outputs_hardly_depend_on_it():
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.normal(size=(64, 1)), draw.integers(19_000, 20_500, (64, 1))], 1).astype("float32")
    inputs = keras.Input((2,))
    week = layers.Lambda(lambda day: keras.ops.sin(0.8975979 * day), dtype="mixed_float16", name="week")(inputs[:, 1:])
    outputs = inputs[:, :1] + layers.Rescaling(0.1, dtype="float32")(week)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    found = measure_digits(model, [(x, draw.normal(size=(64, 1)))])
    assert found is not None and 0.002 < found.noise < 0.02 and found.layers == ("week",), found


def test_of_a_recurrent_layer_its_maker_is_named_not_its_cell():
    """The layer casts what its cell reads."""
    x = 100 + 0.1 * normal(64, 5, 2)
    keras.utils.set_random_seed(0)
    gru = layers.GRU(4, kernel_initializer=keras.initializers.RandomNormal(0.0, 0.01), dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((5, 2)), gru, layers.Dense(1, dtype="float32")])
    model.compile("sgd", "mse")
    found = measure_digits(model, [(x, x[:, -1, :1])])
    assert found is not None and found.remedy == [gru.name] and found.noise_left < 0.002 < found.noise, found


class Centred(layers.Layer):
    """Subtracts a running mean that it keeps by hand, in the dtype that it computes in."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer=keras.initializers.Constant(28.0), trainable=False)

    def call(self, x, training=False):
        mean = keras.ops.cast(self.mean, self.compute_dtype)
        if training:
            self.mean.assign(mean + 0.005 * (keras.ops.mean(x, 0) - mean))
        return x - mean


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_a_running_mean_that_half_precision_stops_is_named(policy):
    """The mean of the data is 29: 0.005 is lost beside 28, where float16 has steps of 2^-6 and bfloat16 of 2^-3."""
    x = 29 + normal(64, 4)
    model = keras.Sequential([keras.Input((4,)), Centred(dtype=policy, name="centred"), layers.Dense(1)])
    model.compile("sgd", "mse")
    found = measure_digits(model, [(x, x[:, :1])])
    assert found is not None and found.remedy == ([] if policy == "float32" else ["centred"]), found
    assert ("running mean, does not move" in found.sentence) == (policy != "float32")
    assert model.layers[0].mean.numpy().tolist() == [28.0] * 4


def test_auto_float16_computes_the_layer_in_float32_from_the_start(tmp_path):
    parts, x, y = identifiers(np.random.default_rng(0))
    run = fit(tmp_path, parts, x, y, policy="auto_float16")
    assert run.verdict == "healthy", run.explanation
    assert run.summary["gradients"]["output_noise"] < 0.002
    assert "  overrides:\n    reshape" in (tmp_path / "auto_float16" / "config.yaml").read_text()


def test_a_few_examples_that_overflow_inside_a_layer_are_found(tmp_path):
    """None of them is in the last batch, and no output is inf or nan: their sum of squares is inf."""
    x = normal(512, 16)
    x[:30] *= 200
    y = x[:, :1] / np.linalg.norm(x, axis=1, keepdims=True)
    net = [layers.UnitNormalization(name="level"), layers.Dense(1)]
    run = fit(tmp_path, net, x, y, policy="mixed_float16", shuffle=False)
    assert run.verdict == DIGITS_LOST and "where you make layer level" in run.explanation, run.explanation


@pytest.mark.parametrize("policy", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.long)])
def test_a_net_that_trains_as_in_float32_loses_none(tmp_path, policy):
    x = normal(512, 16)
    hidden = [layers.Dense(32, "tanh") for _ in range(8)]
    run = fit(tmp_path, [*hidden, layers.Dense(1)], x, x[:, :1] * x[:, 1:2], policy=policy)
    assert run.verdict == "healthy", run.explanation
    assert run.summary["gradients"]["output_noise"] < 0.002


@only_on("tensorflow")  # JAX takes no unseeded draw
def test_a_model_that_draws_random_numbers_in_inference_is_not_blamed(tmp_path):
    noise = layers.Lambda(lambda t: t + keras.random.normal(keras.ops.shape(t), dtype=t.dtype), output_shape=(4,))
    x = np.ones((64, 4), "float32")
    assert fit(tmp_path, [noise, layers.Dense(1)], x, x[:, :1]).verdict != DIGITS_LOST


def test_a_short_run_is_sampled_at_its_end(tmp_path):
    x = normal(256, 8)
    net = [*[layers.Dense(8, "tanh") for _ in range(3)], layers.Dense(1)]
    run = fit(
        tmp_path,
        net,
        x,
        1e-6 * x[:, :1],
        "mse",
        policy="mixed_float16",
        loss_scale="none",
        rate=0.0,
        sample_weight=np.full(256, 1e-7, "float32"),
    )
    assert run.summary["steps_seen"] == 4 and run.summary["gradients"]["step"] == 4
    assert run.verdict == "scale too low to matter" and run.summary["gradients"]["flushed_share"] > 0.5


def test_moving_statistics_that_are_still_far_off_lose_no_digits_of_training(tmp_path):
    x = np.full((512, 6), 300, "float32")
    x[:, 0] = np.random.default_rng(0).normal(size=512)
    run = fit(tmp_path, [layers.BatchNormalization(), layers.Dense(8, "relu"), layers.Dense(1)], x, x[:, :1])
    assert run.summary["gradients"]["output_noise"] < 0.02 and run.verdict == "healthy", run.explanation


def test_a_short_run_that_compiles_its_sample_has_one_too(tmp_path):
    x = normal(64, 5, 2)
    run = fit(tmp_path, [layers.GRU(4), layers.Dense(1)], x, x[:, 0, :1], policy="mixed_float16")
    assert run.summary["steps_seen"] == 1 and run.verdict == "healthy", run.explanation
    assert run.summary["gradients"]["output_noise"] < 0.002


def test_augmentation_that_has_no_gradient_in_bfloat16_is_sampled(tmp_path):
    x = normal(64, 8, 8, 1)
    net = [layers.Rescaling(1e-3), layers.RandomRotation(0.1, fill_mode="nearest"), layers.Flatten(), layers.Dense(1)]
    run = fit(tmp_path, net, x, x.mean((1, 2)))
    assert run.verdict == "healthy" and run.summary["gradients"]["step"] == 1, run.explanation
    rows = lines(tmp_path / "mixed_bfloat16" / "layers.jsonl")
    first = next(row for row in rows if "rescaling" in row["layer"])
    assert (first["kind"], first["values"]) == ("activations", 64 * 64), "what stands before it is counted all the same"


def test_without_samples_a_run_in_half_precision_is_not_checked(tmp_path):
    x = np.ones((64, 2), "float32")
    run = mpt.fit(
        compiled(),
        x,
        x[:, :1],
        policy="mixed_float16",
        run_dir=tmp_path / "run",
        settings={**QUIET, "trainer.gradient_health_every_steps": None},
    )
    assert run.verdict == "not checked"
    assert run.explanation.endswith("was not checked: set trainer.gradient_health_every_steps=auto to check it.")


def compiled(loss="mse", rate=0.01):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), layers.Dense(4), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), loss, jit_compile=False)
    return model


def test_a_hinge_loss_that_is_met_is_not_stopped(tmp_path):
    x = np.array([[4.0, 0.0], [-4.0, 0.0]] * 32, "float32")
    run = mpt.fit(
        compiled("hinge", 0.5),
        x,
        np.sign(x[:, :1]),
        policy="mixed_float16",
        epochs=60,
        batch_size=32,
        run_dir=tmp_path / "run",
        settings=QUIET,
    )
    assert run.summary["metrics"]["loss"] == 0.0 and run.summary["exit_code"] == 0, run.explanation
    assert run.summary["steps_seen"] == 120 and run.verdict == "warm-up skips only", run.explanation


def test_a_head_without_a_loss_weight_is_not_dead(tmp_path):
    inputs = keras.Input((2,))
    shared = layers.Dense(4, "relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(1, name="kept")(shared), layers.Dense(1, name="idle")(shared)])
    model.compile("sgd", ["mse", "mse"], loss_weights=[1.0, 0.0], jit_compile=False)
    x = normal(64, 2)
    run = mpt.fit(model, x, [x[:, :1], x[:, 1:]], policy="mixed_float16", run_dir=tmp_path / "run", settings=QUIET)
    assert run.verdict == "healthy" and run.summary["gradients"]["faults"] == {}, run.explanation


def test_targets_of_a_million_flush_nothing_and_are_not_said_to(tmp_path):
    x = normal(512, 2)
    run = mpt.fit(
        compiled(rate=1e-7),
        x,
        1e6 * x[:, :1],
        policy="mixed_float16",
        epochs=8,
        run_dir=tmp_path / "run",
        settings=QUIET,
    )
    assert run.summary["final_loss_scale"] <= 1.0 and run.summary["gradients"]["flushed_share"] == 0.0
    assert run.verdict in ("healthy", "warm-up skips only"), run.explanation


@only_on("tensorflow")
def test_a_fault_that_is_over_by_the_end_is_looked_at_again(tmp_path, monkeypatch):
    """Of outputs that float16 flushes until the second epoch; a sample is free only where it is the first."""
    monkeypatch.setattr(gradient_samples, "EAGER_SECONDS", 0.0)

    class Mend(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if self.mends:
                first.kernel.assign(np.eye(4))

    x = normal(100, 4)
    for Mend.mends, found in ((False, ("vanishing activations", 200)), (True, ("healthy", 200))):
        keras.utils.set_random_seed(0)
        first = layers.Dense(4, kernel_initializer=keras.initializers.Constant(1e-9), name="first")
        first.trainable = False
        inputs = keras.Input((4,))
        model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([inputs, first(inputs)])))
        model.compile("sgd", "mse", jit_compile=False)
        place = tmp_path / str(Mend.mends)
        given = {"policy": "mixed_float16", "epochs": 2, "batch_size": 1, "callbacks": [Mend()]}
        run = mpt.fit(model, x, x[:, :1], run_dir=place, settings=QUIET, **given)
        assert (run.verdict, run.summary["gradients"]["step"]) == found, run.explanation


class Made(keras.Model):
    """Without outputs that are known beforehand, and with a layer that its call makes."""

    def __init__(self):
        super().__init__()
        self.first, self.head = layers.Dense(4, name="first"), layers.Dense(1, dtype="float32")

    def call(self, x):
        return self.head(self.first(x) + layers.Activation("linear")(x))


@only_on("tensorflow")
@pytest.mark.parametrize(("offset", "verdict"), [(100, DIGITS_LOST), (0, "healthy")])
def test_a_subclassed_model_that_makes_layers_in_its_call_is_measured(offset, verdict, tmp_path):
    x = np.random.default_rng(0).normal(0, 0.05, (128, 4)).astype("float32")
    keras.utils.set_random_seed(0)
    with mpt.Policy("mixed_bfloat16").scope():
        model = Made()
        model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
        run = mpt.fit(model, offset + x, x.sum(1), run_dir=tmp_path / "run", settings=QUIET)
    assert run.verdict == verdict and run.summary["gradients"]["output_noise"] is not None, run.explanation
    assert ("up to four layers around first in float32 were tried without" in run.explanation) == (offset > 0)
    assert (run.summary["applied_steps"], run.summary["skipped_steps"]) == (4, 0)


class Clock(keras.Model):
    def __init__(self, **kw):
        super().__init__(**kw)
        self.phase = layers.Lambda(lambda hours: keras.ops.sin(0.2617994 * hours), dtype="mixed_float16", name="phase")

    def call(self, x):
        return self.phase(x)


def test_a_subclassed_model_that_casts_its_inputs_is_told_not_to():
    x = np.random.default_rng(0).uniform(0, 17520, (128, 1)).astype("float32")
    model = Clock(dtype="mixed_float16")
    found = measure_digits(model, [(x, x)], has_loss=False)
    uncast = ["the inputs"] if BACKEND == "tensorflow" else []  # a step on JAX runs `call`, which casts none
    assert [*found.layers] == [*uncast, "clock/phase"] and found.remedy == ["phase"] and model.autocast, found


def test_digits_that_could_not_be_measured_are_said_to_be_unknown(tmp_path):
    run = fit(tmp_path, [layers.Dense(2), layers.Dense(1)], np.ones((64, 2), "float32"), np.ones((64, 1), "float32"))
    assert run.verdict == "healthy" and run.explanation.endswith("enough digits could not be measured.")
