"""Keras's own `fit` on two devices, recorded: the events and counters of the runner's run of the same model."""

import json
from pathlib import Path
from typing import Any

import keras
import pytest
from backends import BACKEND, only_on
from preloaded import mpt
from reference import ReferenceScale, every_pattern

from mpt_cli import Policy, Recorder, Run, load_run
from mpt_cli.errors import ConfigError

QUIET = {"logger.console": "quiet", "trainer.log_every_steps": 10}
PATTERN = every_pattern(5)  # 32 steps, an epoch, bad on the second device
RULE = {"growth_steps": 2, "min_scale": 16.0, "max_scale": 128.0, "hysteresis": 2}
SCALING = {"initial_scale": 64.0, **RULE, "max_consecutive_skips": None, "max_skip_rate": None,
           "max_skips_at_floor": None}  # fmt: skip
STEPS = [1] if BACKEND == "tensorflow" else [1, 4, 64]
DEVICES = {"tensorflow": "mirrored", "jax": "data_parallel"}[BACKEND]
PARTS = f'''
import keras
import numpy as np

def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 8)).astype("float32")
    for step in {[step for step, good in enumerate(PATTERN, 1) if not good]}:
        x[step * 4 - 1] = 6e4  # beyond float16 behind the first layer
    return x, (x.sum(1) > 0).astype("int32")

def net():
    layers, drawn = keras.layers, keras.initializers.GlorotUniform
    return keras.Sequential([
        keras.Input((8,)), layers.Rescaling(4.0), layers.Dense(16, "relu", name="hidden", kernel_initializer=drawn(1)),
        layers.BatchNormalization(name="norm"),
        layers.Dense(2, dtype="float32", name="head", kernel_initializer=drawn(2)),
    ], name="net")
'''  # fmt: skip
RECIPE = f"""
defaults: [{{policy: mixed_float16}}, {{distribute: {DEVICES}}}, {{optimizer: sgd}}, {{backend: {BACKEND}}}, _self_]
recipe: two
model: {{name: builder, builder: "parts:net"}}
data: {{name: loader, loader: "parts:data", validation_fraction: 0.0}}
distribute: {{devices: 2}}
loss_scale: {json.dumps({"mode": "dynamic", **SCALING})}
"""


@pytest.fixture
def two_devices(request):
    if BACKEND == "tensorflow":
        return request.getfixturevalue("strategy").scope
    devices = keras.distribution.list_devices()
    assert len(devices) == 2
    return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False).scope


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(PARTS, found)
    return found


def events(path: Path) -> list[dict[str, Any]]:
    """Without what is found by sending a batch through again, and with what they name by its name alone."""
    lines = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in ("layer", "fault", "variable")}
            for line in lines]  # fmt: skip


def recorded(parts, scope, run_dir, **options) -> Run:
    keras.utils.set_random_seed(1)
    with scope(), Policy("mixed_float16").scope():
        model = parts["net"]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        options = {"jit_compile": BACKEND == "jax", **options}
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], auto_scale_loss=False, **options)
        recorder = Recorder(run_dir, loss_scale=SCALING, settings=QUIET)
        model.fit(*parts["data"](), batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[recorder])
    return recorder.run


COUNTERS = ("steps_seen", "applied_steps", "skipped_steps", "final_loss_scale", "min_loss_scale", "verdict")


def test_a_recorder_on_two_devices_sees_what_the_runner_sees(two_devices, parts):
    Path("recipe.yaml").write_text(RECIPE)
    done = mpt("train", "conf=recipe.yaml", "run_dir=own", "trainer.epochs=2", "trainer.batch_size=4",
               "trainer.shuffle=false", "optimizer.learning_rate=0.1", "trainer.log_every_steps=10",
               "logger.console=quiet", cwd=Path(), backend=BACKEND)  # fmt: skip
    assert done.returncode == 0, done.stderr
    own = load_run("own")
    rule = ReferenceScale(scale=64.0, **RULE)
    rule.run(PATTERN * 2)
    assert [(e["step"], e["kind"], e["scale_before"], e["scale_after"]) for e in own.events] == rule.events
    assert (own.summary["steps_seen"], own.summary["skipped_steps"]) == (64, rule.skipped) == (64, 32)
    for steps in STEPS:
        run = recorded(parts, two_devices, Path(f"recorded-{steps}"), steps_per_execution=steps)
        assert events(run.path) == events(own.path), steps
        assert [run.summary[name] for name in COUNTERS] == [own.summary[name] for name in COUNTERS]
        lines, wanted = ([(line["step"], line["loss"]) for line in each.lines if not line["epoch_end"]]
                         for each in (run, own))  # fmt: skip
        assert [step for step, _ in wanted] == [10, 20, 30, 40, 50, 60]
        for line, other in zip(lines, wanted, strict=True) if steps == 1 else ():
            assert line == pytest.approx(other, rel=1e-2)  # float16 sums, in another order in another program


@only_on("tensorflow")
def test_what_keras_can_not_do_on_replicas_is_said_before(two_devices, parts):
    with pytest.raises(ConfigError, match=r"Recorder: Keras's `fit` on 2 replicas works with `steps_per_execution=1`"):
        recorded(parts, two_devices, Path("refused"), steps_per_execution=4)
    assert not Path("refused").exists()
