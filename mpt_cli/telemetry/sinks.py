"""The sinks of a run: the JSON Lines files, which other programs read, and the console.

The files grow only by whole lines, so that they stay readable if the run is killed.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TextIO

from mpt_cli.errors import Say
from mpt_cli.files import strict_json
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.console.live import LiveConsole
from mpt_cli.telemetry.console.plain import ConsoleLog, PlainConsole
from mpt_cli.telemetry.record_types import Event, LayerSample, RunHeader, Snapshot, snapshot_fields
from mpt_cli.telemetry.sink_interface import LineFile, Sink, Telemetry, TelemetryFiles
from mpt_cli.telemetry.trackers import TrackerSink, chosen_trackers
from mpt_cli.version import SCHEMA_VERSION


def build_telemetry(files: TelemetryFiles, logger: LoggerSettings, stream: TextIO | None = None) -> Telemetry:
    """Build all sinks of a run. The console writes to `stream`, by default standard output (standard error with
    `--json`).
    """
    telemetry = Telemetry([])
    lines = JsonlSink(files, telemetry.message)
    trackers = [TrackerSink(name, files.path / name) for name in chosen_trackers(logger)]
    consoles = console_sinks(logger.console, stream or sys.stdout)
    telemetry.sinks = (lines, ConsoleLog(files.console_log, telemetry.message), *trackers, *consoles)
    return telemetry


def console_sinks(mode: str, stream: TextIO) -> list[Sink]:
    """Return the console; `auto` is live in a terminal that can move its cursor and show the characters, else plain."""
    if mode == "quiet":
        return []
    if mode == "live" or (mode == "auto" and _is_live_terminal(stream)):
        return [LiveConsole(PrintableConsole(stream, force_terminal=True))]
    return [PlainConsole(PrintableConsole(stream, force_jupyter=False).say)]  # text in a notebook too


def _is_live_terminal(stream: TextIO) -> bool:
    dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return stream.isatty() and not dumb and (stream.encoding or "").lower().replace("-", "") == "utf8"


class JsonlSink(Sink):
    """Writes a line for each snapshot, each event and each `LayerSample` (whose file the first one makes), with
    `schema_version` and `attempt`.

    Lines reach the file within a second, at once after events and at the end of an epoch.
    """

    def __init__(self, files: TelemetryFiles, tell: Say) -> None:
        paths = files.metrics_jsonl, files.events_jsonl, files.layers_jsonl
        self._files = self._metrics, self._events, self._layers = [LineFile(path, tell) for path in paths]
        self._common: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "attempt": 1}
        self._started_at = time.monotonic()

    def start(self, header: RunHeader) -> None:
        self._metrics.open()
        self._events.open()
        self._common["attempt"] = header.attempt
        self._started_at = time.monotonic()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._metrics.poll()

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def close(self) -> None:
        with ExitStack() as stack:  # all of them, even if one fails
            for file in reversed(self._files):
                stack.callback(file.close)

    def snapshot(self, snapshot: Snapshot) -> None:
        seconds = round(time.monotonic() - self._started_at, 3)
        self._add(self._metrics, {**snapshot_fields(snapshot), "seconds": seconds}, snapshot.epoch_end)

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            left_out = "optimizer" if event.optimizer is None else ""
            self._add(self._events, {name: value for name, value in vars(event).items() if name != left_out})
        self._events.poll(now=True)

    def layers(self, step: int, loss_scale: float, layers: Sequence[LayerSample]) -> None:
        for layer in layers:
            self._add(self._layers, {"step": step, "loss_scale": loss_scale, **vars(layer)})
        self._layers.poll(now=True)

    def _add(self, file: LineFile, fields: Mapping[str, Any], now: bool = False) -> None:
        file.add(strict_json({**fields, **self._common}))
        file.poll(now)
