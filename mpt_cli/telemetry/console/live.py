"""The console of a terminal, drawn by rich: lines that stay, and below them values that change in place."""

import time

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import ControlType, Segment
from rich.text import Text

from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.format import format_count, format_seconds
from mpt_cli.telemetry.record_types import RunHeader, Summary

REFRESHES_PER_SECOND = 4
# Kept free at the right: the terminal writes ^C behind the last line, and where that breaks into a new one the area
# above it can't be cleared any more.
ECHO_COLUMNS = 4


class LiveConsole(PlainConsole):
    """The plain lines, and below them the progress of the run: rich's live display, drawn by its own thread, so that
    the trainer only stores a reference.

    `close` gives the terminal back (cursor, last line), also after an exception or Ctrl-C.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(Text(line)))
        self._latest = ""
        self._position = 0, 1, ""  # step, epoch, phase
        self._doing: list[tuple[str, float]] = []  # nested phases, each with its start time
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            TimeRemainingColumn(),
            TextColumn("{task.fields[doing]}"),
            auto_refresh=False,
            expand=True,
        )
        self._task = self._bar.add_task("", start=False, total=None, doing="")
        self._console = console
        self._drawn: list[int] = []  # the widths of the lines of the area
        self._live = Live(
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            get_renderable=lambda: self,
            transient=True,
            vertical_overflow="crop",
        )

    @property
    def _width(self) -> int:
        """Return the width of the terminal as it is now."""
        return self._console.width

    def begin_phase(self, doing: str) -> None:
        self._doing.append((doing, time.monotonic()))
        self._live.start()

    def end_phase(self) -> None:
        self._doing.pop()

    def start(self, header: RunHeader) -> None:
        super().start(header)
        self._bar.update(self._task, total=header.total_steps)
        self._live.start()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._position = step, epoch, phase
        super().progress(step, epoch, phase)

    def finish(self, summary: Summary) -> None:
        self._live.stop()
        super().finish(summary)

    def close(self) -> None:
        self._live.stop()
        super().close()

    def _tell_position(self, sentence: str) -> None:
        self._latest = sentence

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the area. A terminal that was made narrower has wrapped the old lines, which rich does not count: clear
        them too.
        """
        lines = console.render_lines(self._area(), options, pad=False)
        if broken := sum((width - 1) // options.max_width for width in self._drawn if width):
            yield Segment(f"\x1b[{broken}A\x1b[J", None, [(ControlType.CURSOR_UP, broken)])
        self._drawn = [Segment.get_line_length(line) for line in lines]
        for line in lines:
            yield from [*line, Segment.line()]

    def _area(self) -> RenderableType:
        """Return where the run is now, and the latest line of the log."""
        doing = ""
        for name, began in self._doing[-1:]:
            doing = f"{name}  {format_seconds(time.monotonic() - began)}"
        if self._header is None:
            return Text(doing)
        step, epoch, phase = self._position
        if step and not self._bar.tasks[0].started:
            self._bar.start_task(self._task)  # the time left comes from the steps after those that compiled
        total = f"/{format_count(self._header.total_steps)}" if self._header.total_steps else ""
        where = f"epoch {epoch}/{self._header.epochs}  step {format_count(step)}{total}"
        self._bar.update(self._task, completed=step, description=where, doing=doing or phase)
        latest = [Text(self._latest, "dim")] if self._latest else []
        return Padding(Group(self._bar, *latest), (0, ECHO_COLUMNS, 0, 0))
