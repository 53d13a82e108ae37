"""Plain lines without control codes: what is said of a run, the same on screen and in console.log (header, skipped
steps, the end), and the console that prints it line by line, for pipes, batch jobs and console.log.
"""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from rich.text import Text

from mpt_cli.errors import NUMERICAL, printable
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import conf_override, shell_command
from mpt_cli.telemetry.console.table import EpochTable, model_metrics
from mpt_cli.telemetry.format import (
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
    RunHeader,
    Scaling,
    Snapshot,
    Summary,
)
from mpt_cli.telemetry.run_state import may_still_settle
from mpt_cli.telemetry.sink_interface import REMINDER_SECONDS, LineFile, Sink

LABEL_WIDTH = 13
INDENT = 8  # of a sentence between rows: to the right of the epochs, whose column stays free for the eye


def header_rows(header: RunHeader) -> list[tuple[str, str]]:
    """Return what the run is, as label and text."""
    length = f"{header.epochs} epochs"
    if header.steps_per_epoch:
        length += f" of {format_count(header.steps_per_epoch)} steps"
    if header.total_steps and header.total_steps != header.epochs * (header.steps_per_epoch or 0):
        length += f", ended after {format_count(header.total_steps)} steps in all"
    rows = [
        ("recipe", header.recipe),
        ("", header.description),
        ("policy", header.policy),
        ("loss scale", header.loss_scale),
        ("model", header.model),
        ("data", header.data),
        ("loss", header.loss),
        ("optimizer", header.optimizer),
        ("callbacks", header.callbacks),
        ("backend", header.backend),
        ("device", header.device),
        ("execution", header.execution),
        ("length", length),
        *((f"phase {number}", line) for number, line in enumerate(header.phases, start=1)),
        ("writes to", header.run_dir),
        *(("warning", warning) for warning in header.warnings),
    ]
    return [(label, text) for label, text in rows if text]


def labelled_lines(rows: list[tuple[str, str]]) -> list[str]:
    return [f"{label:<{LABEL_WIDTH}}{text}" for label, text in rows]


def final_rows(summary: Summary) -> list[tuple[str, str]]:
    """Return how the run ended, as label and text."""
    is_cut = not summary.steps_seen and summary.status in ("interrupted", "terminated")  # while it compiled, say
    rows = [("ended" if is_cut else "verdict", summary.explanation if is_cut else summary.verdict)]
    rows += [] if is_cut else [("", summary.explanation)]
    best = {name: value for name, value in summary.best_metrics.items() if value != summary.metrics.get(name)}
    rows += [("metrics", _format_metrics(summary.metrics)), ("best", _format_metrics(best))]
    skipped, seen = summary.skipped_steps, summary.steps_seen
    rows.append(("skipped", f"{format_count(skipped)} of {format_count(seen)} steps ({format_share(skipped, seen)})"))
    if summary.final_loss_scale is not None:
        low, high = format_scale(summary.min_loss_scale), format_scale(summary.max_loss_scale)
        on_the_way = "" if low == high else f", {low} to {high} on the way"
        rows.append(("loss scale", f"{format_scale(summary.final_loss_scale)} at the end{on_the_way}"))
    if summary.gradients is not None:
        rows.append(("gradients", sample_sentence(GradientSample(**summary.gradients))))
    rows += [("speed", _format_speed(summary)), ("files", summary.run_dir)]
    rows += [("" if index else "not recorded", sentence) for index, sentence in enumerate(summary.not_recorded)]
    if summary.status == "stopped" and summary.run_dir and summary.repeatable:  # recorders write none
        rows.append(("why", f"{summary.run_dir}/postmortem.json: the last steps, batch and weights in numbers"))
    rows += [("" if index else "next", command) for index, command in enumerate(next_commands(summary))]
    return [(label, text) for label, text in rows if text]


def _format_metrics(metrics: dict[str, float]) -> str:
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


LONGEST_WAIT_SECONDS = 60.0


