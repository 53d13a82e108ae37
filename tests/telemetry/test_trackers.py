"""The trackers: TensorBoard's own reader, and modules in place of MLflow and wandb that note what they are given."""

import importlib.util
import sys
from dataclasses import replace
from unittest.mock import ANY, Mock

import pytest

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.record_types import GradientSample
from mpt_cli.telemetry.trackers import OPEN, TrackerSink, chosen_trackers


@pytest.fixture
def use(header, snapshot, summary, tmp_path):
    def used(name: str):
        sink = TrackerSink(name, tmp_path / name)
        sink.start(header)
        sink.snapshot(replace(snapshot, gradients=GradientSample(30, 0.25, 0.125, 0.5, None)))
        sink.snapshot(replace(snapshot, step=40, epoch_end=True, metrics={"val_loss": 0.25}))
        sink.finish(summary)
        sink.close()

    return used


@pytest.fixture
def modules(monkeypatch):
    found = Mock()
    for name in ("mlflow", "mlflow.entities", "wandb"):
        monkeypatch.setitem(sys.modules, name, getattr(found, name.rpartition(".")[2]))
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return found


def check_scalars(first: dict, second: dict):
    assert (first["loss_scale"], first["loss"], first["gradient_flushed_share"]) == (16384.0, 0.5, 0.125)
    assert "gradient_headroom_doublings" not in first
    assert second["epoch/val_loss"] == 0.25 and "loss_scale" not in second


def test_tensorboards_own_reader_finds_every_scalar(tmp_path, use):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    use("tensorboard")
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


def test_mlflow_has_every_scalar_and_how_it_ended(tmp_path, modules, use):
    modules.entities.Metric = lambda *point: point
    use("mlflow")
    modules.mlflow.MlflowClient.assert_called_once_with((tmp_path / "mlflow").as_uri())
    client = modules.mlflow.MlflowClient()
    client.log_param.assert_any_call(ANY, "optimizer", "sgd, learning rate 0.25")
    points = [logged.kwargs["metrics"] for logged in client.log_batch.call_args_list]
    assert [{point[3] for point in each} for each in points] == [{30}, {40}]
    check_scalars(*({point[0]: point[1] for point in each} for each in points))
    client.set_tag.assert_called_once_with(ANY, "verdict", "warm-up skips only")
    client.set_terminated.assert_called_once_with(ANY, "FINISHED")


def test_wandb_has_every_scalar_offline(tmp_path, modules, use):
    run = modules.wandb.init.return_value
    run.summary = {}
    use("wandb")
    given = modules.wandb.init.call_args.kwargs
    assert (given["mode"], given["dir"], given["project"]) == ("offline", str(tmp_path / "wandb"), "tiny")
    assert [logged.kwargs["step"] for logged in run.log.call_args_list] == [30, 40]
    check_scalars(*(logged.args[0] for logged in run.log.call_args_list))
    assert run.summary == {"verdict": "warm-up skips only"}
    run.finish.assert_called_once_with(exit_code=0)


@pytest.mark.parametrize("name", OPEN)
def test_asked_for_and_not_installed_names_the_extra(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"logger.{name}: needs the package {name}.*pip install 'mpt-cli\[{name}\]'"):
        chosen_trackers(LoggerSettings(**{name: True}))
    assert chosen_trackers(LoggerSettings()) == []


def test_what_a_tracker_refuses_names_it(modules, use):
    modules.mlflow.MlflowClient.side_effect = RuntimeError("no route to host")
    with pytest.raises(
        DataError, match=r"mlflow rejected what was logged: no route to host\. Set logger\.mlflow=false"
    ):
        use("mlflow")


def test_secrets_and_control_codes_of_a_header_are_not_sent(tmp_path, modules, header):
    TrackerSink("wandb", tmp_path / "wandb").start(replace(header, facts={"data": "https://me:hunter2@host \x1b[2J"}))
    sent = modules.wandb.init.call_args.kwargs["config"]["data"]
    assert "hunter2" not in sent and "\x1b" not in sent and "@host" in sent
