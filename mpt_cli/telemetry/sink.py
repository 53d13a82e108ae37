"""What everything that receives telemetry has in common."""

from collections.abc import Sequence

from mpt_cli.telemetry.records import Event, RunHeader, Snapshot, Summary


class Sink:
    """Receives what the trainer reports. A subclass overrides what concerns it; the rest does nothing.

    Order: `start` once, then any number of the middle four, `finish` where the run came to a summary, `close` always.
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

    def trouble(self) -> str | None:
        """Why lines wait in memory instead of being written; None when all is well."""
        return None

    def flush(self) -> None:
        """Everything so far into the files."""

    def release(self) -> None:
        """Let go of files whose lines after a certain step are about to be cut off, everything so far in them."""

    def take_up(self, step: int, skipped_steps: int) -> None:
        """Go on in them: the run is back at `step`, with so many skipped steps before it."""

    def message(self, text: str) -> None:
        """A sentence for the person watching."""

    def finish(self, summary: Summary) -> None:
        """How the run ended, also when it failed."""

    def close(self) -> None:
        """Let go of files and terminal; called also after an exception and without `start`."""
