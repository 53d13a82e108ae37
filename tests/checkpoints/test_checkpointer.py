"""When a run is saved, and what is said when it can't be."""

import errno
import math
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpt_cli.errors import DataError
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.telemetry.record_types import record_from
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters
from mpt_cli.training.checkpoint import Checkpoint, Checkpointer, CheckpointStore, check_data
from mpt_cli.training.progress import Progress, is_better


@pytest.fixture
def said():
    return []


class Run(SimpleNamespace):
    """What is saved of a run."""

    def checkpoint(self):
        position = {"progress": asdict(self.progress), "dataset": "a" * 64}
        return Checkpoint(self.counters.seen, {"weight/0": np.ones(1)}, position)


def _checkpointer(folder: Path, said: list[str], flush=lambda: None):
    settings = TrainerSettings(checkpoint_every_steps=10, checkpoint_every_minutes=None)
    run: Any = Run(telemetry=SimpleNamespace(flush=flush))
    return Checkpointer(CheckpointStore(folder, 2, said.append), settings, run, run.checkpoint)


def _at(checkpointer: Checkpointer, step: int, epochs: int = 0, in_epoch: int = 1):
    """The checkpointer of a run that is there."""
    checkpointer.record.progress = Progress(epochs + 1, in_epoch, epochs)
    checkpointer.record.counters = StepCounters(CounterOptions(), seen=step)
    return checkpointer


def test_it_saves_by_steps(tmp_path, said):
    checkpointer = _checkpointer(tmp_path / "c", said)
    saved = []
    for step, epochs, in_epoch in ((9, 0, 9), (10, 0, 10), (12, 0, 12), (20, 1, 5)):
        _at(checkpointer, step, epochs, in_epoch).save_if_due()
        saved.append(checkpointer.saved_step)
    assert saved == [None, 10, 10, 20]
    assert checkpointer.steps_until_due(13) == 7


def test_a_failed_save_is_said_once_and_so_is_the_first_that_works_again(tmp_path, said, monkeypatch):
    checkpointer = _checkpointer(tmp_path / "c", said)
    _at(checkpointer, 10).save()

    def full(_: int):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        _at(checkpointer, 20).save()
        _at(checkpointer, 30).save()
    kept = "that of step 10 is kept, training continues"
    assert said == [f"a checkpoint could not be written (No space left on device); {kept}"]
    assert (checkpointer.failure, checkpointer.store.steps()) == ("No space left on device", [10])
    _at(checkpointer, 30).save()
    assert said[1:] == ["checkpoints can be written again"]
    assert (checkpointer.failure, checkpointer.store.steps()) == (None, [10, 30])


def test_a_spoiled_state_is_not_saved_and_that_is_said(tmp_path, said):
    checkpointer = _checkpointer(tmp_path / "c", said)
    _at(checkpointer, 10).save()
    _at(checkpointer, 20).record.counters.is_sound = False
    checkpointer.save()
    reason = "the loss or a gradient of the last applied step was not finite"
    assert said == [f"a checkpoint could not be written ({reason}); that of step 10 is kept, training continues"]
    assert (checkpointer.failure, checkpointer.saved_step) == (reason, 10)
    assert checkpointer.store.steps() == [10]


def test_a_checkpoint_is_never_ahead_of_the_record(tmp_path, said):
    def cannot_flush():
        raise DataError("metrics.jsonl can't be written: No space left on device.")

    checkpointer = _checkpointer(tmp_path / "c", said, cannot_flush)
    _at(checkpointer, 10).save()
    assert checkpointer.store.steps() == []
    why = "metrics.jsonl can't be written: No space left on device."
    assert said == [f"a checkpoint could not be written ({why}); there is none before it, training continues"]


def test_a_checkpoint_of_other_data_is_refused(tmp_path, said):
    checkpointer = _checkpointer(tmp_path / "c", said)
    _at(checkpointer, 10).save()
    found = checkpointer.store.newest()
    assert found is not None
    _at(checkpointer, 20, 1, 5).save_if_due()
    checkpointer.resume(found)
    assert checkpointer.store.steps() == [found.step]  # what was saved after it is of a past that is trained again
    check_data("the checkpoint of step 10", "a" * 64, "a" * 64)
    with pytest.raises(DataError, match="the checkpoint of step 10 was made on other data"):
        check_data("the checkpoint of step 10", "a" * 64, "b" * 64)


def test_progress_comes_back_from_strict_json_with_its_nan():
    position = {**asdict(Progress(2, 3, 1)), "metrics": {"loss": "NaN"}, "best": {"loss": 0.5}}
    progress = record_from(Progress, position)
    assert math.isnan(progress.metrics["loss"])
    progress.update({"loss": 0.25})
    assert (progress.best, progress.epoch) == ({"loss": 0.25}, 2)


@pytest.mark.parametrize(
    ("name", "new", "old", "better"),
    [
        ("val_loss", 0.1, 0.2, True),
        ("val_loss", 0.2, 0.2, False),
        ("accuracy", 0.3, 0.2, True),
        ("loss", math.nan, 0.2, False),
        ("loss", 9.0, math.nan, True),
        ("accuracy", math.nan, math.nan, False),
    ],
)
def test_what_is_better(name, new, old, better):
    assert is_better(name, new, old) is better
