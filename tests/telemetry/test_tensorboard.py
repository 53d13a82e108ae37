import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpt_cli.errors import DataError
from mpt_cli.telemetry.file_and_tracker_sinks import TensorBoardSink
from mpt_cli.telemetry.record_types import Event, GradientSample


def _scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_tensorboards_own_reader_finds_every_scalar_and_change_of_scale(tmp_path: Path, header, snapshot) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.start(header)
    sink.events([Event(12, 1, "overflow", 32768.0, 16384.0), Event(13, 1, "overflow", 16384.0, 16384.0)])
    sink.snapshot(replace(snapshot, gradients=GradientSample(30, 0.25, 0.125, 0.5, 9.75)))
    sink.snapshot(replace(snapshot, step=35, gradients=GradientSample(35, 0.0, 1.0, 0.0, None)))
    sink.snapshot(replace(snapshot, step=40, epoch_end=True, metrics={"val_loss": 0.25}))
    sink.snapshot(replace(snapshot, step=45, loss=0.125))
    sink.close()
    assert _scalars(tmp_path, "loss_scale") == [(step, 16384.0) for step in (12, 30, 35, 45)]
    assert _scalars(tmp_path, "gradients/flushed_share") == [(30, 0.125), (35, 1.0)]
    assert _scalars(tmp_path, "gradients/headroom_doublings") == [(30, 9.75)]
    assert _scalars(tmp_path, "loss") == [(30, 0.5), (35, 0.5), (45, 0.125)]
    assert _scalars(tmp_path, "accuracy") == [(30, 0.875), (35, 0.875), (45, 0.875)]
    assert _scalars(tmp_path, "epoch/val_loss") == [(40, 0.25)]
    assert _scalars(tmp_path, "epoch/loss") == [(40, 0.5)]


def test_a_resumed_run_takes_the_place_of_what_lay_after_its_checkpoint(
    tmp_path: Path, header, snapshot, monkeypatch
) -> None:
    points = {1: [(10, 0.5), (20, 0.4), (30, 0.3)], 2: [(20, 0.4), (30, 0.25), (40, 0.2)]}  # saved at 10
    for attempt, losses in points.items():
        monkeypatch.setattr(time, "time", lambda attempt=attempt: 1e9 + attempt)
        sink = TensorBoardSink(tmp_path)
        sink.start(replace(header, attempt=attempt))
        for step, loss in losses:
            sink.snapshot(replace(snapshot, step=step, loss=loss))
        sink.close()
    found = [(step, round(loss, 4)) for step, loss in _scalars(tmp_path, "loss")]
    assert found == [(10, 0.5), (20, 0.4), (30, 0.25), (40, 0.2)]


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with pytest.raises(DataError, match=r"tensorboard can't be written: File exists"):
        TensorBoardSink(tmp_path / "tensorboard")
