"""metrics.jsonl and events.jsonl: the record other programs read."""

import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from mpt_cli.telemetry.records import SCHEMA_VERSION, Event, GradientSample, RunHeader, Snapshot
from mpt_cli.telemetry.sink import Sink
from mpt_cli.telemetry.sinks.line_file import LineFile
from mpt_cli.telemetry.strict_json import strict_json

SAMPLED = tuple(field.name for field in fields(GradientSample) if field.name != "step")


def snapshot_fields(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as one flat dict: its own fields, the sample of the gradients as `gradient_*` (None where there is
    none), then the metrics by name (a field's name wins)."""
    own = {**vars(snapshot)}
    metrics, sample = own.pop("metrics"), own.pop("gradients")
    own |= {f"gradient_{name}": None if sample is None else getattr(sample, name) for name in SAMPLED}
    return {**own, **{name: value for name, value in metrics.items() if name not in own}}


class JsonlSink(Sink):
    """A line per snapshot and a line per event, every line with `schema_version` and `attempt`.

    In the file within a second; at once with every batch of events and at the end of an epoch, unless several epochs
    end within a tenth of a second.
    """

    def __init__(self, metrics_path: Path, events_path: Path) -> None:
        self._metrics = LineFile(metrics_path)
        self._events = LineFile(events_path)
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
        return strict_json({**asdict(event), **self._common})

    def trouble(self) -> str | None:
        return self._metrics.trouble or self._events.trouble

    def flush(self) -> None:
        self._metrics.flush()
        self._events.flush()

    def release(self) -> None:
        self._metrics.close()
        self._events.close()

    def take_up(self, step: int, skipped_steps: int) -> None:
        self._metrics.open()
        self._events.open()

    def close(self) -> None:
        try:
            self._metrics.close()
        finally:
            self._events.close()
