"""A run in a notebook: the table of its epochs and below it a line that changes, in one output of the cell.

Only what IPython's kernel has is used, `display` with an id, so that no widgets need be installed: Jupyter, VS Code and
Colab show the page, a terminal or a file the text.
"""

import html
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mpt_cli.telemetry.console.lines import LABEL_WIDTH, EpochConsole, Narrator, final_rows, header_rows, labelled_lines
from mpt_cli.telemetry.console.live import NARRATE_SECONDS, Activities, RunPosition, format_time_left
from mpt_cli.telemetry.console.table import HEADING_STYLE, EpochTable, Extent, Line, plain
from mpt_cli.telemetry.format import format_count, format_number, format_scale
from mpt_cli.telemetry.health import GOOD_VERDICTS
from mpt_cli.telemetry.palette import CURVE_COLOURS, NON_FINITE_COLOUR, SKIPPED_STEP_STYLE
from mpt_cli.telemetry.records import RunHeader, Snapshot, Summary

REFRESH_SECONDS = 0.5
SHOWN_LINES = 40  # of the table; console.log has all
EXTENT = Extent(width=118, height=SHOWN_LINES)  # what a cell shows without a bar to scroll
GOOD_COLOUR = CURVE_COLOURS[2]  # these can be read on a light page and on a dark one
_STYLES = {HEADING_STYLE: "font-weight:bold", SKIPPED_STEP_STYLE: f"color:{NON_FINITE_COLOUR}"}
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
        lines = [*self._top, *([[("", "")]] if self._top else []), *self._lines, *(self._end or [self._live_line()])]
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
