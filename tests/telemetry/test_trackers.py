"""MLflow and Weights & Biases, with modules that note what they are given."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY, Mock

import pytest

from mpt_cli import redaction
from mpt_cli.errors import ConfigError, DataError, printable
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.file_and_tracker_sinks import MlflowSink, WandbSink, check_logger
from mpt_cli.telemetry.record_types import GradientSample, RunHeader
from mpt_cli.telemetry.sink_interface import Sink, Telemetry


@pytest.fixture
def use(header, snapshot, summary):
    def used(sink: Sink) -> None:
        sink.start(header)
        sink.snapshot(replace(snapshot, gradients=GradientSample(30, 0.25, 0.125, 0.5, None)))
        sink.snapshot(replace(snapshot, step=40, epoch_end=True, metrics={"val_loss": 0.25}))
        sink.finish(summary)
        sink.close()

    return used


@pytest.fixture
def modules(monkeypatch) -> Mock:
    found = Mock()
    for name in ("mlflow", "mlflow.tracking", "mlflow.entities", "wandb"):
        monkeypatch.setitem(sys.modules, name, getattr(found, name.rpartition(".")[2]))
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return found


def check_scalars(first: dict, second: dict) -> None:
    assert (first["loss_scale"], first["loss"], first["gradients/flushed_share"]) == (16384.0, 0.5, 0.125)
    assert "gradients/headroom_doublings" not in first
    assert second["epoch/val_loss"] == 0.25 and "loss_scale" not in second


def test_mlflow_has_every_scalar_and_how_it_ended(tmp_path: Path, modules, use) -> None:
    modules.entities.Metric = lambda *point: point
    use(MlflowSink(tmp_path / "mlflow"))
    modules.tracking.MlflowClient.assert_called_once_with((tmp_path / "mlflow").as_uri())
    client = modules.tracking.MlflowClient()
    client.log_param.assert_any_call(ANY, "optimizer", "sgd, learning rate 0.25")
    points = [logged.kwargs["metrics"] for logged in client.log_batch.call_args_list]
    assert [{point[3] for point in each} for each in points] == [{30}, {40}]
    check_scalars(*({point[0]: point[1] for point in each} for each in points))
    client.set_tag.assert_called_once_with(ANY, "verdict", "warm-up skips only")
    client.set_terminated.assert_called_once_with(ANY, "FINISHED")


def test_wandb_has_every_scalar_offline(tmp_path: Path, modules, use) -> None:
    run = modules.wandb.init.return_value
    run.summary = {}
    use(WandbSink(tmp_path / "wandb"))
    given = modules.wandb.init.call_args.kwargs
    assert (given["mode"], given["dir"], given["project"]) == ("offline", str(tmp_path / "wandb"), "tiny")
    rows = [logged.args[0] for logged in run.log.call_args_list]
    assert [logged.kwargs["step"] for logged in run.log.call_args_list] == [30, 40]
    assert run.summary == {"verdict": "warm-up skips only"}
    check_scalars(*rows)
    run.finish.assert_called_once_with(exit_code=0)


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "wandb"])
def test_asked_for_and_not_installed_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"logger.{name}: needs the package {name}.*pip install 'mpt-cli\[{name}\]'"):
        check_logger(LoggerSettings(**{name: True}))
    check_logger(LoggerSettings())


def test_what_a_tracker_is_sent_and_what_it_says_of_its_server_holds_no_secret(monkeypatch, header, modules) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:pa55@host")
    modules.tracking.MlflowClient.side_effect = RuntimeError("no route to https://me:pa55@host")
    with pytest.raises(DataError) as caught:
        MlflowSink(Path("unused")).start(header)
    assert "rejected what was logged: no route to https://me:<redacted>@host" in printable(str(caught.value))

    taken: list[RunHeader] = []
    sink = Mock(spec=Sink, start=taken.append)
    redaction.note_variable("DB_PASSWORD", "hunter2-of-trackers")
    Telemetry([sink]).start(replace(header, description="of hunter2-of-trackers"))
    assert taken[0].description == "of ${oc.env:DB_PASSWORD}"
