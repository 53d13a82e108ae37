"""Runs in phases: what each trains, what a change carries over, and a run that is killed before, at and after it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import PhaseSettings, Settings
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.telemetry.sink_interface import Sink
from mpt_cli.training.checkpoint import Checkpoint
from mpt_cli.training.fine_tuning_phases import Phases, check_phase

PROGRAM = Path(__file__).with_name("phased_net.py")
FIRST = "{epochs: 2, learning_rate: 0.05, freeze: [base]}"
TWO = f"phases=[{FIRST}, {{epochs: 2, learning_rate: 0.01, unfreeze: [top*]}}]"  # of 5 steps each
EVERY_STEP = "trainer.log_every_steps=1"


def train(run_dir: Path, *words: str, sinks: Any = ()) -> Any:
    given = [
        "conf=digits_mlp",
        f"backend={BACKEND}",
        f"run_dir={run_dir}",
        "logger.console=quiet",
        f"trainer.jit_compile={str(BACKEND == 'jax').lower()}",
        "trainer.batch_size=32",
        f"data.loader={PROGRAM}:load_data",
        *words,
    ]
    given += [] if "model=saved" in words else [f"model.builder={PROGRAM}:build_model"]
    given += [] if any(word.startswith("trainer.epochs") for word in words) else ["~trainer.epochs"]
    return training_run.train(load_settings(given), reporters=training_run.Reporters(sinks=sinks))


def lines(run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / f"{name}.jsonl").read_text().splitlines()]


def weights(model: Any) -> dict[str, np.ndarray]:
    """By layer and name: models that are loaded have other paths."""
    return {"/".join(v.path.split("/")[-2:]): np.asarray(v.numpy()) for v in model.weights}


def saved(run_dir: Path) -> dict[str, np.ndarray]:
    return weights(keras.saving.load_model(run_dir / "model.keras", compile=False))


def load_program() -> Any:
    spec = importlib.util.spec_from_file_location("phased_net", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fitted_twice() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The two phases as a Keras program has them; its weights at the start and at the end."""
    keras.utils.set_random_seed(0)
    program = load_program()
    (x, y), _ = program.load_data()
    model = program.build_model((6,), 2)
    start, base = weights(model), model.get_layer("base")
    base.trainable = False
    for rate in (0.05, 0.01):
        if rate == 0.01:
            base.get_layer("top").trainable = base.get_layer("top_norm").trainable = True
        optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.5)
        model.compile(
            optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=BACKEND == "jax"
        )
        model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    return start, weights(model)


@pytest.mark.slow
def test_two_phases_are_what_a_keras_program_does_that_compiles_and_fits_twice(tmp_path):
    """Dropout, BatchNormalization that is frozen and trained on, fresh slots of Adam, averages that become the weights.
    The tolerance is of some roundings of float32 (2^-23) a step: Keras adds up in programs of other shape."""
    summary = train(
        tmp_path / "run",
        TWO,
        "policy=float32",
        "trainer.shuffle=false",
        "optimizer.use_ema=true",
        "optimizer.ema_momentum=0.5",
    )
    start, expected = fitted_twice()
    found = saved(tmp_path / "run")

    assert (summary.steps_seen, summary.applied_steps, summary.phases_completed) == (20, 20, 2)
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        np.testing.assert_allclose(found[path], values, rtol=1e-5, atol=20 * 2.0**-20, err_msg=path)
    moved = {path for path in start if (start[path] != found[path]).any()}
    assert moved == {path for path in start if "low" not in path and "seed" not in path}


@pytest.mark.slow
def test_a_phase_without_an_applied_step_leaves_the_weights_their_averages(tmp_path):
    """Keras begins averages, which are zeros till then, at the first step."""
    summary = train(
        tmp_path / "run",
        TWO,
        "policy=mixed_float16",
        "optimizer.use_ema=true",
        "fault=overflow",
        "loss_scale.max_consecutive_skips=null",
        f"fault.at_steps={[*range(11, 21)]}",
        "loss_scale.stop_on_idle_epoch=false",
    )
    assert (summary.applied_steps, summary.skipped_steps) == (10, 10)
    assert all(values.any() for path, values in saved(tmp_path / "run").items() if "kernel" in path)


class Killed(BaseException):
    """What nothing catches."""


class Kills(Sink):
    """At a step, or where a phase begins."""

    def __init__(self, step: float) -> None:
        self.step = step

    def progress(self, step: int, epoch: int, phase: str) -> None:
        if step >= self.step:
            raise Killed

    def events(self, events: Any) -> None:
        if any(event.kind == "phase" for event in events):
            raise Killed


