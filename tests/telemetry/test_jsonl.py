import math
from dataclasses import replace
from pathlib import Path

import pytest
from strict import lines

from mpt_cli.telemetry.record_types import LayerSample
from mpt_cli.telemetry.sink_interface import TelemetryFiles
from mpt_cli.telemetry.sinks import JsonlSink


@pytest.fixture
def sink(tmp_path: Path, header):
    sink = JsonlSink(TelemetryFiles(tmp_path), print)
    sink.start(header)
    return sink


def test_a_loss_of_nan_and_an_interval_without_loss_stay_apart_and_no_metric_takes_a_fields_place(
    tmp_path, sink, snapshot
):
    sink.snapshot(replace(snapshot, loss=math.nan))
    sink.snapshot(replace(snapshot, loss=None, metrics={"step": 0.5, "val_loss": 0.1}))
    sink.close()
    first, second = lines(tmp_path / "metrics.jsonl")
    assert (first["loss"], second["loss"], second["step"], second["val_loss"]) == ("NaN", None, 30, 0.1)


def test_layers_have_a_file_at_once_where_there_are_some(tmp_path, sink):
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "events.jsonl"}
    row = LayerSample("dense", "activations", "float16", 8, 0.25, 0.5, 0.0, 0.75, -27, (2, 0, 6))
    sink.layers(100, 2.0**15, [row])
    (line,) = lines(tmp_path / "layers.jsonl")
    assert (line["step"], line["loss_scale"], line["layer"], line["flushed"]) == (100, 32768.0, "dense", 0.25)
    assert (line["lowest_exponent"], line["exponents"], line["schema_version"]) == (-27, [2, 0, 6], 1)
    assert row.predicted_flushed == 0.25  # two of eight values lie below 2^-25


def test_a_resumed_run_appends_and_says_which_attempt(tmp_path, sink, header, snapshot):
    sink.snapshot(snapshot)
    sink.close()
    sink = JsonlSink(TelemetryFiles(tmp_path), print)
    sink.start(replace(header, attempt=2))
    sink.snapshot(replace(snapshot, step=31))
    sink.close()
    assert [(line["step"], line["attempt"]) for line in lines(tmp_path / "metrics.jsonl")] == [(30, 1), (31, 2)]
