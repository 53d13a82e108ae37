"""Plain lines without control codes: what is said of a run, the same on screen and in console.log (header, skipped
steps, the end), and the console that prints it line by line, for pipes, batch jobs and console.log.
"""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rich.text import Text

from mpt_cli.errors import NUMERICAL, printable
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import conf_override, shell_command
from mpt_cli.telemetry.causes import BEYOND, CAUSES, FORWARD, IN_DOUBT, NAN
from mpt_cli.telemetry.console.table import EpochTable, model_metrics
from mpt_cli.telemetry.format import (
    format_bytes,
    format_count,
    format_fraction,
    format_number,
    format_sample,
    format_scale,
    format_seconds,
    format_share,
    format_whole_seconds,
)
from mpt_cli.telemetry.health import CHRONIC_SHARE, CHRONIC_SKIPS, COLLAPSED
from mpt_cli.telemetry.records import (
    CEILING,
    DATA,
    DECLINE,
    FLOOR,
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
from mpt_cli.telemetry.run_state import THIRD_TIME, EventTally, RunState, is_at_floor, may_still_settle
from mpt_cli.telemetry.sink import LineFile, Sink, reminders

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


def sample_sentence(sample: GradientSample) -> str:
    """Return in a line what the gradients of one batch were like.

    >>> sample_sentence(GradientSample(100, 0.5, 0.0123, 0.25, 9.5))
    'step 100: of the gradients, flushed to 0 1.2%, head-room 2^9'
    """
    found = ", ".join(f"{label} {value}" for label, value in format_sample(sample))
    return f"step {format_count(sample.step)}: of the gradients, {found}"


HINT_SECONDS = 60.0  # from then on it is also said what would be quicker


def phase_line(doing: str, seconds: float, hint: str = "") -> str:
    """Return what to say of a phase that has taken this long.

    >>> phase_line("compiling the training step", 10.0, "trainer.jit_compile=false does without")
    'compiling the training step: 10 s so far'
    >>> phase_line("compiling the training step", 60.0, "trainer.jit_compile=false does without")
    'compiling the training step: 1:00 so far; trainer.jit_compile=false does without'
    """
    so_far = f"{doing}: {format_whole_seconds(seconds)} so far"
    return f"{so_far}; {hint}" if hint and seconds >= HINT_SECONDS else so_far


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
        rows.append(
            ("loss scale", f"{format_scale(summary.final_loss_scale)} at the end{_format_scale_range(summary)}")
        )
    if summary.gradients is not None:
        rows.append(("gradients", _format_gradients(GradientSample(**summary.gradients), summary.steps_seen)))
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
    if not summary.run_dir:
        return []
    run = Path(summary.run_dir)
    if not summary.repeatable:
        return [shell_command("report", run)]
    own = conf_override(run / "config.yaml")
    repeat, go_on = (
        f"{summary.starter} {shell_command('train', own, *words)}".lstrip()
        for words in ((), (format_override("resume", str(run)),))
    )
    if summary.status in ("interrupted", "terminated"):
        return [go_on]
    if summary.exit_code == NUMERICAL:
        overflowed = summary.skipped_steps > 0 or summary.verdict == COLLAPSED
        look_into = [shell_command("diagnose", run if overflowed else own), shell_command("report", run)]
        return [*look_into, f"{repeat} {summary.change}"] if summary.change else look_into
    if summary.exit_code:
        return [go_on, repeat] if any(run.glob("checkpoints/step-*.npz")) else [repeat]
    is_saved = any((run / name).is_file() for name in ("model.keras", "model.weights.h5"))
    can_be_evaluated = is_saved and any(name.startswith("val_") for name in summary.metrics)
    return [shell_command("evaluate", run), repeat] if can_be_evaluated else [repeat]


def _format_scale_range(summary: Summary) -> str:
    low, high = summary.min_loss_scale, summary.max_loss_scale
    if low is None or high is None or low == high:
        return ""
    return f", {format_scale(low)} to {format_scale(high)} on the way"


def _format_gradients(sample: GradientSample, steps_seen: int) -> str:
    """Return what the latest sample said, with its step first: it may come from an earlier attempt."""
    (_, lost), *others = format_sample(sample)
    parts = [
        f"{lost} flushed to zero",
        f"{format_fraction(sample.subnormal_share)} subnormal",
        *(f"{label} {value}" for label, value in others),
        f"norm {format_number(sample.norm)}",
    ]
    return f"at step {format_count(sample.step)} of {format_count(steps_seen)}: {', '.join(parts)}"


def _format_speed(summary: Summary) -> str:
    rate = summary.examples_per_second
    parts = [] if rate is None else [f"{format_count(rate)} examples/s"]
    parts.append(f"{format_seconds(summary.seconds)} in all")
    if summary.peak_memory_bytes is not None:
        parts.append(f"at most {format_bytes(summary.peak_memory_bytes)} of memory")
    return ", ".join(parts)


LONGEST_WAIT_SECONDS = 60.0
FREQUENT_AFTER_STEPS = 200  # beyond it skips that would be chronic at the end of a run aren't called normal


class Narrator:
    """Gathers events and gives out sentences, at most one per waiting time, which doubles each time up to a minute.

    So the first overflow is reported at once, and a run that overflows for hours doesn't bury its own epochs.
    """

    def __init__(self, wait_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._told_at = float("-inf")
        self._pending: list[Event] = []
        self._bounds_told: set[str] = set()
        self._scaling = Scaling()
        self._total_steps: int | None = None
        self._skipped = 0
        self._growth_step = float("inf")  # of the first growth
        self._told_step = 0
        self._tally = EventTally()

    def start(self, header: RunHeader) -> None:
        self._scaling, self._total_steps = header.scaling, header.total_steps
        self._tally = EventTally(header.scaling)

    def add(self, events: Sequence[Event]) -> None:
        self._pending.extend(events)

    def recount(self, snapshot: Snapshot) -> None:
        """Take the trainer's count of skips, which includes those of earlier attempts."""
        if not self._pending:
            self._skipped = snapshot.skipped_steps

    def rewind(self, step: int, skipped_steps: int) -> None:
        """Go back to `step`; what came after it has been printed already."""
        self._skipped, self._told_step = skipped_steps, min(self._told_step, step)
        self._growth_step = self._growth_step if self._growth_step <= step else float("inf")
        self._tally = EventTally(self._scaling)

    def sentences(self, at_once: bool = False) -> list[str]:
        """Return the sentences that are due now, most often none; `at_once` empties what is pending."""
        if not self._pending or not (at_once or self._clock() - self._told_at >= self._wait_seconds):
            return []
        self._told_at = self._clock()
        self._wait_seconds = min(2 * self._wait_seconds, LONGEST_WAIT_SECONDS)
        events, self._pending = self._pending, []
        self._tally.add(events)
        return self._changes(events) + self._bounds(events)

    def _changes(self, events: list[Event]) -> list[str]:
        skips = [event for event in events if event.kind == OVERFLOW]
        growths = [event for event in events if event.kind in (GROWTH, DECLINE)]
        self._skipped += len({event.step for event in skips})
        if not skips and not growths:
            return []
        changes = skips + growths
        start, end = min(event.step for event in changes), max(event.step for event in changes)
        if skips and growths:
            noun = "growth" if self._scaling.growth_steps else "move"
            plural = "" if len(growths) == 1 else "s"
            what = f"{len(skips)} skipped{_format_where(skips)}, {len(growths)} {noun}{plural}"
        else:
            what = _format_skips(skips, self._scaling) if skips else self._scaling.rule.explain_moves(len(growths))
        self._growth_step = min([self._growth_step, *(event.step for event in growths)])
        comment = self._comment(skips) if skips else ""
        self._told_step = end
        so_far = f"; {self._skipped} of {format_count(end)} steps so far" if skips else ""
        steps = f"step {start}" if start == end else f"steps {start}-{end}"
        return [f"{steps}: {what}{self._format_scale_change(changes)}{comment}{so_far}"]

    def _format_scale_change(self, events: list[Event]) -> str:
        events = sorted(events, key=lambda event: event.step)
        before, after = events[0].scale_before, events[-1].scale_after
        if not self._scaling.scales:
            return ""
        if before != after:
            return f", scale {format_scale(before)} → {format_scale(after)}"
        moved = any(event.moves_scale for event in events)
        return f", scale {'back at' if moved else 'stays'} {format_scale(after)}"

    def _comment(self, skips: list[Event]) -> str:
        uncured = self._tally.persistent_nan_steps
        if len(uncured) >= THIRD_TIME and uncured[-1] >= skips[0].step:
            return f": {CAUSES[NAN].hint}"
        run_state = self._run_state(skips)
        for cause in (CAUSES[FORWARD], CAUSES[BEYOND]):
            if cause.fits(run_state, len(skips)):
                return f": {cause.hint}{self._advice(skips) if cause is CAUSES[FORWARD] else ''}"
        if CAUSES[IN_DOUBT].fits(replace(run_state, skip_steps=self._tally.skip_steps), THIRD_TIME):
            return f": {CAUSES[IN_DOUBT].hint}"
        if not self._scaling.growth_steps or self._scaling.on_overflow != "skip":
            return ""
        last = skips[-1].step
        share = len(skips) / max(1, last - self._told_step)
        if last > FREQUENT_AFTER_STEPS and len(skips) >= CHRONIC_SKIPS and share > CHRONIC_SHARE:
            return ": more often than normal"
        if not any(event.moves_scale for event in skips):
            return ""
        if self._growth_step < last:
            return ": normal, the scale had grown as far as it can"
        is_early = may_still_settle(last - self._skipped, self._total_steps or last)
        return ": normal while the scale settles" if is_early else ": the scale had settled before"

    def _advice(self, skips: list[Event]) -> str:
        """Return advice by the first layer whose output was not finite; the advice was not tried."""
        layer = next((event.layer for event in skips if event.layer and event.cause == FORWARD_PASS), None)
        if layer == DATA:
            return "; look at the data"
        if layer is None or not self._scaling.is_needed:
            return "; look at the data and the learning rate"
        return f"; try policy.overrides={{{layer}: float32}} or a lower learning rate"

    def _run_state(self, skips: list[Event]) -> RunState:
        """Return the state that these skips alone show.

        Their scale counts only where nan appeared at the floor: inf may still vanish at a lower scale.
        """
        at_floor = [e.scale_before for e in skips if e.nan and is_at_floor(self._scaling, e.scale_before)]
        return RunState(
            self._scaling,
            steps_seen=skips[-1].step,
            applied_steps=skips[-1].step - self._skipped,
            skip_steps=[event.step for event in skips],
            forward_steps=[event.step for event in skips if event.cause == FORWARD_PASS],
            nan_steps=self._tally.nan_steps,
            scale=min(at_floor, default=None),
        )

    def _bounds(self, events: list[Event]) -> list[str]:
        """Report the floor and the ceiling once each: a run may touch them at every step."""
        sentences = []
        for event in events:
            if event.kind in (FLOOR, CEILING) and event.kind not in self._bounds_told:
                self._bounds_told.add(event.kind)
                verb = "falls" if event.kind == FLOOR else "grows"
                bound = f"the scale is at its {event.kind}, {format_scale(event.scale_after)}, and {verb} no further"
                sentences.append(f"step {event.step}: {bound}")
        return sentences


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
        self._sample: GradientSample | None = None  # the latest
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
        self._narrator.recount(snapshot)
        self._sample = snapshot.gradients or self._sample
        if snapshot.epoch_end:
            self._end_epoch(snapshot)

    def close(self) -> None:
        self._print_sentences(at_once=True)

    def suspend(self) -> None:
        self._print_sentences(at_once=True)

    def rewind(self, step: int, skipped_steps: int) -> None:
        self._narrator.rewind(step, skipped_steps)
        self._epoch_started_at = self._clock()

    def _end_epoch(self, snapshot: Snapshot) -> None:
        now = self._clock()
        self._print_sentences(at_once=True)
        self._print_row(snapshot, now - self._epoch_started_at)
        self._epoch_started_at = now

    def _print_row(self, snapshot: Snapshot, seconds: float | None = None) -> None:
        assert self._table is not None
        self._print_rows(self._table.row(snapshot, seconds, self._width))

    def _print_sentences(self, at_once: bool = False) -> None:
        for sentence in self._narrator.sentences(at_once):
            self._print_beside(sentence)


SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 60.0
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
        self._writing = threading.RLock()  # a phase that lasts is told from another thread

    def phase_lasts(self, doing: str, seconds: float, hint: str) -> None:
        self._write([phase_line(doing, seconds, hint)])

    def end_phase(self, doing: str, seconds: float) -> None:
        if seconds >= next(reminders()):
            self._write([f"{doing} took {format_seconds(seconds)}"])

    def start(self, header: RunHeader) -> None:
        super().start(header)
        self._started_at = self._clock()
        self._write(labelled_lines(header_rows(header)))
        self._write([""])

    def snapshot(self, snapshot: Snapshot) -> None:
        super().snapshot(snapshot)
        now = self._clock()
        if not snapshot.epoch_end and now - self._interval_told_at >= self._wait_seconds(now):
            self._interval_told_at = now
            self._print_beside(self._interval_sentence(snapshot))
            if self._sample is not None:  # until it is told
                self._print_beside(sample_sentence(self._sample))
                self._sample = None

    def _interval_sentence(self, snapshot: Snapshot) -> str:
        """Return where the run is within an epoch: a row of its own kind, which is no row of the table."""
        assert self._table is not None
        cells = {name: text for name, text, _ in self._table.cells(snapshot) if text}
        where = f"step {cells.pop('step')}, epoch {cells.pop('epoch')}"
        return f"{where}: {', '.join(f'{name} {text}' for name, text in cells.items())}"

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

    def suspend(self) -> None:
        super().suspend()
        self._file.flush()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()

    def _append(self, line: str) -> None:
        self._file.add(line)
        self._file.poll()
