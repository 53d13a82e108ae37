"""TensorBoard's files, read by its own reader."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.record_types import GradientSample
from mpt_cli.telemetry.tensorboard_sink import TensorBoardSink, check_tensorboard


def write(folder: Path, header, snapshot, summary) -> None:
    sink = TensorBoardSink(folder)
    sink.start(header)
    sink.snapshot(replace(snapshot, gradients=GradientSample(30, 0.25, 0.125, 0.5, None)))
    sink.snapshot(replace(snapshot, step=40, epoch_end=True, metrics={"val_loss": 0.25}))
    sink.finish(summary)
    sink.close()


def check_scalars(first: dict, second: dict) -> None:
    assert (first["loss_scale"], first["loss"], first["gradient_flushed_share"]) == (16384.0, 0.5, 0.125)
    assert "gradient_headroom_doublings" not in first
    assert second["epoch/val_loss"] == 0.25 and "loss_scale" not in second


def test_tensorboards_own_reader_finds_every_scalar(tmp_path: Path, header, snapshot, summary) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path / "tensorboard", header, snapshot, summary)
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    found = {
        name: [(event.step, float(event.tensor_proto.float_val[0])) for event in reader.Tensors(name)]
        for name in reader.Tags()["tensors"]
    }
    assert found["loss_scale"] == [(30, 16384.0)] and found["epoch/val_loss"] == [(40, 0.25)]
    check_scalars(
        *({name: dict(points)[step] for name, points in found.items() if step in dict(points)} for step in (30, 40))
    )


def test_asked_for_and_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = r"logger.tensorboard: needs the package tensorboard.*pip install 'mpt-cli\[tensorboard\]'"
    with pytest.raises(ConfigError, match=words):
        check_tensorboard(LoggerSettings(tensorboard=True))
    check_tensorboard(LoggerSettings())


def test_what_can_not_be_written_names_tensorboard(tmp_path: Path, header, snapshot, summary) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"tensorboard rejected what was logged: .*\. Set logger\.tensorboard=false"):
        write(tmp_path / "file", header, snapshot, summary)
