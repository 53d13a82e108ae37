"""Which runs XLA compiles, what a run does that it can't compile, and that this is chosen once for all its attempts."""

import json

import keras
import pytest
from backends import BACKEND, only_on
from command import mpt
from tiny import tiny_data, tiny_model, tiny_run

from mpt_cli.engine.backend import Platform, framework_errors
from mpt_cli.engine.choose_engine import check_layers, choose_jit
from mpt_cli.errors import ConfigError
from mpt_cli.settings.schema import BackendSettings, DistributeSettings, Settings, TrainerSettings

layers = keras.layers
CPU = Platform("tensorflow", "CPU", ("CPU",), gpus=0)
GPU = Platform("tensorflow", "GPU", ("GPU",), gpus=1)
LONG, SHORT = 10**9, 10


def test_when_xla_compiles_and_why_it_does_not():
    convolution = keras.Sequential([keras.Input((4, 1)), layers.Conv1D(2, 2)])
    named_so = keras.Sequential([keras.Input((4,)), type("GraphConv", (layers.Dense,), {})(2)])
    rotated = keras.Sequential([keras.Input((4, 4, 1)), layers.RandomRotation(0.1, name="turn")])
    too_short = "10 steps are too few to repay compiling"
    unknown = "the length of the run is unknown, so compiling may not pay"
    for jit, platform, backend, distribute, model, steps, expected in (
        ("auto", CPU, "tensorflow", "none", tiny_model(), LONG, (True, "")),
        ("auto", CPU, "tensorflow", "none", tiny_model(), SHORT, (False, too_short)),
        ("auto", CPU, "tensorflow", "none", tiny_model(), None, (False, unknown)),
        ("auto", CPU, "tensorflow", "none", convolution, LONG, (False, "slow at convolutions on a CPU")),
        ("auto", CPU, "tensorflow", "none", named_so, LONG, (True, "")),
        ("auto", GPU, "tensorflow", "none", convolution, SHORT, (True, "")),
        ("auto", GPU, "tensorflow", "none", rotated, LONG, (False, "which layer turn does not support")),
        ("auto", GPU, "tensorflow", "mirrored", tiny_model(), LONG, (False, "distribute=mirrored")),
        (True, GPU, "tensorflow", "mirrored", tiny_model(), SHORT, (True, "")),
        (False, GPU, "tensorflow", "none", tiny_model(), LONG, (False, "")),
        ("auto", CPU, "jax", "none", tiny_model(), SHORT, (True, "")),
    ):
        settings = Settings(
            trainer=TrainerSettings(jit_compile=jit),
            distribute=DistributeSettings(distribute),
            backend=BackendSettings(backend),
        )
        choice = choose_jit(settings, platform, model, steps)
        assert (choice.jit_compile, choice.reason) == expected, (jit, platform, distribute, steps)


def test_layers_that_need_tensorflow_are_an_error_on_jax():
    inputs = keras.Input((7,), dtype="int32")
    words = layers.Embedding(9, 4)(layers.Hashing(9, name="hashed")(inputs))
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(words)))
    check_layers("tensorflow", model)
    with pytest.raises(
        ConfigError,
        match=r"model: a step on JAX can't call layers that compute with TensorFlow: "
        r"hashed \(Hashing\)\. Use backend=tensorflow, or apply them to the data, in a data\.loader\.",
    ):
        check_layers("jax", model)


class Unknown(layers.Layer):
    """An identity that XLA can't compile, in training or in validation."""

    def __init__(self, in_training: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.in_training = in_training

    def call(self, x, training=False):
        import tensorflow as tf

        if training is not self.in_training:
            return x
        return x + 0.0 * tf.cast(tf.strings.length(tf.strings.as_string(x)), x.dtype)


def model_with(*more: keras.Layer):
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), *more, layers.Dense(8), layers.BatchNormalization(), layers.Dense(3)])


@only_on("tensorflow")
@pytest.mark.slow
@pytest.mark.parametrize("in_training", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_xla_can_not_compile_is_said_with_the_key(in_training):
    run = tiny_run(tiny_data(22), model=model_with(Unknown(in_training)), jit=True)
    run.feed.start(1)
    chunk = run.feed.take(1)
    message = (
        r"trainer.jit_compile: XLA can't compile this model: .*XLA_CPU_JIT.*AsString.* Set trainer.jit_compile=false\."
    )
    step = run.engine.train if in_training else run.engine.evaluate
    with pytest.raises(ConfigError, match=message), framework_errors(several_processes=False):
        step(chunk.source, chunk.batch_indices, 1)


WORDS = [
    "conf=digits_mlp",
    f"backend={BACKEND}",
    "model.hidden_units=[16]",
    "trainer.max_steps=6",
    "trainer.batch_size=200",
]


@pytest.mark.long
def test_the_choice_is_recorded_and_a_resumed_run_does_not_choose_again(tmp_path):
    """With a billion epochs it would choose XLA; the first attempt of 6 steps did not, on TensorFlow."""
    compiles = BACKEND == "jax"
    done = mpt("train", *WORDS, "run_dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert compiles or "no XLA (6 steps are too few to repay compiling)" in done.stdout
    again = mpt("train", *WORDS, "trainer.epochs=1000000000", "trainer.max_steps=9", "resume=run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "jit_compile" not in again.stdout and "no XLA (" not in again.stdout
    assert f"jit_compile: {str(compiles).lower()}\n" in (tmp_path / "run/config.yaml").read_text()
    assert json.loads((tmp_path / "run/environment.json").read_text())["jit_compile"] is compiles
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["steps_seen"], summary["applied_steps"]) == (9, 9)
