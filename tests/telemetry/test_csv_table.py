import csv
import math
from dataclasses import replace
from pathlib import Path

from mpt_cli.telemetry.sinks import CsvSink


def _written(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_resumed_run_keeps_the_columns_and_repairs_the_last_row(tmp_path: Path, header, snapshot) -> None:
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    sink.start(header)
    sink.snapshot(snapshot)
    sink.close()
    path.write_bytes(path.read_bytes() + b"1,1,31,0")
    sink = CsvSink(path)
    sink.start(replace(header, attempt=2, metric_names=("something_else",)))
    sink.snapshot(replace(snapshot, step=31, loss=math.nan, metrics={"accuracy": 0.25, "something_else": 1.0}))
    sink.close()
    rows = _written(path)
    assert [(row["step"], row["attempt"], row["loss"], row["accuracy"], row["val_loss"]) for row in rows] == [
        ("30", "1", "0.5", "0.875", ""),
        ("31", "2", "nan", "0.25", ""),
    ]
