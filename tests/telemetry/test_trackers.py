"""MLflow and Weights & Biases without a network: what was written is read back."""

import importlib.util
import json
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpt_cli import redaction
from mpt_cli.errors import ConfigError, DataError, printable
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.records import GradientSample, RunHeader
from mpt_cli.telemetry.sink import Telemetry
from mpt_cli.telemetry.sinks import MlflowSink, WandbSink, check_logger

SAMPLE = GradientSample(30, 0.25, 0.125, 0.5, None)


def use(sink: Any, header: Any, snapshot: Any, summary: Any) -> None:
    sink.start(header)
    sink.snapshot(replace(snapshot, gradients=SAMPLE))
    sink.snapshot(replace(snapshot, step=40, epoch_end=True, metrics={"val_loss": float("nan")}))
    sink.finish(summary)
    sink.close()


@pytest.mark.slow
def test_mlflow_has_every_scalar_and_how_it_ended(tmp_path: Path, monkeypatch, header, snapshot, summary) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    use(MlflowSink(tmp_path / "mlflow"), header, snapshot, summary)
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlflow").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])

    def history(name: str) -> list[tuple[int, str]]:
        return [(point.step, str(point.value)) for point in client.get_metric_history(run.info.run_id, name)]

    assert history("loss_scale") == [(30, "16384.0")]
    assert history("loss") == [(30, "0.5")] and history("gradients/flushed_share") == [(30, "0.125")]
    assert history("epoch/val_loss") == [(40, "nan")] and history("gradients/headroom_doublings") == []
    assert (run.info.status, run.info.run_name, run.data.tags["verdict"]) == ("FINISHED", "1", "warm-up skips only")
    assert run.data.params["optimizer"] == "sgd, learning rate 0.25"


def wandb_records(path: Path) -> list[Any]:
    """The records of a .wandb file: 7 bytes, then LevelDB's log of protocol buffers (none here spans two blocks)."""
    from wandb.proto import wandb_internal_pb2

    data, position, found = path.read_bytes(), 7, []
    while position + 7 <= len(data):
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        assert kind == 1
        if position + 7 + length > len(data):
            break
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[position + 7 : position + 7 + length])
        found.append(record)
        position += 7 + length
    return found


def kind_of(record: Any) -> str:
    return str(record.WhichOneof("record_type"))


@pytest.mark.slow
def test_wandb_has_every_scalar_offline(tmp_path: Path, monkeypatch, header, snapshot, summary) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    use(WandbSink(tmp_path / "wandb"), header, snapshot, summary)
    (path,) = (tmp_path / "wandb").glob("wandb/offline-run-*/*.wandb")
    until = time.monotonic() + 20.0  # its own process writes the last records after `finish`
    while "exit" not in {kind_of(record) for record in wandb_records(path)} and time.monotonic() < until:
        time.sleep(0.1)
    rows = [
        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for record in wandb_records(path) if kind_of(record) == "history"
    ]  # fmt: skip
    assert [json.loads(row["step"]) for row in rows] == [30, 40]
    assert [row.get("loss_scale") for row in rows] == ["16384", None]
    assert (rows[0]["loss"], rows[0]["gradients/flushed_share"], rows[0]["accuracy"]) == ("0.5", "0.125", "0.875")
    assert "gradients/headroom_doublings" not in rows[0] and "NaN" in rows[1]["epoch/val_loss"]


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "wandb"])
def test_asked_for_and_not_installed_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"logger.{name}: needs the package {name}.*pip install 'mpt-cli\[{name}\]'"):
        check_logger(LoggerSettings(**{name: True}))
    check_logger(LoggerSettings())


def test_what_a_tracker_is_sent_and_what_it_says_of_its_server_holds_no_secret(monkeypatch, header) -> None:
    monkeypatch.setattr(redaction, "_known", redaction._Known())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", lambda name: Unreachable)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:pa55@host")
    with pytest.raises(DataError) as caught:
        MlflowSink(Path("unused")).start(header)
    assert "could not take what it was given: no route to https://me:<redacted>@host" in printable(str(caught.value))

    class Taken(WandbSink):
        def start(self, header: RunHeader) -> None:
            taken.append(header)

    taken: list[RunHeader] = []
    redaction.note_variable("DB_PASSWORD", "hunter2")
    Telemetry([Taken(Path("unused"))]).start(replace(header, description="of hunter2", data="hunter2.csv"))
    assert (taken[0].description, taken[0].data) == ("of ${oc.env:DB_PASSWORD}", "${oc.env:DB_PASSWORD}.csv")


class Unreachable:
    """MLflow's module, whose server does not answer."""

    @staticmethod
    def MlflowClient(place: str) -> None:
        raise RuntimeError(f"no route to {place}")
