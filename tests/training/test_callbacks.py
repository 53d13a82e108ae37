"""Keras's callbacks and the user's in a run: hooks, logs, model, learning rate, the end, and what is refused."""

import json
from pathlib import Path
from typing import Any

import custom_callbacks
import keras
import numpy as np
import pytest
import strict
from backends import BACKEND

from mpt_cli import training_run
from mpt_cli.errors import BAD_CONFIG, OK, ConfigError, UserCodeError
from mpt_cli.settings.load import load_settings

pytestmark = pytest.mark.slow
RECIPE = """
model: {name: builder, builder: "custom_callbacks:build"}
data: {name: loader, loader: "custom_callbacks:load"}
optimizer: {name: sgd, learning_rate: 0.1, kwargs: {momentum: 0.9}}
trainer: {epochs: 3, batch_size: 8, log_every_steps: 1, checkpoint_every_minutes: null}
logger: {console: quiet}
"""
FAST = f"trainer.jit_compile={str(BACKEND == 'jax').lower()}"


def train(folder: Path, *words: str, run: str = "run"):
    (folder / "own.yaml").write_text(RECIPE)
    settings = [f"conf={folder / 'own.yaml'}", f"run_dir={folder / run}", f"backend={BACKEND}", FAST, *words]
    return training_run.train(load_settings(settings)), folder / run


def lines(run_dir: Path, epoch_end: bool):
    return [line for line in strict.lines(run_dir / "metrics.jsonl") if line["epoch_end"] is epoch_end]


def weights(run_dir: Path):
    return keras.saving.load_model(run_dir / "model.keras", compile=False).get_weights()


def calls():
    found = [*custom_callbacks.CALLS]
    custom_callbacks.CALLS.clear()
    return found


def keras_fit(*callbacks: Any):
    (x, y), validation = custom_callbacks.load()
    model = custom_callbacks.build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    model.fit(x, y, 8, 3, 0, [*callbacks], validation_data=validation, validation_batch_size=8, shuffle=False)
    return model


