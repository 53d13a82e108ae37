"""What everything that receives telemetry has in common, and the one object that hands everything to all of them."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from mpt_cli.errors import printable
from mpt_cli.signals import TimeLimit, unheard
from mpt_cli.telemetry.format import describe_spike
from mpt_cli.telemetry.records import Event, LayerSample, RunHeader, Snapshot, Spike, Summary
from mpt_cli.telemetry.signs import EventTally


class Sink:
    """Receives what the trainer reports. A subclass overrides what concerns it; the rest does nothing.

    Order: `start` once, then any number of the middle five, `finish` where the run came to a summary, `close` always.
    Events of an interval come before the snapshot that closes it.
    """

    def start(self, header: RunHeader) -> None:
        """Called before the first step, which may take long: it compiles."""

    def progress(self, step: int, epoch: int, phase: str) -> None:
        """Called after every call into the compiled loop, so it must cost microseconds."""

    def events(self, events: Sequence[Event]) -> None:
        """All skipped steps and scale changes since the last call, in order of their steps."""

    def snapshot(self, snapshot: Snapshot) -> None:
        """One logged interval or, with `epoch_end`, one epoch."""

    def layers(self, step: int, loss_scale: float, layers: Sequence[LayerSample]) -> None:
        """What a sample after `step` saw in each layer, before the snapshot of the same step."""

    def spike(self, spike: Spike) -> None:
        """The loss jumped; before the snapshot of the interval."""

    def write_error(self) -> str | None:
        """Why lines wait in memory instead of being written; None when all is well."""
        return None

    def flush(self) -> None:
        """Everything so far into the files."""

    def suspend(self) -> None:
        """Let go of files whose lines after a certain step are about to be cut off, everything so far in them."""

    def rewind(self, step: int, skipped_steps: int) -> None:
        """Go on in them: the run is back at `step`, with so many skipped steps before it."""

    def reopen(self) -> None:
        """Go on in them after `suspend`, where nothing was cut off."""

    def message(self, text: str) -> None:
        """A sentence for the person watching."""

    def begin_phase(self, doing: str) -> None:
        """What the run is busy with from now on, which may take long: "compiling the training step". One may lie in
        another, and may come before `start`."""

    def phase_lasts(self, doing: str, seconds: float, hint: str) -> None:
        """It has taken so long; called now and then, from another thread. `hint` says what would be quicker."""

    def end_phase(self, doing: str, seconds: float) -> None:
        """The latest is over."""

    def finish(self, summary: Summary) -> None:
        """How the run ended, also when it failed."""

    def close(self) -> None:
        """Let go of files and terminal; called also after an exception and without `start`."""


def reminders() -> Iterator[float]:
    """After how many seconds it is said that a phase still lasts.

    >>> list(itertools.islice(reminders(), 8))
    [10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0]
    """
    yield from (10.0, 30.0, 60.0, 120.0, 300.0)
    yield from itertools.count(600.0, 600.0)


R = TypeVar("R", RunHeader, Summary)
CutFiles = Callable[[int, int], list[Event]]  # step and completed epochs -> the events that stay


class Telemetry:
    """Fans out to its sinks; a context manager, so that files and terminal are let go whatever happens.

    ```
    with build_telemetry(run.telemetry_files, settings.logger) as telemetry:
        telemetry.start(header)
        ...                                   # after each call into the compiled loop:
        telemetry.progress(step, epoch)
        telemetry.events(drained_events)      # before the snapshot of the same interval
        telemetry.snapshot(snapshot)
        telemetry.finish(summary)
    ```
    Telemetry is never lost silently. Lines that can't be written wait in memory and the user hears of it; DataError at
    the end, or when too many wait, where they never could be.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = tuple(sinks)
        self.tally = EventTally()
        self.cut_files: CutFiles = _cut_nothing  # what takes lines out of the files of the run
        self._write_error: str | None = None

    def start(self, header: RunHeader) -> None:
        header = _redacted(header)
        for sink in self.sinks:
            sink.start(header)

    def progress(self, step: int, epoch: int, phase: str = "") -> None:
        """Where the run is. `phase` says what it is busy with beside training, such as "validating"."""
        for sink in self.sinks:
            sink.progress(step, epoch, phase)
        self._report_write_error()

    def events(self, events: Sequence[Event]) -> None:
        if not events:
            return
        self.tally.add(events)
        for sink in self.sinks:
            sink.events(events)

    def layers(self, step: int, loss_scale: float, layers: Sequence[LayerSample]) -> None:
        for sink in self.sinks:
            sink.layers(step, loss_scale, layers)

    def spike(self, spike: Spike) -> None:
        for sink in self.sinks:
            sink.spike(spike)
        self.message(describe_spike(spike))

    def snapshot(self, snapshot: Snapshot) -> None:
        for sink in self.sinks:
            sink.snapshot(snapshot)

    def _report_write_error(self) -> None:
        error = next(filter(None, (sink.write_error() for sink in self.sinks)), None)
        if (error is None) == (self._write_error is None):
            return
        self._write_error = error
        waiting = f"{error}; its lines wait in memory, training goes on"
        self.message("files can be written again" if error is None else waiting)

    def flush(self) -> None:
        """Everything so far into the files: a checkpoint must not be ahead of the record."""
        for sink in self.sinks:
            sink.flush()

    def rewind(self, step: int, epochs_completed: int) -> None:
        """Forget what was reported after `step`, in the files too: the run goes on from there a second time."""
        for sink in self.sinks:
            sink.suspend()
        self.tally = EventTally(self.tally.scaling)
        self.tally.add(self.cut_files(step, epochs_completed))
        for sink in self.sinks:
            sink.rewind(step, len(self.tally.skip_steps))

    def move_files(self, move: Callable[[], None]) -> None:
        """Let go of the files while `move` makes others at their paths, and go on in those."""
        for sink in self.sinks:
            sink.suspend()
        move()
        for sink in self.sinks:
            sink.reopen()

    def message(self, text: str) -> None:
        for sink in self.sinks:
            sink.message(printable(text))

    @contextmanager
    def busy(self, doing: str, limit: TimeLimit | None = None, hint: str = "") -> Iterator[None]:
        """Around what may take long without a word: the sinks are told, and a signal in here is answered though the
        main thread does not hear it (`signals.unheard`)."""
        started, is_over = time.monotonic(), threading.Event()
        for sink in self.sinks:
            sink.begin_phase(doing)
        threading.Thread(target=self._remind, args=(doing, hint, is_over), daemon=True).start()
        try:
            with unheard(doing, limit):
                yield
        finally:
            is_over.set()
            for sink in self.sinks:
                sink.end_phase(doing, time.monotonic() - started)

    def _remind(self, doing: str, hint: str, is_over: threading.Event) -> None:
        started = time.monotonic()
        for seconds in reminders():
            if is_over.wait(max(0.0, started + seconds - time.monotonic())):
                return
            for sink in self.sinks:
                sink.phase_lasts(doing, seconds, hint)

    def finish(self, summary: Summary) -> None:
        summary = _redacted(summary)
        for sink in self.sinks:
            sink.finish(summary)

    def close(self) -> None:
        """Close every sink, also when closing one of them fails; the first failure is raised after the last."""
        failures: list[Exception] = []
        for sink in self.sinks:
            try:
                sink.close()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # what ended the run matters more than what closing it met
                raise


def _redacted(record: R) -> R:
    """A record with texts that may be shown: without secrets and control codes."""
    texts = {each.name: getattr(record, each.name) for each in fields(record)}
    shown: dict[str, Any] = {name: printable(text) for name, text in texts.items() if isinstance(text, str)}
    return replace(record, **shown)


def _cut_nothing(step: int, epochs_completed: int) -> list[Event]:
    return []


@dataclass(frozen=True)
class TelemetryFiles:
    """Where each sink writes; `runs` knows the names."""

    metrics_jsonl: Path
    events_jsonl: Path
    metrics_csv: Path
    tensorboard: Path
    console_log: Path
    mlflow: Path = Path("mlflow")
    wandb: Path = Path("wandb")
    layers_jsonl: Path = Path("layers.jsonl")
    spikes_jsonl: Path = Path("spikes.jsonl")