class Narrator:
    """Gathers events and gives out sentences, at most one per waiting time, which doubles each time up to a minute.

    So the first overflow is reported at once, and a run that overflows for hours doesn't bury its own epochs.
    """

    def __init__(self, wait_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_seconds, self._clock = wait_seconds, clock
        self._told_at = float("-inf")
        self._pending: list[Event] = []
        self._scaling = Scaling()
        self._total_steps: int | None = None
        self._skipped = 0

    def start(self, header: RunHeader) -> None:
        self._scaling, self._total_steps, self._skipped = header.scaling, header.total_steps, header.skipped_steps

    def add(self, events: Sequence[Event]) -> None:
        self._pending += [event for event in events if event.kind in (OVERFLOW, GROWTH, DECLINE)]

    def sentences(self, at_once: bool = False) -> list[str]:
        """Return the sentence that is due now, most often none; `at_once` empties what is pending."""
        if not self._pending or not (at_once or self._clock() - self._told_at >= self._wait_seconds):
            return []
        self._told_at = self._clock()
        self._wait_seconds = min(2 * self._wait_seconds, LONGEST_WAIT_SECONDS)
        events, self._pending = sorted(self._pending, key=lambda event: event.step), []
        skips = [event for event in events if event.kind == OVERFLOW]
        self._skipped += len({event.step for event in skips})
        start, end = events[0].step, events[-1].step
        steps = f"step {start}" if start == end else f"steps {start}-{end}"
        so_far = f"; {self._skipped} of {format_count(end)} steps so far" if skips else ""
        what = self._format_events(skips, len(events) - len(skips))
        return [f"{steps}: {what}{self._format_scale_change(events)}{self._comment(skips)}{so_far}"]

    def _format_events(self, skips: list[Event], moves: int) -> str:
        if not moves:
            return _format_skips(skips, self._scaling)
        if not skips:
            return self._scaling.rule.explain_moves(moves)
        noun = "growth" if self._scaling.growth_steps else "move"
        return f"{len(skips)} skipped{_format_where(skips)}, {moves} {noun}{'' if moves == 1 else 's'}"

    def _format_scale_change(self, events: list[Event]) -> str:
        before, after = events[0].scale_before, events[-1].scale_after
        if not self._scaling.scales:
            return ""
        if before != after:
            return f", scale {format_scale(before)} → {format_scale(after)}"
        moved = any(event.moves_scale for event in events)
        return f", scale {'back at' if moved else 'stays'} {format_scale(after)}"

    def _comment(self, skips: list[Event]) -> str:
        """Return what is known of the skips; nothing of nan without inf, which a scale that settles seldom leaves."""
        if skips and all(event.cause == FORWARD_PASS for event in skips):
            return ": the loss itself was not finite, which is not the scale's fault"
        falls = self._scaling.growth_steps and any(event.moves_scale for event in skips)
        if not falls or not all(event.inf and event.cause != FORWARD_PASS for event in skips):
            return ""
        last = skips[-1].step
        is_early = may_still_settle(last - self._skipped, self._total_steps or last)
        return ": normal while the scale settles" if is_early else ""


def _format_skips(skips: list[Event], scaling: Scaling) -> str:
    outcome = "applied all the same" if scaling.applies_overflows else "skipped"
    if len(skips) > 1:
        return f"{len(skips)} {'skipped' if outcome == 'skipped' else f'overflowed, {outcome}'}{_format_where(skips)}"
    if skips[0].cause == FORWARD_PASS:
        where = f", first in {skips[0].layer}" if skips[0].layer else ""
        return f"{_format_bad_values(skips[0])} in the forward pass{where}, step {outcome}"
    return f"gradients overflowed{_format_where(skips)}, step {outcome}"


def _format_where(skips: list[Event]) -> str:
    """Return what was found where, from the first skip that knows it: one example must do for all."""
    for event in skips:
        if event.variable:
            return f" ({_format_bad_values(event)} in {event.variable})"
    return f" ({_format_bad_values(skips[0])})" if skips[0].nan or skips[0].inf else ""


def _format_bad_values(event: Event) -> str:
    """Return what was found at the named place, else in all gradients together."""
    if event.fault:
        return event.fault
    kinds = [word for word, count in (("inf", event.inf), ("nan", event.nan)) if count]
    return " and ".join(kinds) or "not finite"


class EpochConsole(Sink, ABC):
    """What every console keeps, wherever it shows it: the table of epochs, the sentences beside it, and since when the
    epoch runs.
    """

    def __init__(self, narrator: Narrator, clock: Callable[[], float]) -> None:
        self._narrator, self._clock = narrator, clock
        self._table: EpochTable | None = None
        self._epoch_started_at = clock()

    @property
    def _width(self) -> int | None:
        """Return how many characters a row may have; None for a file or a pipe."""
        return None

    @abstractmethod
    def _print_rows(self, lines: Sequence[Text]) -> None:
        """Show lines of the table below what was shown before."""

    @abstractmethod
    def _print_beside(self, sentence: str) -> None:
        """Show a sentence between two rows."""

    def start(self, header: RunHeader) -> None:
        self._table = EpochTable(header)
        self._epoch_started_at = self._clock()
        self._narrator.start(header)

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._print_sentences()

    def events(self, events: Sequence[Event]) -> None:
        self._narrator.add(events)
        self._print_sentences()

    def snapshot(self, snapshot: Snapshot) -> None:
        if snapshot.epoch_end:
            self._end_epoch(snapshot)

    def close(self) -> None:
        self._print_sentences(at_once=True)

    def _end_epoch(self, snapshot: Snapshot) -> None:
        now = self._clock()
        self._print_sentences(at_once=True)
        self._print_row(snapshot, now - self._epoch_started_at)
        self._epoch_started_at = now

    def _print_row(self, snapshot: Snapshot, seconds: float | None = None) -> None:
        assert self._table is not None
        self._print_rows(self._table.row(snapshot, seconds, self._width))

    def _interval_sentence(self, snapshot: Snapshot) -> str:
        """Return where the run is within an epoch: a row of its own kind, which is no row of the table."""
        assert self._table is not None
        cells = {name: text for name, text, _ in self._table.cells(snapshot) if text}
        where = f"step {cells.pop('step')}, epoch {cells.pop('epoch')}"
        return f"{where}: {', '.join(f'{name} {text}' for name, text in cells.items())}"

    def _print_sentences(self, at_once: bool = False) -> None:
        for sentence in self._narrator.sentences(at_once):
            self._print_beside(sentence)


SHORTEST_WAIT_SECONDS = 5.0
WAIT_SHARE = 0.01  # of the time gone: about a hundred interval lines per factor e of running time


class PlainConsole(EpochConsole):
    """Writes each line through `write_line` as soon as it is due.

    Every epoch gets its row of the table, with all columns. Intervals get one at most every five seconds, later every
    minute, and so do overflows.
    """

    def __init__(self, write_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Narrator(SHORTEST_WAIT_SECONDS, clock), clock)
        self._write_line = write_line
        self._started_at = clock()
        self._interval_told_at = float("-inf")
        self._sample: GradientSample | None = None  # the latest, until it is told
        self._writing = threading.RLock()  # a phase that lasts is told from another thread

    def phase_lasts(self, doing: str, seconds: float, hint: str) -> None:
        so_far = f"{doing}: {format_seconds(seconds)} so far"
        self._write([f"{so_far}; {hint}" if hint else so_far])

    def end_phase(self, doing: str, seconds: float) -> None:
        if seconds >= REMINDER_SECONDS:
            self._write([f"{doing} took {format_seconds(seconds)}"])

    def start(self, header: RunHeader) -> None:
        super().start(header)
        self._started_at = self._clock()
        self._write(labelled_lines(header_rows(header)))
        self._write([""])

    def snapshot(self, snapshot: Snapshot) -> None:
        super().snapshot(snapshot)
        self._sample = snapshot.gradients or self._sample
        now = self._clock()
        if not snapshot.epoch_end and now - self._interval_told_at >= self._wait_seconds(now):
            self._interval_told_at = now
            self._print_beside(self._interval_sentence(snapshot))
            if self._sample is not None:
                self._print_beside(sample_sentence(self._sample))
                self._sample = None

    def message(self, text: str) -> None:
        self._write([text])

    def finish(self, summary: Summary) -> None:
        self._print_sentences(at_once=True)
        self._write(["", *labelled_lines(final_rows(summary))])

    def _print_rows(self, lines: Sequence[Text]) -> None:
        self._write([line.plain.rstrip() for line in lines])

    def _print_beside(self, sentence: str) -> None:
        self._write([f"{'':{INDENT}}{sentence}"])

    def _wait_seconds(self, now: float) -> float:
        return min(max(WAIT_SHARE * (now - self._started_at), SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)

    def _write(self, lines: Sequence[str]) -> None:
        with self._writing:
            for line in lines:
                self._write_line(printable(line))  # names of layers and metrics are the model's


class StreamLines:
    """Writes lines to a stream, flushed at once; falls silent when nobody reads any more (`mpt train … | head`).

    The run itself goes on: its files have everything. Characters the stream's encoding lacks become `?`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_open = True  # whether anybody reads, as far as is known

    def __call__(self, line: str) -> None:
        if not self.is_open:
            return
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self.is_open = False
            self._discard_the_rest()

    def _discard_the_rest(self) -> None:
        """Point the descriptor at nothing, or Python's own flush at exit fails and changes the exit code."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)


class ConsoleLog(PlainConsole):
    """console.log: the plain lines, whatever the screen shows."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        super().__init__(self._append)

    def progress(self, step: int, epoch: int, phase: str) -> None:
        super().progress(step, epoch, phase)
        with self._writing:
            self._file.poll()

    def write_error(self) -> str | None:
        return self._file.write_error

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()

    def _append(self, line: str) -> None:
        self._file.add(line)
        self._file.poll(now=True)  # for those who watch, also while a compiler keeps the run from its next line
