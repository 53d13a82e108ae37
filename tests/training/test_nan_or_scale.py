"""Whether nan in the gradients is the scale's doing or a bug: what the console and the verdict say of it."""


import keras
import numpy as np
import pytest
from backends import BACKEND
from keras import layers, ops

import mpt_cli as mpt
from mpt_cli.telemetry import health as v

BUG = "a bug of the model or data"
SETTINGS = {"logger.console": "plain", "trainer.gradient_health_every_steps": None, "trainer.log_every_steps": 1,
            "trainer.jit_compile": BACKEND == "jax", "trainer.save_model": False, "trainer.monitor": None}  # fmt: skip
STEPS, BATCH = 32, 4
BAD = (6, 13, 20, 27)  # steps with an example of zeros


def recurrent():
    return [keras.Input((6, 4)), layers.GRU(8)]


def compiled(net):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([*net(), layers.Dense(2, dtype="float32")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def examples(bad=()):
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 6, 4)).astype("float32")
    y = (x.sum((1, 2)) > 0).astype("int32")
    for step in bad:
        x[(step - 1) * BATCH] = 0.0
    return x, y


def fit(net, folder, bad=(), epochs=1, **scaling):
    x, y = examples(bad)
    return mpt.fit(compiled(net), x, y, batch_size=BATCH, epochs=epochs, shuffle=False, policy="mixed_float16",
                   loss_scale={"mode": "dynamic", **scaling}, run_dir=folder / "run", settings=SETTINGS)  # fmt: skip


class Spoiling(layers.Layer):
    """Finite; its gradient is nan where the input is 0."""

    def call(self, x):
        return x + ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True))


def buggy():
    spoiled = [layers.Dense(8, use_bias=False), Spoiling(dtype="float32"), layers.Dense(8)]
    return [keras.Input((6, 4)), layers.Flatten(), *spoiled]


@pytest.mark.slow
def test_a_recurrent_net_that_probes_its_highest_scale_is_no_bug(tmp_path, capsys):
    """A GRU on TensorFlow leaves nan alone when it overflows there, again and again."""
    run = fit(recurrent, tmp_path, epochs=4, initial_scale=2.0**40, max_scale=2.0**40, growth_steps=4)
    skips = [event for event in run.events if event["kind"] == "overflow"]
    assert sum(not event["inf"] for event in skips) > 3  # had nan and no inf, or the net shows nothing
    assert run.summary["applied_steps"] == 4 * STEPS - len(skips) > 0
    assert run.verdict not in (v.BAD_VALUES, v.NEVER_TRAINED)
    assert "for the third time" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_nan_of_the_model_is_told_at_the_third_time(tmp_path, capsys):
    run = fit(buggy, tmp_path, bad=BAD, initial_scale=2.0**8)
    assert [e["step"] for e in run.events if e["kind"] == "overflow" and not e["inf"]] == list(BAD)
    assert "nan without inf for the third time" in capsys.readouterr().out
    assert run.verdict == v.BAD_VALUES and BUG in run.explanation