# the loss scale grows in both phases, averages are kept, and a callback has a state
KILLED = [
    TWO,
    "policy=mixed_float16",
    "loss_scale=dynamic",
    "loss_scale.initial_scale=2**10",
    "loss_scale.growth_steps=4",
    "optimizer.schedule.name=cosine",
    "trainer.checkpoint_every_steps=2",
    EVERY_STEP,
    "optimizer.use_ema=true",
    "trainer.steps_per_execution=1",
    "trainer.early_stopping.patience=3",
    "trainer.early_stopping.monitor=loss",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phases") / "whole"
    assert train(folder, *KILLED).applied_steps == 20
    return RunDirectory(folder)


@pytest.mark.long
def test_a_run_that_is_killed_at_the_border_and_after_it_ends_as_the_unbroken_one(tmp_path, whole):
    for sink in (Kills(np.inf), Kills(15)):
        with pytest.raises(Killed):
            train(tmp_path / "killed", *KILLED, "resume=auto", sinks=[sink])
    summary = train(tmp_path / "killed", *KILLED, "resume=auto")

    assert (summary.status, summary.applied_steps) == ("finished", 20)
    assert first_difference(whole, RunDirectory(tmp_path / "killed")) is None
    begun = [event for event in lines(tmp_path / "killed", "events") if event["kind"] == "phase"]
    assert [(event["phase"], event["epoch"]) for event in begun] == [(2, 3)]


@pytest.mark.slow
def test_scale_and_its_counter_go_on_and_a_schedule_begins_anew(whole):
    """The scale doubles after each 4 applied steps; a cosine falls to 0 over the 10 steps of each phase."""
    steps = [line for line in lines(whole.path, "metrics") if not line["epoch_end"]]
    assert [line["loss_scale"] for line in steps] == [2.0 ** (10 + step // 4) for step in range(1, 21)]
    assert [line["phase"] for line in steps] == [1] * 10 + [2] * 10
    falling = [0.5 * (1 + np.cos(np.pi * step / 10)) for step in range(10)]
    rates = [line["learning_rate"] for line in steps]
    np.testing.assert_allclose(rates, [rate * part for rate in (0.05, 0.01) for part in falling], rtol=1e-5)


@pytest.mark.slow
def test_a_callback_ends_its_phase_and_the_next_begins(tmp_path):
    """The loss can't fall by 10: EarlyStopping ends each phase after its second epoch and restores the first."""
    long = TWO.replace("epochs: 2", "epochs: 9")
    words = [
        long,
        "trainer.early_stopping={patience: 1, min_delta: 10, monitor: loss}",
        f"trainer.callbacks=[{PROGRAM}:Calls]",
    ]
    summary = train(tmp_path / "run", *words)

    assert (summary.applied_steps, summary.epochs_completed, summary.phases_completed) == (20, 4, 2)
    assert "ended early, in epoch 4: loss was no better than" in summary.explanation
    assert "phase 1 ends early, in epoch 2: loss was no better than" in (tmp_path / "run" / "console.log").read_text()
    ends = [line for line in lines(tmp_path / "run", "metrics") if line["epoch_end"]]
    assert [(line["calls_begin"], line["calls_end"]) for line in ends] == [(1, 0), (1, 0), (2, 1), (2, 1)]


@pytest.mark.long
def test_a_finished_run_goes_on_with_a_longer_or_a_further_phase(tmp_path):
    train(tmp_path / "run", TWO, "trainer.checkpoint_every_steps=2")
    longer = TWO.replace("epochs: 2, learning_rate: 0.01", "epochs: 3, learning_rate: 0.01")
    summary = train(tmp_path / "run", longer.replace("epochs: 2", "epochs: 7"), "resume=auto")
    assert (summary.applied_steps, summary.phases_completed) == (25, 2)
    said = (tmp_path / "run" / "console.log").read_text()
    assert "without effect: phases.0.epochs was 2, is 7; that phase is over" in said
    words = f"{longer[:-1]}, {{epochs: 1, learning_rate: 0.001, unfreeze: [base]}}]"
    further = train(tmp_path / "run", words, "resume=auto")
    assert (further.applied_steps, further.phases_completed) == (30, 3)
    with pytest.raises(ConfigError, match=r"phases\.1\.unfreeze: can't change in the middle of a run\. Received: \[\]"):
        train(tmp_path / "run", words.replace("unfreeze: [top*]", "unfreeze: []"), "resume=auto")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [TWO.replace("top*", "tops")],
            "phases.1.unfreeze: must match the name, path or class of a layer of the model. Received: 'tops'. "
            "Did you mean top?",
        ),
        (
            [TWO.replace("unfreeze: [top*]", "freeze: ['*']")],
            "phases.1.freeze: must leave something to train. Received: ['*']. Name what is to be trained in `unfreeze`.",
        ),
        (
            [TWO, "trainer.epochs=3"],
            "trainer.epochs: must be left out with phases, whose epochs are 4 in all. Received: 3. Remove it with "
            "~trainer.epochs.",
        ),
        (
            [TWO, "optimizer.learning_rate=0.5"],
            "optimizer.learning_rate: must be left out: each phase has a learning rate of its own. Received: 0.5. Remove "
            "it with ~optimizer.learning_rate.",
        ),
        (
            [TWO.replace("top*", "top, top").replace("unfreeze", "freeze: [top], unfreeze")],
            "phases.1.unfreeze: must not name what `freeze` of the same phase names. Received: 'top'.",
        ),
        (
            [TWO, "optimizer.schedule.object=cosine_decay", "optimizer.schedule.kwargs={decay_steps: 9}"],
            "phases.0.learning_rate: must be left out with optimizer.schedule.object=cosine_decay, which has its own. "
            "Received: 0.05. Use optimizer.schedule.name.",
        ),
        ([TWO, "phases.7.epochs=1"], "phases.7.epochs: cannot be set: list index out of range."),
        (
            ["phases=[3]"],
            "phases: must be a list of mappings with epochs, learning_rate, freeze, unfreeze. Received: [3].",
        ),
        (["phases=[{freeze: [base]}]"], "phases.0.epochs: must be given."),
    ],
)
def test_phases_that_can_not_be_meant_are_said_before_training(tmp_path, words, sentence):
    with pytest.raises(ConfigError) as raised:
        train(tmp_path / "run", *words)
    assert sentence in str(raised.value) and not (tmp_path / "run").exists()


def test_a_checkpoint_of_a_phase_that_is_gone_is_said():
    phases = Phases(Settings(phases=[PhaseSettings(1)]), load_program().build_model((6,), 2), Scaling(), 5)
    with pytest.raises(DataError, match=r"^the checkpoint of step 20 is of phase 2, and the run has 1\. Give it"):
        check_phase(phases, Checkpoint(20, {}, {"progress": {"phase": 1}}))
