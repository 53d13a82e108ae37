"""The state of callbacks in a checkpoint: what is stored, what can't be, and runs that are gone on with."""

from collections import OrderedDict
from typing import Any

import custom_callbacks
import keras
import numpy as np
import pytest
from test_callbacks import lines, train, weights

from mpt_cli.errors import UserCodeError
from mpt_cli.training.callbacks import Callbacks, CallbackState, NotPlain, decode, encode
from mpt_cli.training.checkpoint import CheckpointStore

ALL = [
    "{object: model_checkpoint, kwargs: {filepath: '{run_dir}/best.keras', save_best_only: true}}",
    "{object: csv_logger, kwargs: {filename: '{run_dir}/own.csv'}}",
    "history",
    "custom_callbacks:Noise",
    "custom_callbacks:Halving",
    "custom_callbacks:SaysItsState",
    "{object: reduce_lr_on_plateau, kwargs: {patience: 1, min_delta: 0.02}}",
]
KEYS = [
    "trainer.early_stopping.patience=3",
    "trainer.early_stopping.min_delta=10",  # no epoch after the first is better
    "trainer.early_stopping.restore_best_weights=true",
    "trainer.epochs=6",
]


def test_plain_values_come_back_as_they_were():
    for value in (None, True, 2**70, float("inf"), [1, (2.0, "x")], {"a": [None], 2: {"array": 1}}, "{1}"):
        arrays: dict[str, Any] = {}
        found = decode(encode(value, arrays, "v"), arrays)
        assert found == value and type(found) is type(value)


def test_arrays_keep_their_dtype_and_lie_beside_the_text():
    arrays: dict[str, Any] = {}
    value = {"best": [np.float16([1, 2]), np.int64(3)], "mean": np.float32("nan")}
    found = decode(encode(value, arrays, "w"), arrays)
    assert sorted(arrays) == ["w/0", "w/1", "w/2"]
    assert found["best"][0].dtype == np.float16 and found["best"][0].tolist() == [1, 2]
    assert type(found["best"][1]) is np.int64 and np.isnan(found["mean"])
    for kind, other in (("Mean", [keras.metrics.Mean()]), ("set", {1, 2}), ("OrderedDict", OrderedDict(a=2))):
        with pytest.raises(NotPlain, match=kind):
            encode(other, {}, "o")


def test_what_can_not_be_stored_is_said_before_training_and_own_methods_do_better(tmp_path):
    told: list[str] = []
    model = custom_callbacks.build()
    silent = [
        keras.callbacks.EarlyStopping(),
        keras.callbacks.CSVLogger(tmp_path / "a.csv"),
        keras.callbacks.TensorBoard(tmp_path),
        keras.callbacks.LearningRateScheduler(custom_callbacks.slower),
    ]
    Callbacks([custom_callbacks.Unstorable(), custom_callbacks.SaysItsState(), *silent], model).begin(1, 5, told.append)
    assert told == [
        "callbacks: Unstorable.mean (Mean) can't be stored in a checkpoint, so a resumed run starts with a "
        "fresh one; to store it, give the callback methods get_state and set_state"
    ]


def test_a_state_that_is_not_plain_is_refused():
    callback = custom_callbacks.SaysItsState()
    callback.get_state = lambda: callback.mean
    words = r"^callbacks: SaysItsState.get_state must return numbers, texts, arrays, .* Received: Mean\.$"
    with pytest.raises(UserCodeError, match=words):
        CallbackState(callback).save()


@pytest.mark.slow
def test_a_run_that_is_gone_on_with_ends_as_the_unbroken_one(tmp_path):
    """Cut in the middle of an epoch; early stopping ends both."""
    words = [f"trainer.callbacks=[{','.join(ALL)}]", *KEYS]
    whole, whole_dir = train(tmp_path, *words, run="whole")
    _, run_dir = train(tmp_path, *words, "trainer.max_steps=12")
    (run_dir / "own.csv").open("a").write("9,lines,of,a,killed,attempt\n")
    summary, _ = train(tmp_path, *words, f"resume={run_dir}")

    assert whole.ended_early == summary.ended_early != "" and whole.applied_steps == summary.applied_steps > 12
    assert all((a == b).all() for a, b in zip(weights(whole_dir), weights(run_dir), strict=True))
    assert (whole.metrics, whole.best_metrics) == (summary.metrics, summary.best_metrics)
    for epoch_end in (False, True):
        keys = ("step", "loss", "learning_rate", "mean_loss", "val_loss")
        found = [
            [[line.get(key) for key in keys] for line in lines(folder, epoch_end)] for folder in (whole_dir, run_dir)
        ]
        assert found[0] == found[1]
    assert (whole_dir / "own.csv").read_text() == (run_dir / "own.csv").read_text()
    whole, cut = (CheckpointStore(folder / "checkpoints").newest() for folder in (whole_dir, run_dir))
    assert whole.position["callbacks"] == cut.position["callbacks"]
    assert whole.arrays.keys() == cut.arrays.keys()
    assert all(value.tobytes() == cut.arrays[name].tobytes() for name, value in whole.arrays.items())
    saved = [keras.saving.load_model(folder / "best.keras").get_weights() for folder in (whole_dir, run_dir)]
    assert all((a == b).all() for a, b in zip(*saved, strict=True))


@pytest.mark.long
def test_a_callback_that_comes_later_begins_anew_and_more_epochs_go_on(tmp_path):
    stops = ["trainer.early_stopping.patience=1", "trainer.early_stopping.mode=max"]
    first, run_dir = train(tmp_path, *stops)
    more, _ = train(tmp_path, *stops, "trainer.epochs=4", "trainer.callbacks=[history]", f"resume={run_dir}")

    assert (first.epochs_completed, more.epochs_completed, more.applied_steps) == (2, 3, 15)
    assert more.ended_early.startswith("val_loss was no better than")
    assert (
        "callbacks: History was not in the run when the checkpoint was made, so it starts fresh"
        in (run_dir / "console.log").read_text()
    )
