"""Consoles whose values change in place, drawn by rich: a terminal's, below the lines that stay, and a notebook's.

Of a notebook only what IPython's kernel has is used, `display` with an id, so that no widgets need be installed:
Jupyter, VS Code and Colab show the page, a terminal or a file the text.
"""

import io
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.console.plain import INDENT, EpochConsole, Narrator, final_rows, header_rows
from mpt_cli.telemetry.console.table import SCALE_STYLE, other_optimizers, own_metrics
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
from mpt_cli.telemetry.palette import WARNING_STYLE
from mpt_cli.telemetry.records import GradientSample, RunHeader, Snapshot, Summary

NARRATE_SECONDS = 1.0
REFRESHES_PER_SECOND = 4
# Kept free at the right: the terminal writes ^C behind the last line, and where that breaks into a new one the area
# above it can't be cleared any more.
ECHO_COLUMNS = 4


class DrawnConsole(EpochConsole):
    """What is drawn: panels and rows that stay, and below them where the run is now. A subclass says where to."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells the seconds that epochs take; of a run that another process trains it follows its lines."""
        super().__init__(Narrator(NARRATE_SECONDS, clock), clock)
        self._header: RunHeader | None = None
        self._snapshot: Snapshot | None = None
        self._sample: GradientSample | None = None  # the latest
        self._position = 0, 1, ""  # step, epoch, what it is busy with
        self._doing: list[tuple[str, float]] = []  # one within the other, each with the time it began
        self._spinner = Spinner("dots", style="cyan")
        self._bar = Progress(
            TextColumn("{task.description}", style="bold"), BarColumn(None), TimeRemainingColumn(),
            TextColumn("{task.fields[doing]}", style="cyan"), auto_refresh=False, expand=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", start=False, total=None, doing="")

    @abstractmethod
    def _draw(self, shown: RenderableType) -> None:
        """Show it below what was drawn before, to stay."""

    def _redraw(self, now: bool = False) -> None:
        """Show `_area` anew, where it is not done by itself."""

    def begin_phase(self, doing: str) -> None:
        self._doing.append((doing, time.monotonic()))
        self._redraw(now=True)

    def end_phase(self, doing: str, seconds: float) -> None:
        self._doing.pop()

    def start(self, header: RunHeader) -> None:
        self._header = header
        self._begin(header)
        rows = [(label, text, WARNING_STYLE if label == "warning" else "") for label, text in header_rows(header)]
        self._draw(Panel(_grid(rows), title="mpt train", title_align="left", border_style="cyan"))
        self._bar.update(self._task, total=header.total_steps)
        self._redraw(now=True)

    def progress(self, step: int, epoch: int, phase: str) -> None:
        self._position = step, epoch, phase
        self._tell()
        self._redraw()

    def snapshot(self, snapshot: Snapshot) -> None:
        self._narrator.recount(snapshot)
        self._sample = snapshot.gradients or self._sample
        self._snapshot = snapshot
        if snapshot.epoch_end:
            self._end_epoch(snapshot)
        self._redraw()

    def message(self, text: str) -> None:
        self._draw(Text(text))
        self._redraw(now=True)

    def finish(self, summary: Summary) -> None:
        self._tell(at_once=True)
        good = summary.exit_code == 0 and summary.verdict in GOOD_VERDICTS
        colour = "green" if good else "red" if summary.exit_code else "yellow"
        rows = [(label, text, f"bold {colour}" if label == "verdict" else "") for label, text in final_rows(summary)]
        self._header, self._doing = None, []  # nothing changes any more
        self._draw(Panel(_grid(rows), title=summary.status, title_align="left", border_style=colour))
        self._redraw(now=True)

    def close(self) -> None:
        self._tell(at_once=True)

    def _print_rows(self, lines: Sequence[Text]) -> None:
        for line in lines:
            self._draw(line)

    def _print_beside(self, sentence: str) -> None:
        self._draw(Padding(Text(sentence, WARNING_STYLE), (0, 0, 0, INDENT)))

    def _area(self) -> RenderableType:
        """Where the run is now, and the latest values."""
        doing = ""
        for name, began in self._doing[-1:]:
            seconds = time.monotonic() - began
            doing = f"{name}  {format_whole_seconds(seconds)}" if seconds >= 1 else name
        if self._header is None:
            self._spinner.update(text=Text(doing, "cyan"))
            return self._spinner if doing else ""
        step, epoch, phase = self._position
        if step and not self._bar.tasks[0].started:
            self._bar.start_task(self._task)  # the time left comes from the steps after those that compiled
        total = f"/{format_count(self._header.total_steps)}" if self._header.total_steps else ""
        where = f"epoch {epoch}/{self._header.epochs}  step {format_count(step)}{total}"
        self._bar.update(self._task, completed=step, description=where, doing=doing or phase)
        values = [] if self._snapshot is None else self._values(self._header, self._snapshot)
        cells = [Text.assemble((f"{label} ", "dim"), (value, style)) for label, value, style in values]
        return Padding(Group(self._bar, Columns(cells, padding=(0, 3), equal=True)), (0, ECHO_COLUMNS, 0, 0))

    def _values(self, header: RunHeader, snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
        """Label, value and style of everything a person watches."""
        if snapshot.phase is not None:
            yield "phase", f"{snapshot.phase}/{len(header.phases)}", ""
        yield "loss", format_number(snapshot.loss), "bold"
        for name, value in own_metrics(snapshot.metrics).items():
            if name != "loss":
                yield name, format_number(value), ""
        yield "learning rate", f"{snapshot.learning_rate:.3g}", ""
        if not header.scaling.scales:
            yield "loss scale", "not scaled", "dim"
        else:
            skipped, streak = snapshot.skipped_steps, snapshot.consecutive_skips
            share = f"{format_count(skipped)} ({format_share(skipped, snapshot.step)})"
            yield "loss scale", format_scale(snapshot.loss_scale), SCALE_STYLE
            yield "next growth", header.scaling.rule.next_move(snapshot.scale_counter), SCALE_STYLE
            yield "skipped", share, WARNING_STYLE if skipped else ""
            yield "skip streak", format_count(streak), "bold red" if streak > 1 else WARNING_STYLE if streak else ""
        for name in other_optimizers(snapshot.metrics):
            count = snapshot.metrics.get(f"skipped_steps/{name}", 0.0)
            scale = format_scale(snapshot.metrics[f"loss_scale/{name}"])
            yield f"scale {name}", f"{scale}, {format_count(count)} skipped", WARNING_STYLE if count else SCALE_STYLE
        if self._sample is not None:
            yield from ((label, value, SCALE_STYLE) for label, value in format_sample(self._sample))
        rate = snapshot.examples_per_second
        yield "examples/s", "–" if rate is None else format_count(rate), ""
        yield "memory", format_bytes(snapshot.memory_bytes), ""


def _grid(rows: Sequence[tuple[str, str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text, style in rows:
        grid.add_row(label, Text(text, style))
    return grid


class LiveConsole(DrawnConsole):
    """Rich's live display, drawn by its own thread: what the trainer pays is the storing of a reference.

    `close` gives the terminal back (cursor, last line), also after an exception or Ctrl-C.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._console = console
        self._live = Live(console=console, refresh_per_second=REFRESHES_PER_SECOND, get_renderable=self._area,
                          transient=True, vertical_overflow="crop")  # fmt: skip

    def _draw(self, shown: RenderableType) -> None:
        self._console.print(shown)

    def begin_phase(self, doing: str) -> None:
        super().begin_phase(doing)
        self._live.start()

    def start(self, header: RunHeader) -> None:
        super().start(header)
        self._live.start()

    def finish(self, summary: Summary) -> None:
        self._live.stop()
        super().finish(summary)

    def close(self) -> None:
        self._live.stop()
        super().close()

    @property
    def _width(self) -> int:
        """Of a resized terminal as it is now."""
        return self._console.width


REFRESH_SECONDS = 0.5
SHOWN_PARTS = 40  # rows and sentences; console.log has all
NOTEBOOK_COLUMNS = 118  # what a cell shows without a bar to scroll
# a page's own style for <pre> may be another font, in which no column stands under its heading
_STYLE = "font-family:monospace;white-space:pre;line-height:1.3;overflow-x:auto;margin:0"
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


class NotebookConsole(DrawnConsole):
    """One output, shown anew through `update` at most twice a second: the header, the latest rows, the area below."""

    def __init__(self, update: Update, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._update = update
        self._parts: deque[tuple[str, str]] = deque(maxlen=SHOWN_PARTS)  # as a page and as text
        self._shown_at = float("-inf")

    def _draw(self, shown: RenderableType) -> None:
        self._parts.append(_page_and_text(shown))

    def _redraw(self, now: bool = False) -> None:
        if now or self._clock() - self._shown_at >= REFRESH_SECONDS:
            self._shown_at = self._clock()
            page, text = map("".join, zip(*self._parts, _page_and_text(self._area()), strict=True))
            self._update({"text/html": f'<pre style="{_STYLE}">{page}</pre>', "text/plain": text})

    def close(self) -> None:
        super().close()
        if self._parts:
            self._redraw(now=True)

    @property
    def _width(self) -> int:
        return NOTEBOOK_COLUMNS


def _page_and_text(shown: RenderableType) -> tuple[str, str]:
    console = PrintableConsole(io.StringIO(), record=True, width=NOTEBOOK_COLUMNS, force_jupyter=False)
    console.print(shown)
    page = console.export_html(code_format="{code}", inline_styles=True, clear=False)
    return page, console.export_text()
