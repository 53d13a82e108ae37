"""metrics.jsonl and its like, the record other programs read; metrics.csv, the same as a table."""

import csv
import io
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from mpt_cli.telemetry.format import strict_json
from mpt_cli.telemetry.records import (
    SCHEMA_VERSION,
    Event,
    GradientSample,
    LayerSample,
    RunHeader,
    Snapshot,
    Spike,
    as_number,
)
from mpt_cli.telemetry.sink import Sink
from mpt_cli.telemetry.sinks.line_file import LineFile

GRADIENT_FIELDS = tuple(field.name for field in fields(GradientSample) if field.name not in ("step", "faults"))


def snapshot_fields(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as one flat dict: its own fields, the sample of the gradients as `gradient_*` (None where there is
    none), then the metrics by name (a field's name wins)."""
    own = {**vars(snapshot)}
    metrics, sample = own.pop("metrics"), own.pop("gradients")
    if snapshot.phase is None:
        del own["phase"]  # there is only one
    own |= {f"gradient_{name}": None if sample is None else getattr(sample, name) for name in GRADIENT_FIELDS}
    return {**own, **{name: value for name, value in metrics.items() if name not in own}}


_OWN_FIELDS = frozenset(field.name for field in fields(Snapshot)) - {"metrics", "gradients"}
_OF_THE_LINE = frozenset(("seconds", "schema_version", "attempt", *(f"gradient_{name}" for name in GRADIENT_FIELDS)))


def snapshot_from(line: Mapping[str, Any]) -> Snapshot:
    """The snapshot that a line of metrics.jsonl tells of; nan and infinities are texts there."""
    own = {name: line[name] for name in _OWN_FIELDS if name in line}
    names = [name for name in line if name not in _OWN_FIELDS and name not in _OF_THE_LINE]
    metrics = {name: number for name in names if (number := as_number(line[name])) is not None}
    numbers: dict[str, Any] = {name: float(value) if isinstance(value, str) else value for name, value in own.items()}
    return Snapshot(**numbers, metrics=metrics, gradients=_sample_from(line))


def _sample_from(line: Mapping[str, Any]) -> GradientSample | None:
    found = {name: line.get(f"gradient_{name}") for name in GRADIENT_FIELDS}
    if found["norm"] is None:
        return None
    return GradientSample(line["step"], **{name: None if value is None else float(value)
                                           for name, value in found.items()})  # type: ignore[arg-type]  # fmt: skip


def event_from(line: Mapping[str, Any]) -> Event:
    """The event that a line of events.jsonl tells of."""
    names = Event.__dataclass_fields__
    found = {name: value for name, value in line.items() if name in names}
    return Event(**{**found, "scale_before": float(line["scale_before"]), "scale_after": float(line["scale_after"])})


def spike_from(line: Mapping[str, Any]) -> Spike:
    """The spike that a line of spikes.jsonl tells of."""
    found: dict[str, Any] = {name: line[name] for name in Spike.__dataclass_fields__ if name in line}
    found |= {name: float(value) for name, value in found.items() if isinstance(value, str) and name != "no_examples"}
    examples = found.get("examples")
    return Spike(**{**found, "losses_before": tuple(map(float, found["losses_before"])),
                    "examples": None if examples is None else tuple(examples)})  # fmt: skip


class JsonlSink(Sink):
    """A line per snapshot, per event and, in files made by the first, per `LayerSample` and per `Spike`, every line
    with `schema_version` and `attempt`.

    In the file within a second; at once with every batch of events and at the end of an epoch, unless several epochs
    end within a tenth of a second.
    """

    def __init__(self, metrics_path: Path, events_path: Path, layers_path: Path, spikes_path: Path) -> None:
        self._metrics = LineFile(metrics_path)
        self._events = LineFile(events_path)
        self._layers = LineFile(layers_path, when_needed=True)
        self._spikes = LineFile(spikes_path, when_needed=True)
        self._files = (self._metrics, self._events, self._layers, self._spikes)
        self._common: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "attempt": 1}
        self._started_at = time.monotonic()

    def start(self, header: RunHeader) -> None:
        self._common["attempt"] = header.attempt
        self._started_at = time.monotonic()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._metrics.poll()

    def snapshot(self, snapshot: Snapshot) -> None:
        seconds = round(time.monotonic() - self._started_at, 3)
        self._metrics.add(lambda: strict_json({**snapshot_fields(snapshot), "seconds": seconds, **self._common}))
        self._metrics.poll_line(snapshot.epoch_end)

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.add(partial(self._line_of, event))
        self._events.poll(now=True)

    def _line_of(self, event: Event) -> str:
        fields = {**asdict(event), **self._common}
        for name in ("optimizer", "phase"):
            if fields[name] is None:
                del fields[name]  # there is only one
        return strict_json(fields)

    def layers(self, step: int, loss_scale: float, layers: Sequence[LayerSample]) -> None:
        for layer in layers:
            line = {"step": step, "loss_scale": loss_scale, **vars(layer), **self._common}
            self._layers.add(partial(strict_json, line))
        self._layers.poll(now=True)

    def spike(self, spike: Spike) -> None:
        self._spikes.add(partial(strict_json, {**vars(spike), **self._common}))
        self._spikes.poll(now=True)

    def write_error(self) -> str | None:
        return next(filter(None, (file.write_error for file in self._files)), None)

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def suspend(self) -> None:
        for file in self._files:
            file.close()

    def rewind(self, step: int, skipped_steps: int) -> None:
        self.reopen()

    def reopen(self) -> None:
        for file in self._files:
            file.open()

    def close(self) -> None:
        with ExitStack() as stack:  # each, also where another fails
            for file in reversed(self._files):
                stack.callback(file.close)


OWN_COLUMNS = (*(field.name for field in fields(Snapshot) if field.name not in ("metrics", "gradients", "phase")),
               *(f"gradient_{name}" for name in GRADIENT_FIELDS))  # fmt: skip


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
            self._columns = ["schema_version", "attempt", *OWN_COLUMNS, *(["phase"] if header.phases else [])]
            self._columns += [name for name in header.metric_names if name not in self._columns]
            self._file.add(lambda: _csv_row(self._columns))
            self._file.flush()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._file.poll()

    def snapshot(self, snapshot: Snapshot) -> None:
        self._file.add(lambda: self._row_of(snapshot))
        self._file.poll_line(snapshot.epoch_end)

    def _row_of(self, snapshot: Snapshot) -> str:
        values = {"schema_version": SCHEMA_VERSION, "attempt": self._attempt, **snapshot_fields(snapshot)}
        return _csv_row([values.get(column) for column in self._columns])

    def write_error(self) -> str | None:
        return self._file.write_error

    def flush(self) -> None:
        self._file.flush()

    def suspend(self) -> None:
        self._file.close()

    def rewind(self, step: int, skipped_steps: int) -> None:
        self.reopen()

    def reopen(self) -> None:
        self._file.open()

    def close(self) -> None:
        self._file.close()


def _existing_columns(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _csv_row(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
