"""metrics.csv: metrics.jsonl as a table for spreadsheets and pandas."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mpt_cli.telemetry.records import SCHEMA_VERSION, RunHeader, Snapshot
from mpt_cli.telemetry.sink import Sink
from mpt_cli.telemetry.sinks.jsonl import SAMPLED, snapshot_fields
from mpt_cli.telemetry.sinks.line_file import LineFile

OWN_COLUMNS = (*(field.name for field in fields(Snapshot) if field.name not in ("metrics", "gradients")),
               *(f"gradient_{name}" for name in SAMPLED))  # fmt: skip


class CsvSink(Sink):
    """A row per snapshot; an empty cell means no value, `nan` and `inf` are written as such.

    The columns are known before the first row: the fields of a snapshot, then `header.metric_names`. A resumed run
    keeps the columns its file already has; a metric that is not among them is in metrics.jsonl only.
    """

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        self._columns: list[str] = []
        self._attempt = 1

    def start(self, header: RunHeader) -> None:
        self._attempt = header.attempt
        self._columns = _existing_columns(self._file.path)
        if not self._columns:
            self._columns = ["schema_version", "attempt", *OWN_COLUMNS]
            self._columns += [name for name in header.metric_names if name not in self._columns]
            self._file.add(lambda: _row(self._columns))
            self._file.flush()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._file.poll()

    def snapshot(self, snapshot: Snapshot) -> None:
        self._file.add(lambda: self._row_of(snapshot))
        self._file.poll_line(snapshot.epoch_end)

    def _row_of(self, snapshot: Snapshot) -> str:
        values = {"schema_version": SCHEMA_VERSION, "attempt": self._attempt, **snapshot_fields(snapshot)}
        return _row([values.get(column) for column in self._columns])

    def trouble(self) -> str | None:
        return self._file.trouble

    def flush(self) -> None:
        self._file.flush()

    def release(self) -> None:
        self._file.close()

    def take_up(self, step: int, skipped_steps: int) -> None:
        self._file.open()

    def close(self) -> None:
        self._file.close()


def _existing_columns(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _row(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