def test_hooks_logs_and_weights_are_those_of_keras_fit(tmp_path):
    """With callbacks that change the weights and the learning rate on the way, and call the model."""
    calls()
    names = "[custom_callbacks:Noise,custom_callbacks:Recording,custom_callbacks:Halving,custom_callbacks:Looking]"
    summary, run_dir = train(tmp_path, f"trainer.callbacks={names}", "trainer.shuffle=false")
    ours = calls()
    theirs_model = keras_fit(
        custom_callbacks.Noise(), custom_callbacks.Recording(), custom_callbacks.Halving(), custom_callbacks.Looking()
    )
    theirs = calls()

    assert (summary.steps_seen, summary.applied_steps) == (15, 15)
    assert [call[:2] for call in ours] == [call[:2] for call in theirs]
    for (name, where, logs), (_, _, expected) in zip(ours, theirs, strict=True):
        assert [*logs] == [*expected], (name, where)
        assert all(type(value) is float for value in logs.values())
        np.testing.assert_allclose([*logs.values()], [*expected.values()], rtol=2e-5, err_msg=f"{name} {where}")
    for mine, kerass in zip(weights(run_dir), theirs_model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, kerass, rtol=1e-5, atol=1e-6)  # two orders of the same sums
    rates = [line["learning_rate"] for line in lines(run_dir, epoch_end=False)]
    np.testing.assert_allclose(rates, [0.1 / 2 ** (step // 4) for step in range(15)], rtol=1e-6)


def test_early_stopping_ends_the_run_and_restores_the_best_weights(tmp_path):
    """The loss falls, and is watched for a rise: so the first epoch is the best."""
    words = ["trainer.early_stopping={patience: 2, mode: max, restore_best_weights: true}", "trainer.epochs=9"]
    summary, run_dir = train(tmp_path, *words)

    assert (summary.status, summary.exit_code, summary.epochs_completed) == ("finished", OK, 3)
    assert summary.applied_steps == 15
    first = lines(run_dir, epoch_end=True)[0]
    assert summary.ended_early == (
        f"val_loss was no better than {first['val_loss']:.6g} (epoch 1) for 2 epochs (EarlyStopping); the weights of "
        "epoch 1 are restored"
    )
    assert summary.explanation.endswith(f"It ended early, in epoch 3: {summary.ended_early}.")
    assert summary.metrics["val_loss"] == pytest.approx(first["val_loss"], rel=1e-6)
    again, _ = train(tmp_path, *words, f"resume={run_dir}")
    assert again == summary  # nothing is left to train


def test_a_callback_ends_a_run_within_an_epoch(tmp_path):
    calls()
    stops = "{object: custom_callbacks:StopsAt, kwargs: {batch: 2}}"
    summary, run_dir = train(tmp_path, f"trainer.callbacks=[{stops},custom_callbacks:Recording]")

    assert (summary.steps_seen, summary.applied_steps, summary.epochs_completed) == (3, 3, 0)
    assert summary.ended_early == "StopsAt set model.stop_training in on_train_batch_end"
    assert [name for name, _, _ in calls() if "batch" not in name] == [
        "on_train_begin",
        "on_epoch_begin",
        "on_test_begin",
        "on_test_end",
        "on_epoch_end",
        "on_train_end",
    ]
    assert [line["step"] for line in lines(run_dir, epoch_end=True)] == [3]


def test_what_a_callback_raises_is_the_users(tmp_path):
    words = r"^trainer.callbacks: Broken.on_epoch_end raised ValueError: no such cell\.$"
    with pytest.raises(UserCodeError, match=words) as raised:
        train(tmp_path, "trainer.callbacks=[custom_callbacks:Broken]")
    assert isinstance(raised.value.__cause__, ValueError)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"], summary["applied_steps"]) == ("failed", BAD_CONFIG, 5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["trainer.callbacks=[history,progbar_logger]"],
            "trainer.callbacks[1]: progbar_logger can't be used in a run. Leave it out: the console shows progress.",
        ),
        (
            ["trainer.callbacks=[early_stoping]"],
            "trainer.callbacks[0]: Keras has none of this name. Received: 'early_stoping'. Did you mean early_stopping?",
        ),
        (
            ["trainer.callbacks=history"],
            "trainer.callbacks: must be a list. Received: 'history'. Write trainer.callbacks=[…].",
        ),
        (
            ["trainer.callbacks=[{kwargs: {}}]"],
            "trainer.callbacks[0].object: must be a Keras name, module:name, or {object: either, kwargs: {…}}.",
        ),
        (
            ["trainer.callbacks=[{object: custom_callbacks:Halving, arguments: {}}]"],
            "there is no arguments beside object and kwargs.",
        ),
        (
            ["trainer.callbacks=[custom_callbacks:no_callback]"],
            "trainer.callbacks[0]: must be a keras.callbacks.Callback. Received: 'int'.",
        ),
        (
            ["trainer.callbacks=[{object: 'keras.callbacks:BackupAndRestore', kwargs: {backup_dir: /tmp/x}}]"],
            "trainer.callbacks[0]: BackupAndRestore can't be used in a run. Received: 'BackupAndRestore'. Leave it out: "
            "resume=auto does this, exact to the step.",
        ),
        (
            ["trainer.early_stopping.monitor=loss"],
            "trainer.early_stopping.monitor: must be left out without trainer.early_stopping.patience: nothing uses it. "
            "Received: 'loss'. Set trainer.early_stopping.patience.",
        ),
        (
            ["trainer.early_stopping.patience=1", "trainer.early_stopping.monitor=val_lost"],
            "trainer.early_stopping.monitor: must be a metric of the run. Received: 'val_lost'. It has loss, accuracy, "
            "val_loss, val_accuracy.",
        ),
        (
            ["trainer.callbacks=[reduce_lr_on_plateau]", "optimizer.schedule.name=cosine"],
            "optimizer.schedule: must be constant, without warm-up, with ReduceLROnPlateau: both would set the learning rate. "
            "Received: 'cosine'. Keep one of them.",
        ),
    ],
)
def test_what_can_not_be_a_callback_is_said(tmp_path, words, sentence):
    with pytest.raises(ConfigError) as raised:
        train(tmp_path, *words)
    assert sentence in str(raised.value)
    assert not (tmp_path / "run").exists()
