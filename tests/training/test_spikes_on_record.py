"""Runs in which the loss jumps: what they keep of it, and what `diagnose` and `report` make of that."""

import json
from pathlib import Path

import pytest
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.engine.feed import BatchPlan
from mpt_cli.report.run import Run, load_run
from mpt_cli.settings.load import load_settings
from mpt_cli.training.program import Program

pytestmark = pytest.mark.slow
POISONED = range(560, 564)
PROGRAM = """
import keras, numpy as np
def load(which="y"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(640, 4)).astype("float32")
    y = (x.sum(1, keepdims=True) + 0.1 * rng.normal(size=(640, 1))).astype("float32")
    (x if which == "x" else y)[560:564] *= 1e3 if which != "nothing" else 1
    return x, y
def build():
    layers = keras.layers
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, name="low"), layers.Dense(1, name="top")])
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """160 steps of 8 examples, in the order of the source."""
    tmp_path = tmp_path_factory.mktemp("program")
    (tmp_path / "program.py").write_text(PROGRAM)
    return [
        "conf=digits_mlp",
        f"backend={BACKEND}",
        "backend.device=cpu",
        "trainer.epochs=2",
        f"trainer.jit_compile={str(BACKEND == 'jax').lower()}",  # without it JAX runs operation by operation
        "model=builder",
        f"model.builder={tmp_path}/program.py:build",
        "data=loader",
        "policy=mixed_float16",
        f"data.loader={tmp_path}/program.py:load",
        "data.validation_fraction=0",
        "trainer.batch_size=8",
        "trainer.loss=mean_absolute_error",
        "trainer.metrics=[]",
        "trainer.monitor=null",
        "trainer.save_model=false",
        "trainer.shuffle=false",
        "optimizer=sgd",
        "optimizer.learning_rate=0.01",
        "loss_scale.initial_scale=8",
        "logger=quiet",
        "expect={}",
    ]


def trained(run_dir: Path, words: list[str], *more: str) -> Run:
    training_run.train(load_settings([*words, *more, f"run_dir={run_dir}"]))
    run = load_run(run_dir)
    assert run.summary["steps_seen"] == run.summary["applied_steps"] + run.summary["skipped_steps"]
    return run


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> Run:
    rhythm = ["trainer.checkpoint_every_steps=60", "trainer.keep_checkpoints=9"]
    return trained(tmp_path_factory.mktemp("poisoned") / "r", words, *rhythm)


def test_the_examples_of_a_poisoned_batch_are_named(poisoned, tmp_path, capsys):
    """Four labels of 640 are a thousand times as large."""
    assert poisoned.summary["applied_steps"] == 160
    first, second = poisoned.spikes
    assert [(spike.step, spike.epoch, spike.step_in_epoch) for spike in (first, second)] == [(71, 1, 71), (151, 2, 71)]
    for spike in (first, second):
        assert spike.examples == tuple(range(560, 568)) and spike.applied
        assert spike.loss > spike.bound > spike.median and spike.loss > 50 * spike.median
        assert len(spike.losses_before) == 8 and max(spike.losses_before) < spike.bound
        assert (spike.learning_rate, spike.loss_scale) == (pytest.approx(0.01), 8.0)
    assert "step 71: the loss jumped to" in poisoned.directory.console_log.read_text()
    capsys.readouterr()
    assert main(["report", str(poisoned.path), "--out", str(tmp_path / "page.html")]) == 0
    assert "the loss jumped at step 71, 151; spikes.jsonl has the examples" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert "jump of one step" in page and "560, 561, 562, 563, 564, 565, 566, 567" in page


def test_inputs_that_overflow_are_named_by_their_places_in_the_source(tmp_path, words):
    """Shuffled, a quarter drawn to validate with, and skipped steps, whose loss counts all the same."""
    more = [
        "data.kwargs.which=x",
        "trainer.loss=mean_squared_error",
        "data.validation_fraction=0.25",
        "trainer.shuffle=true",
        "trainer.epochs=3",
        "loss_scale.initial_scale=2**15",
    ]
    words = [*words, *more]
    run = trained(tmp_path / "r", words)
    rows = Program(load_settings(words)).load_data().rows
    assert len(rows) == 480 and len(set(rows.tolist())) == 480
    plan, expected, last = BatchPlan(8, 8, shuffle=True, seed=0), [], -8
    for step in range(17, 181):  # the first look is after 16
        epoch, within = divmod(step - 1, 60)
        examples = rows[plan.examples_of(480, epoch + 1, within + 1)].tolist()
        if set(examples) & set(POISONED):
            expected += [(step, tuple(examples))] if step - last > 8 else []
            last = step
    assert expected and [(spike.step, spike.examples) for spike in run.spikes] == expected
    assert not all(spike.applied for spike in run.spikes) and run.summary["skipped_steps"] > 0


@pytest.mark.long
def test_a_run_that_goes_on_notes_each_jump_once_however_its_steps_are_called(poisoned, tmp_path, words):
    other = ["trainer.steps_per_execution=7", "trainer.feed=stream"]
    trained(tmp_path / "resumed", words, "trainer.max_steps=100", *other)
    training_run.train(load_settings([*words, f"resume={tmp_path / 'resumed'}"]))
    whole, cut = (
        [{**json.loads(line), "attempt": 1} for line in (path / "spikes.jsonl").read_text().splitlines()]
        for path in (poisoned.path, tmp_path / "resumed")
    )
    assert whole == cut
