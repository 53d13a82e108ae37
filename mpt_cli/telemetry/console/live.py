"""Consoles whose values change in place: the live screen of a terminal, laid out for any width, below the lines that
stay, and a run in a notebook.

Of a notebook only what IPython's kernel has is used, `display` with an id, so that no widgets need be installed:
Jupyter, VS Code and Colab show the page, a terminal or a file the text.
"""

import html
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mpt_cli.errors import printable
from mpt_cli.telemetry.console.plain import LABEL_WIDTH, EpochConsole, Narrator, final_rows, header_rows, labelled_lines
from mpt_cli.telemetry.console.table import (
    HEADING_STYLE,
    SCALE_STYLE,
    EpochTable,
    Extent,
    Line,
    ScaleTrend,
    beside_loss,
    other_optimizers,
    plain,
)
from mpt_cli.telemetry.format import (
    format_bytes,
    format_count,
    format_number,
    format_sample,
    format_scale,
    format_share,
    format_whole_seconds,
)
from mpt_cli.telemetry.health import GOOD_VERDICTS
from mpt_cli.telemetry.palette import CURVE_COLOURS, NON_FINITE_COLOUR, SKIPPED_STEP_COLOUR, WARNING_STYLE
from mpt_cli.telemetry.records import GradientSample, RunHeader, Snapshot, Summary

NARROW, WIDE = 60, 110  # columns: below NARROW one value per row, from WIDE three


@dataclass
class RunPosition:
    """Where the run is; the steps of the first call are left out of the rate, because that call compiled."""

    step: int = 0
    epoch: int = 1
    phase: str = ""
    first_step: int | None = None
    first_at: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def move(self, step: int, epoch: int, phase: str) -> None:
        self.step, self.epoch, self.phase = step, epoch, phase
        if self.first_step is None and step > 0:
            self.first_step, self.first_at = step, self.clock()

    def seconds_left(self, total_steps: int | None) -> float | None:
        done = self.step - (self.first_step or 0)
        if not total_steps or done <= 0:
            return None
        return (self.clock() - self.first_at) / done * max(0, total_steps - self.step)


