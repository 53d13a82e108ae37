"""`distribute=model_parallel` from the command line, on a net of the user's own: as on one device, skips and all."""

import json

import pytest
from command import mpt

PARTS = '''
import keras
import numpy as np

def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(320, 6, 16)).astype("float32")
    return x, (x[:, 0].sum(1) > 0).astype("int32")

def net():
    layers = keras.layers
    inputs = keras.Input((6, 16))
    x = layers.MultiHeadAttention(4, 8, name="attention")(inputs, inputs) + inputs
    y = layers.Dense(64, "relu", name="up")(layers.LayerNormalization(name="norm")(x))
    x = layers.Dense(16, name="down")(y) + x
    outputs = layers.Dense(2, dtype="float32", name="head")(layers.GlobalAveragePooling1D(name="mean")(x))
    return keras.Model(inputs, outputs, name="net")
'''
RECIPE = """
defaults: [{policy: mixed_float16}, {backend: jax}, {optimizer: adamw}, {fault: overflow}, _self_]
recipe: one
model: {name: builder, builder: "parts:net"}
data: {name: loader, loader: "parts:data", validation_fraction: 0.2}
optimizer: {learning_rate: 0.003, global_clipnorm: 1.0}
trainer: {batch_size: 16, max_steps: 30, log_every_steps: 5, keep_checkpoints: 3}
fault: {at_steps: [3, 11, 20]}
loss_scale: {initial_scale: 2**10, growth_steps: 8}
"""
DIVIDED = """
defaults: [./one.yaml, {distribute: model_parallel}, _self_]
distribute:
  mesh: {data: 1, model: 2}
  layout:
    .*(query|key|value)/kernel: [null, model, null]
    .*(query|key|value)/bias: [model, null]
    .*attention_output/kernel: [model, null, null]
    .*up/kernel: [null, model]
    .*up/bias: [model]
    .*down/kernel: [model, null]
"""
SQUARE = "distribute.mesh={data: 2, model: 2}"
# parts of sums are added up in another order, and activations in float16 fall 2**-11 apart in each of some 30 steps
ABOUT = {"rel": 0.02}


@pytest.fixture
def train(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "one.yaml").write_text(RECIPE)
    (tmp_path / "divided.yaml").write_text(DIVIDED)

    def run(*words):
        return mpt("train", *words, "--json", cwd=tmp_path, backend="jax")

    return run


def read(path, name):
    return json.loads((path / name).read_text())


def overflows(path):
    events = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return [(e["step"], e["kind"], e["scale_before"], e["scale_after"]) for e in events]


@pytest.mark.long
def test_runs_over_a_mesh_are_those_of_one_device_and_go_on_over_any(train, tmp_path):
    runs = [["conf=one.yaml", "run_dir=one"], ["conf=divided.yaml", SQUARE, "run_dir=square"],
            ["conf=divided.yaml", "run_dir=moved", "trainer.max_steps=12"],
            ["conf=divided.yaml", SQUARE, "resume=moved", "trainer.max_steps=18"],
            ["conf=divided.yaml", "distribute=none", "resume=moved"]]  # fmt: skip
    for words in runs:
        done = train(*words)
        assert done.returncode == 0, done.stderr
    one, square, moved = (tmp_path / name for name in ("one", "square", "moved"))
    expected = read(one, "summary.json")
    assert (expected["applied_steps"], expected["skipped_steps"]) == (27, 3)
    for path in (square, moved):
        found = read(path, "summary.json")
        assert (found["applied_steps"], found["skipped_steps"]) == (27, 3)
        assert found["metrics"]["val_loss"] == pytest.approx(expected["metrics"]["val_loss"], **ABOUT)
        assert overflows(path) == overflows(one)
    assert read(square, "environment.json")["distribute"] == "model_parallel"
    console = (square / "console.log").read_text()
    assert "parameters divided over a mesh of data 2 x model 2 of logical devices (model_parallel)" in console
    assert mpt("evaluate", "square", cwd=tmp_path, backend="jax").returncode == 0
    assert read(moved, "environment.json")["distribute"] == "none"


@pytest.mark.long
def test_a_pattern_that_matches_nothing_is_said_before_training(train):
    done = train("conf=divided.yaml", "distribute.layout={.*upp/kernel: [null, model], .*down/bias: [data, model]}",
                 "run_dir=refused")  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "must match whole paths of variables of the model. Received: '.*upp/kernel'." in done.stderr
    assert "The nearest paths are up/kernel, " in done.stderr
    assert "distribute.layout..*down/bias: must have an entry for each axis of down/bias" in done.stderr
