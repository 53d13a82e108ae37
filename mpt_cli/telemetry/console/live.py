"""The live screen: values that change in place, and above them the lines that stay."""

import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mpt_cli.telemetry.console.lines import epoch_parts, final_rows, header_rows
from mpt_cli.telemetry.console.narrator import Narrator
from mpt_cli.telemetry.console.screen import Position, screen, wrapped
from mpt_cli.telemetry.records import Event, GradientSample, RunHeader, Snapshot, Summary
from mpt_cli.telemetry.sink import Sink
from mpt_cli.telemetry.verdict import GOOD_VERDICTS

REFRESHES_PER_SECOND = 4
NARRATE_SECONDS = 1.0
# Kept free at the right: the terminal writes ^C behind the last line, and where that breaks into a new one the area
# above it can't be cleared any more.
ECHO_COLUMNS = 4


class LiveConsole(Sink):
    """Rich's live display, drawn by its own thread: what the trainer pays is the storing of a reference.

    `close` gives the terminal back (cursor, last line), also after an exception or Ctrl-C.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._narrator = Narrator(NARRATE_SECONDS)
        self._header: RunHeader | None = None
        self._snapshot: Snapshot | None = None
        self._sample: GradientSample | None = None  # the latest
        self._position = Position()
        self._epoch_started_at = time.monotonic()
        self._live = Live(
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            get_renderable=self._render,
            transient=True,
            vertical_overflow="crop",
        )

    def start(self, header: RunHeader) -> None:
        self._header = header
        self._epoch_started_at = time.monotonic()
        self._narrator.start(header)
        rows = [(label, text, "yellow" if label == "warning" else "") for label, text in header_rows(header)]
        self._console.print(Panel(_rows(rows), title="mpt train", title_align="left", border_style="cyan"))
        self._live.start()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._position.move(step, epoch, phase)
        self._tell(self._narrator.sentences())

    def events(self, events: Sequence[Event]) -> None:
        self._narrator.add(events)
        self._tell(self._narrator.sentences())

    def snapshot(self, snapshot: Snapshot) -> None:
        self._narrator.recount(snapshot)
        self._sample = snapshot.gradients or self._sample
        self._snapshot = replace(snapshot, gradients=self._sample)
        if snapshot.epoch_end and self._header is not None:
            now = time.monotonic()
            self._tell(self._narrator.sentences(at_once=True))
            parts = epoch_parts(snapshot, self._header, now - self._epoch_started_at)
            self._console.print(Text("\n".join(wrapped(parts, self._console.width))))
            self._epoch_started_at = now

    def release(self) -> None:
        self._tell(self._narrator.sentences(at_once=True))

    def take_up(self, step: int, skipped_steps: int) -> None:
        self._narrator.go_back(step, skipped_steps)

    def message(self, text: str) -> None:
        self._console.print(Text(text))

    def finish(self, summary: Summary) -> None:
        self._stop()
        good = summary.exit_code == 0 and summary.verdict in GOOD_VERDICTS
        colour = "green" if good else "red" if summary.exit_code else "yellow"
        rows = [(label, text, f"bold {colour}" if label == "verdict" else "") for label, text in final_rows(summary)]
        self._console.print(Panel(_rows(rows), title=summary.status, title_align="left", border_style=colour))

    def close(self) -> None:
        self._stop()

    def _stop(self) -> None:
        self._live.stop()
        self._tell(self._narrator.sentences(at_once=True))

    def _tell(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self._console.print(Text(sentence, style="yellow"))

    def _render(self) -> RenderableType:
        if self._header is None:
            return ""
        width = max(1, self._console.width - ECHO_COLUMNS)
        return Constrain(screen(self._header, self._position, self._snapshot, width), width)


def _rows(rows: list[tuple[str, str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text, style in rows:
        grid.add_row(label, Text(text, style))
    return grid
