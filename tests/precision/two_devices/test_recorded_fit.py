"""Keras's own `fit` on two devices, recorded: the events and counters that the written rule makes of its bad steps."""

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on
from reference import ReferenceScale, every_pattern

from mpt_cli import Policy, Recorder, Run
from mpt_cli.errors import ConfigError

QUIET = {"logger.console": "quiet", "trainer.log_every_steps": 10}
PATTERN = every_pattern(5)  # 32 steps, an epoch, bad on the second device
RULE = {"growth_steps": 2, "min_scale": 16.0, "max_scale": 128.0, "hysteresis": 2}
SCALING = {"initial_scale": 64.0, **RULE, "max_consecutive_skips": None, "max_skip_rate": None,
           "max_skips_at_floor": None}  # fmt: skip
X = np.random.default_rng(0).normal(size=(128, 8)).astype("float32")
Y = (X.sum(1) > 0).astype("int32")
X[3::4][~np.array(PATTERN)] = 6e4  # beyond float16 behind the first layer


def recorded(scope, run_dir, **options) -> Run:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    with scope(), Policy("mixed_float16").scope():
        head = layers.Dense(2, dtype="float32")
        model = keras.Sequential([keras.Input((8,)), layers.Rescaling(4.0), layers.Dense(16, "relu"),
                                  layers.BatchNormalization(), head])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        options = {"jit_compile": BACKEND == "jax", **options}
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], auto_scale_loss=False, **options)
        recorder = Recorder(run_dir, loss_scale=SCALING, settings=QUIET)
        model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[recorder])
    return recorder.run


@pytest.mark.parametrize("steps", [1] if BACKEND == "tensorflow" else [1, 64])
def test_a_recorder_on_two_devices_sees_the_events_of_the_rule(two_devices, tmp_path, steps):
    run = recorded(two_devices, tmp_path / "run", steps_per_execution=steps)
    rule = ReferenceScale(scale=64.0, **RULE)
    rule.run(PATTERN * 2)
    assert [(e["step"], e["kind"], e["scale_before"], e["scale_after"]) for e in run.events] == rule.events
    assert (run.summary["steps_seen"], run.summary["skipped_steps"]) == (64, rule.skipped) == (64, 32)
    assert run.summary["final_loss_scale"] == rule.scale
    if steps == 1:
        assert [line["step"] for line in run.lines if not line["epoch_end"]] == [10, 20, 30, 40, 50, 60]


@only_on("tensorflow")
def test_what_keras_can_not_do_on_replicas_is_said_before(two_devices, tmp_path):
    with pytest.raises(ConfigError, match=r"Recorder: Keras's `fit` on 2 replicas works with `steps_per_execution=1`"):
        recorded(two_devices, tmp_path / "refused", steps_per_execution=4)
    assert not (tmp_path / "refused").exists()