class Activities:
    """What the run is busy with: one within the other, each with the time it began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: list[tuple[str, float]] = []

    def begin(self, doing: str) -> None:
        self._begun.append((doing, self._clock()))

    def end(self) -> None:
        self._begun.pop()

    def __str__(self) -> str:
        """The innermost with its seconds, once there are some; empty where there is none."""
        for doing, began in self._begun[-1:]:
            seconds = self._clock() - began
            return f"{doing}  {format_whole_seconds(seconds)}" if seconds >= 1 else doing
        return ""


def screen(
    header: RunHeader, position: RunPosition, snapshot: Snapshot | None, width: int, changes: str = ""
) -> RenderableType:  # fmt: skip
    """The whole live area at this width; `changes` are those of the scale, as bars."""
    rows = [progress_rows(header, position, width)]
    if snapshot is not None:
        rows.append(value_table(value_cells(header, snapshot, changes), width))
    return Group(*rows)


def progress_rows(header: RunHeader, position: RunPosition, width: int) -> RenderableType:
    total = header.total_steps
    steps = f"step {format_count(position.step)}" + (f"/{format_count(total)}" if total else "")
    where = Text(f"epoch {position.epoch}/{header.epochs}  {steps}", style="bold", no_wrap=True)
    bar = ProgressBar(total=total, completed=position.step, pulse=total is None)
    left = Text(position.phase or format_time_left(position.seconds_left(total)), style="cyan", no_wrap=True)
    grid = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None) if width >= NARROW else (1, None):
        grid.add_column(ratio=ratio)
    if width >= NARROW:
        grid.add_row(where, bar, left)
        return grid
    grid.add_row(bar, left)
    return Group(where, grid)


def value_cells(header: RunHeader, snapshot: Snapshot, changes: str = "") -> list[tuple[str, str, str]]:
    """Label, value and style of everything a person watches."""
    values = [] if snapshot.phase is None else [("phase", f"{snapshot.phase}/{len(header.phases)}", "")]
    values += [("loss", format_number(snapshot.loss), "bold")]
    values += [(name, format_number(value), "") for name, value in beside_loss(snapshot)]
    values.append(("learning rate", f"{snapshot.learning_rate:.3g}", ""))
    values += _scale_cells(header, snapshot, changes)
    if snapshot.gradients is not None:
        values += [(label, value, SCALE_STYLE) for label, value in format_sample(snapshot.gradients)]
    rate = snapshot.examples_per_second
    values.append(("examples/s", "–" if rate is None else format_count(rate), ""))
    values.append(("memory", format_bytes(snapshot.memory_bytes), ""))
    return values


def _scale_cells(header: RunHeader, snapshot: Snapshot, changes: str) -> list[tuple[str, str, str]]:
    if not header.scaling.scales:
        return [("loss scale", "not scaled", "dim")]
    skipped = f"{format_count(snapshot.skipped_steps)} ({format_share(snapshot.skipped_steps, snapshot.step)})"
    streak = snapshot.consecutive_skips
    cells = [
        ("loss scale", f"{format_scale(snapshot.loss_scale)} {changes}".rstrip(), SCALE_STYLE),
        ("next growth", header.scaling.rule.next_move(snapshot.scale_counter), SCALE_STYLE),
        ("skipped", skipped, WARNING_STYLE if snapshot.skipped_steps else ""),
        ("skip streak", format_count(streak), "bold red" if streak > 1 else WARNING_STYLE if streak else ""),
    ]
    for name in other_optimizers(snapshot):
        count = snapshot.metrics.get(f"skipped_steps/{name}", 0.0)
        scale = f"{format_scale(snapshot.metrics[f'loss_scale/{name}'])}, {format_count(count)} skipped"
        cells.append((f"scale {name}", scale, WARNING_STYLE if count else SCALE_STYLE))
    return cells


def value_table(values: list[tuple[str, str, str]], width: int) -> Table:
    """Label and value side by side, in as many pairs per row as the width holds."""
    pairs = 1 if width < NARROW else 2 if width < WIDE else 3
    grid = Table.grid(padding=(0, 2, 0, 0), expand=width >= NARROW)
    for _ in range(pairs):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
    for start in range(0, len(values), pairs):
        row = [
            Text(text, style)
            for label, value, style in values[start : start + pairs]
            for text, style in ((label, ""), (value, style))
        ]
        grid.add_row(*row)
    return grid


def format_time_left(seconds: float | None) -> str:
    """
    >>> format_time_left(75.4), format_time_left(None)
    ('1:15 left', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} left" if hours else f"{minutes}:{rest:02d} left"


REFRESHES_PER_SECOND = 4
NARRATE_SECONDS = 1.0
# Kept free at the right: the terminal writes ^C behind the last line, and where that breaks into a new one the area
# above it can't be cleared any more.
ECHO_COLUMNS = 4
MIN_PAGE_LINES, LIVE_LINES = 8, 8  # rows under one heading at least, and what the live area takes of the screen


