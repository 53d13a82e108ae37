"""Plain lines about a run, without control codes: header, epochs, skipped steps and the end, the same on screen and in
console.log; and the console that prints them one by one, for pipes, batch jobs and console.log.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mpt_cli.errors import NUMERICAL, Say, printable
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import conf_override, shell_command
from mpt_cli.telemetry.console import labelled_lines
from mpt_cli.telemetry.console.table import EpochTable, model_metrics
from mpt_cli.telemetry.format import (
    Rows,
    format_bytes,
    format_count,
    format_number,
    format_scale,
    format_seconds,
    format_share,
    sample_sentence,
)
from mpt_cli.telemetry.health_and_verdict import COLLAPSED
from mpt_cli.telemetry.record_types import (
    DECLINE,
    FORWARD_PASS,
    GROWTH,
    OVERFLOW,
    Event,
    GradientSample,
    Metrics,
    RunHeader,
    Scaling,
    Snapshot,
    Summary,
)
from mpt_cli.telemetry.sink_interface import LineFile, Sink

LABEL_WIDTH = 13
INDENT = 8  # of a sentence between rows: to the right of the epochs, whose column stays free for the eye


def header_rows(header: RunHeader) -> Rows:
    """Return the rows that describe a run before it starts, as label and text."""
    length = f"{header.epochs} epoch{'s' * (header.epochs != 1)}"
    if header.steps_per_epoch:
        length += f" of {format_count(header.steps_per_epoch)} steps"
    if header.total_steps and header.total_steps != header.epochs * (header.steps_per_epoch or 0):
        length += f", ended after {format_count(header.total_steps)} steps in all"
    return [
        ("recipe", header.recipe),
        ("", header.description),
        *header.facts.items(),
        ("length", length),
        ("writes to", header.run_dir),
        *(("warning", warning) for warning in header.warnings),
    ]


def final_rows(summary: Summary) -> Rows:
    """Return the rows on how a run ended, as label and text."""
    rows = [("verdict", summary.verdict), ("", summary.explanation)]
    if summary.status in ("interrupted", "terminated"):
        by = "Ctrl-C (SIGINT)" if summary.status == "interrupted" else "SIGTERM"
        step = format_count(summary.steps_seen)
        ended = ("ended", f"by {by} after step {step}, before the training was complete")
        rows = [ended, *rows] if summary.steps_seen else [("ended", summary.explanation)]  # while it compiled, say
    rows += [*result_rows(summary), ("files", summary.run_dir)]
    rows += [("" if index else "not recorded", sentence) for index, sentence in enumerate(summary.not_recorded)]
    return [*rows, *(("" if index else "next", command) for index, command in enumerate(next_commands(summary)))]


def result_rows(summary: Summary) -> Rows:
    """Return the rows with metrics, skips, scale, speed and memory of a run, as label and text."""
    best = {name: value for name, value in summary.best_metrics.items() if value != summary.metrics.get(name)}
    rows = [("metrics", _format_metrics(summary.metrics)), ("best", _format_metrics(best))]
    skipped, seen = summary.skipped_steps, summary.steps_seen
    rows.append(("skipped", f"{format_count(skipped)} of {format_count(seen)} steps ({format_share(skipped, seen)})"))
    if summary.final_loss_scale is not None:
        low, high = format_scale(summary.min_loss_scale), format_scale(summary.max_loss_scale)
        on_the_way = "" if low == high else f", {low} to {high} on the way"
        rows.append(("loss scale", f"{format_scale(summary.final_loss_scale)} at the end{on_the_way}"))
    if summary.gradients is not None:
        rows.append(("gradients", sample_sentence(GradientSample(**summary.gradients))))
    rows.append(("speed", _format_speed(summary)))
    return [(label, text) for label, text in rows if text]


def _format_metrics(metrics: Metrics) -> str:
    return "  ".join(f"{name} {format_number(value)}" for name, value in model_metrics(metrics).items())


def next_commands(summary: Summary) -> list[str]:
    """Return the commands that a user may want to run next."""
    run = Path(summary.run_dir)
    report, own = shell_command("report", run), conf_override(run / "config.yaml")
    if not summary.run_dir or not summary.repeatable:
        return [report] if summary.run_dir else []

    def train(*words: str) -> str:
        return f"{summary.starter} {shell_command('train', own, *words)}".lstrip()

    if summary.exit_code == NUMERICAL:
        overflowed = summary.skipped_steps > 0 or summary.verdict == COLLAPSED
        return [shell_command("diagnose", run if overflowed else own), report]
    if summary.exit_code:
        return [train(format_override("resume", str(run)))]
    is_saved = any((run / name).is_file() for name in ("model.keras", "model.weights.h5"))
    can_be_evaluated = is_saved and any(name.startswith("val_") for name in summary.metrics)
    return [shell_command("evaluate", run), train()] if can_be_evaluated else [train()]


def _format_speed(summary: Summary) -> str:
    rate = summary.examples_per_second
    parts = [] if rate is None else [f"{format_count(rate)} examples/s"]
    parts.append(f"{format_seconds(summary.seconds)} in all")
    if summary.peak_memory_bytes is not None:
        parts.append(f"at most {format_bytes(summary.peak_memory_bytes)} of memory")
    return ", ".join(parts)


def describe_events(events: Sequence[Event], scaling: Scaling) -> str:
    """Return one line on how many steps were skipped, what was not finite and where, and how the scale moved."""
    skips = [event for event in events if event.kind == OVERFLOW]
    start, end, found = events[0].step, events[-1].step, []
    if skips:
        outcome = "skipped" if scaling.scales else "overflowed, applied all the same"
        found.append(f"{len(skips)} {outcome}{_format_place(skips)}")
    if scaling.scales:
        found.append(f"scale {format_scale(events[0].scale_before)} → {format_scale(events[-1].scale_after)}")
    return f"{f'step {start}' if start == end else f'steps {start}-{end}'}: {', '.join(found)}"


def _format_place(skips: list[Event]) -> str:
    """Return what was not finite and where, from the first skip that knows it, as an example for all."""
    event = next((event for event in skips if event.variable or event.layer), skips[0])
    what = event.fault or " and ".join(name for name in ("inf", "nan") if getattr(event, name)) or "not finite"
    if event.cause == FORWARD_PASS:
        return f" ({what} in the forward pass{f', first in {event.layer}' if event.layer else ''})"
    place = event.variable or event.layer
    return f" ({what}{f' in {place}' if place else ''})"


SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 60.0
WAIT_SHARE = 0.01  # of the time gone: about a hundred lines of a kind per factor e of running time


class PlainConsole(Sink):
    """Writes each line through `write_line` as soon as it is due.

    Every epoch gets a row of the table. Between epochs one line says where the run is, and one what was skipped: the
    first at once, then at most every five seconds, later every minute, so that a run that overflows for hours doesn't
    bury its epochs.
    """

    def __init__(self, write_line: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._write_line, self._clock = write_line, clock
        self._header: RunHeader | None = None
        self._began = self._epoch_began = clock()
        self._told_at: dict[str, float] = {}
        self._pending: list[Event] = []
        self._writing = threading.RLock()  # messages come from other threads too

    @property
    def _width(self) -> int | None:
        """Return how many characters a line may have; None for a file or a pipe."""
        return None

    def start(self, header: RunHeader) -> None:
        self._header, self._table = header, EpochTable(header)
        self._began = self._epoch_began = self._clock()
        self._write([*labelled_lines(header_rows(header), LABEL_WIDTH, self._width), ""])

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._tell_events()

    def events(self, events: Sequence[Event]) -> None:
        self._pending += [event for event in events if event.kind in (OVERFLOW, GROWTH, DECLINE)]
        self._tell_events()

    def snapshot(self, snapshot: Snapshot) -> None:
        if snapshot.epoch_end:
            now = self._clock()
            self._tell_events(at_once=True)
            self._write(self._table.row(snapshot, now - self._epoch_began, self._width))
            self._epoch_began = now
        else:
            self._tell_position(self._table.position_line(snapshot))

    def message(self, text: str) -> None:
        self._write([text])

    def finish(self, summary: Summary) -> None:
        self._tell_events(at_once=True)
        self._write(["", *labelled_lines(final_rows(summary), LABEL_WIDTH, self._width)])

    def close(self) -> None:
        self._tell_events(at_once=True)

    def _tell_position(self, sentence: str) -> None:
        if self._is_due("position"):
            self._write_beside(sentence)

    def _tell_events(self, at_once: bool = False) -> None:
        if not self._pending or not (self._is_due("events") or at_once) or self._header is None:
            return
        events, self._pending = sorted(self._pending, key=lambda event: event.step), []
        self._write_beside(describe_events(events, self._header.scaling))

    def _is_due(self, kind: str) -> bool:
        now = self._clock()
        wait = min(max(WAIT_SHARE * (now - self._began), SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)
        if now - self._told_at.get(kind, float("-inf")) < wait:
            return False
        self._told_at[kind] = now
        return True

    def _write_beside(self, sentence: str) -> None:
        self._write(labelled_lines([("", sentence)], INDENT, self._width))

    def _write(self, lines: Sequence[str]) -> None:
        with self._writing:
            for line in lines:
                self._write_line(printable(line))  # names of layers and metrics are the model's


class ConsoleLog(PlainConsole):
    """console.log: the plain lines, whatever the screen shows."""

    def __init__(self, path: Path, tell: Say) -> None:
        self._file = LineFile(path, tell)
        super().__init__(self._append)

    def progress(self, step: int, epoch: int, phase: str) -> None:
        super().progress(step, epoch, phase)
        with self._writing:
            self._file.poll()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()

    def _append(self, line: str) -> None:
        self._file.add(line)
        self._file.poll(now=True)  # for those who watch, also while a compiler keeps the run from its next line
