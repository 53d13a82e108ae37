"""Which sinks a run has: from the settings and from where its output goes."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TextIO

from mpt_cli import plugins
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.schema import LoggerSettings, check_sink_key
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.console.live import LiveConsole, NotebookConsole, notebook_update
from mpt_cli.telemetry.console.plain import ConsoleLog, PlainConsole, StreamLines
from mpt_cli.telemetry.sink import Sink, Telemetry, TelemetryFiles
from mpt_cli.telemetry.sinks import (
    CsvSink,
    JsonlSink,
    MlflowSink,
    TensorBoardSink,
    WandbSink,
    check_tensorboard,
    check_tracker,
)


def check_logger(logger: LoggerSettings) -> None:
    """ConfigError where a sink was asked for that can't be had; before a run directory exists."""
    if logger.tensorboard:
        check_tensorboard()
    for name in ("mlflow", "wandb"):
        if getattr(logger, name):
            check_tracker(name)
    _installed_sinks(logger)


def build_telemetry(files: TelemetryFiles, logger: LoggerSettings, stream: TextIO | None = None) -> Telemetry:
    """All sinks of a run. The console goes to `stream`, by default standard output (`--json` passes standard error)."""
    check_logger(logger)
    lines = JsonlSink(files.metrics_jsonl, files.events_jsonl, files.layers_jsonl, files.spikes_jsonl)
    sinks: list[Sink] = [lines, ConsoleLog(files.console_log)]
    if logger.csv:
        sinks.append(CsvSink(files.metrics_csv))
    if logger.tensorboard:
        sinks.append(TensorBoardSink(files.tensorboard))
    if logger.mlflow:
        sinks.append(MlflowSink(files.mlflow))
    if logger.wandb:
        sinks.append(WandbSink(files.wandb))
    sinks += [sink(files.metrics_jsonl.with_name(name)) for name, sink in _installed_sinks(logger).items()]
    return Telemetry([*sinks, *console_sinks(logger.console, stream or sys.stdout)])


def _installed_sinks(logger: LoggerSettings) -> dict[str, Any]:
    """The sinks of other packages that are switched on; each is called with its own path in the run directory."""
    own = {declared.name for declared in fields(LoggerSettings)}
    names = [declared.name for declared in fields(logger) if declared.name not in own]
    return {name: load_sink(name) for name in names if getattr(logger, name)}


def load_sink(name: str) -> Any:
    """The sink that another package has under this name; ConfigError where it can't be used."""
    try:
        check_sink_key(f"logger.{name}")
        return plugins.load_plugin(plugins.SINKS, name, Sink)
    except plugins.PluginError as error:
        raise ConfigError(Problem(f"logger.{name}", f"can't be used: {error}", True)) from error


def console_sinks(mode: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> list[Sink]:
    """`auto` is live in a notebook, and in a terminal that can move its cursor and show the characters; else plain."""
    if mode == "quiet":
        return []
    if mode == "auto" and stream is sys.stdout and (update := notebook_update()) is not None:
        return [NotebookConsole(update, clock)]
    if mode == "live" or (mode == "auto" and _is_live_terminal(stream)):
        return [LiveConsole(PrintableConsole(stream, force_terminal=True), clock)]
    lines = StreamLines(stream)
    return [PlainConsole(lines, clock, bars=lines.has_bars)]


def _is_live_terminal(stream: TextIO) -> bool:
    dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return stream.isatty() and not dumb and (stream.encoding or "").lower().replace("-", "") == "utf8"