class LiveConsole(EpochConsole):
    """Rich's live display, drawn by its own thread: what the trainer pays is the storing of a reference.

    `close` gives the terminal back (cursor, last line), also after an exception or Ctrl-C.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells the seconds that epochs take; of a run that another process trains it follows its lines."""
        super().__init__(Narrator(NARRATE_SECONDS), clock)
        self._console = console
        self._header: RunHeader | None = None
        self._trend = ScaleTrend()
        self._snapshot: Snapshot | None = None
        self._sample: GradientSample | None = None  # the latest
        self._position = RunPosition(clock=clock)
        self._activities = Activities()
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            get_renderable=self._render,
            transient=True,
            vertical_overflow="crop",
        )

    def begin_phase(self, doing: str) -> None:
        self._activities.begin(doing)
        self._live.start()

    def end_phase(self, doing: str, seconds: float) -> None:
        self._activities.end()

    def start(self, header: RunHeader) -> None:
        self._header = header
        self._begin(header, EpochTable(header, trend=self._trend))
        rows = [(label, text, "yellow" if label == "warning" else "") for label, text in header_rows(header)]
        self._console.print(Panel(_labelled_grid(rows), title="mpt train", title_align="left", border_style="cyan"))
        self._live.start()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._position.move(step, epoch, phase)
        self._tell()

    def snapshot(self, snapshot: Snapshot) -> None:
        self._narrator.recount(snapshot)
        self._sample = snapshot.gradients or self._sample
        self._snapshot = replace(snapshot, gradients=self._sample)
        if snapshot.epoch_end and self._table is not None:
            self._end_epoch(snapshot)

    def message(self, text: str) -> None:
        self._console.print(Text(text))

    def finish(self, summary: Summary) -> None:
        self._stop()
        good = summary.exit_code == 0 and summary.verdict in GOOD_VERDICTS
        colour = "green" if good else "red" if summary.exit_code else "yellow"
        rows = [(label, text, f"bold {colour}" if label == "verdict" else "") for label, text in final_rows(summary)]
        self._console.print(Panel(_labelled_grid(rows), title=summary.status, title_align="left", border_style=colour))

    def close(self) -> None:
        self._stop()

    def _stop(self) -> None:
        self._live.stop()
        self._tell(at_once=True)

    @property
    def _extent(self) -> Extent:
        """What there is above the live area; of a resized terminal as it is now."""
        return Extent(self._console.width, max(MIN_PAGE_LINES, self._console.height - LIVE_LINES))

    def _print(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._console.print(Text.assemble(*line))

    def _render(self) -> RenderableType:
        phase = str(self._activities)
        width = max(1, self._console.width - ECHO_COLUMNS)
        if self._header is None:
            self._spinner.update(text=Text(phase, style="cyan", no_wrap=True, overflow="ellipsis"))
            return Constrain(self._spinner, width) if phase else ""
        position = replace(self._position, phase=phase or self._position.phase)
        return Constrain(screen(self._header, position, self._snapshot, width, str(self._trend)), width)


def _labelled_grid(rows: list[tuple[str, str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text, style in rows:
        grid.add_row(label, Text(text, style))
    return grid


REFRESH_SECONDS = 0.5
SHOWN_LINES = 40  # of the table; console.log has all
EXTENT = Extent(width=118, height=SHOWN_LINES)  # what a cell shows without a bar to scroll
GOOD_COLOUR = CURVE_COLOURS[2]  # these can be read on a light page and on a dark one
_STYLES = {HEADING_STYLE: "font-weight:bold", WARNING_STYLE: f"color:{SKIPPED_STEP_COLOUR}"}
Update = Callable[[dict[str, str]], None]  # what is shown, by its kind: text/html and text/plain


def notebook_update() -> Update | None:
    """Shows something in an output of its own, and each next time in its place; None outside of a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    display: Any = sys.modules["IPython"].display.display
    handles: list[Any] = []

    def update(shown: dict[str, str]) -> None:
        if handles:
            handles[0].update(shown, raw=True)
        else:
            handles.append(display(shown, raw=True, display_id=True))

    return update


class NotebookConsole(EpochConsole):
    """Keeps the latest lines and shows them anew, at most twice a second, through `update`."""

    def __init__(self, update: Update, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Narrator(NARRATE_SECONDS, clock), clock)
        self._update = update
        self._top: list[Line] = []
        self._lines: deque[Line] = deque(maxlen=SHOWN_LINES)
        self._header: RunHeader | None = None
        self._snapshot: Snapshot | None = None
        self._position, self._activities = RunPosition(clock=clock), Activities(clock)
        self._end: list[Line] = []
        self._shown_at = float("-inf")

    @property
    def _extent(self) -> Extent:
        return EXTENT

    def _print(self, lines: Sequence[Line]) -> None:
        self._lines.extend(lines)

    def begin_phase(self, doing: str) -> None:
        self._activities.begin(doing)
        self._show()

    def end_phase(self, doing: str, seconds: float) -> None:
        self._activities.end()

    def start(self, header: RunHeader) -> None:
        self._header = header
        self._begin(header, EpochTable(header))
        self._top = [[(line, "")] for line in labelled_lines(header_rows(header))]
        self._show()

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._position.move(step, epoch, phase)
        self._tell()
        self._show_if_due()

    def snapshot(self, snapshot: Snapshot) -> None:
        self._narrator.recount(snapshot)
        self._snapshot = snapshot
        if snapshot.epoch_end and self._table is not None:
            self._end_epoch(snapshot)
        self._show_if_due()

    def message(self, text: str) -> None:
        self._lines.append([(text, "")])
        self._show()

    def finish(self, summary: Summary) -> None:
        self._tell(at_once=True)
        good = summary.exit_code == 0 and summary.verdict in GOOD_VERDICTS
        style = f"font-weight:bold;color:{GOOD_COLOUR if good else NON_FINITE_COLOUR}"
        lines = [part for line in labelled_lines(final_rows(summary)) for part in _wrapped(line)]
        self._end = [[("", "")], [(lines[0], style)], *([(line, "")] for line in lines[1:])]
        self._show()

    def close(self) -> None:
        self._tell(at_once=True)
        if self._lines or self._top:
            self._show()

    def _show_if_due(self) -> None:
        if self._clock() - self._shown_at >= REFRESH_SECONDS:
            self._show()

    def _show(self) -> None:
        self._shown_at = self._clock()
        kept = [*self._top, *([[("", "")]] if self._top else []), *self._lines, *(self._end or [self._live_line()])]
        lines = [[(printable(text), style) for text, style in line] for line in kept]
        # a page's own style for <pre> may be another font, in which no column stands under its heading
        style = "font-family:monospace;white-space:pre;line-height:1.3;overflow-x:auto;margin:0"
        page = "\n".join(map(_html, lines))
        self._update({"text/html": f'<pre style="{style}">{page}</pre>', "text/plain": "\n".join(map(plain, lines))})

    def _live_line(self) -> Line:
        """Where the run is now."""
        phase = str(self._activities) or self._position.phase
        if self._header is None:
            return [(phase, "")]
        header, position, snapshot = self._header, replace(self._position), self._snapshot
        total = f"/{format_count(header.total_steps)}" if header.total_steps else ""
        parts = [f"epoch {position.epoch}/{header.epochs}", f"step {format_count(position.step)}{total}"]
        if snapshot is not None:
            parts.append(f"loss {format_number(snapshot.loss)}")
        if snapshot is not None and header.scaling.scales and self._table is not None:
            parts.append(f"scale {format_scale(snapshot.loss_scale)} {self._table.trend}".rstrip())
            parts.append(f"skipped {format_count(snapshot.skipped_steps)}")
        left = phase or format_time_left(position.seconds_left(header.total_steps))
        return [("  ".join([*parts, *([left] if left else [])]), HEADING_STYLE)]


def _wrapped(line: str) -> list[str]:
    """A sentence may be longer than the table is wide."""
    assert EXTENT.width is not None
    return textwrap.wrap(line, EXTENT.width, subsequent_indent=" " * LABEL_WIDTH, break_on_hyphens=False) or [line]


def _html(line: Line) -> str:
    return "".join(_html_piece(text, style) for text, style in line)


def _html_piece(text: str, style: str) -> str:
    """Styles that only a terminal has are left out; those of a page are CSS already."""
    css = _STYLES.get(style, style if ":" in style else "")
    return f'<span style="{css}">{html.escape(text)}</span>' if css else html.escape(text)
