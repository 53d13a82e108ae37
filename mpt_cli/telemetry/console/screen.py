"""What the live area shows: the progress bar and the table of current values, laid out for any width."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mpt_cli.telemetry.console.lines import beside_loss, counter_words
from mpt_cli.telemetry.console.words import (
    bytes_words,
    count_words,
    number_words,
    sample_words,
    scale_words,
    share_words,
)
from mpt_cli.telemetry.records import RunHeader, Snapshot

NARROW, WIDE = 60, 110  # columns: below NARROW one value per row, from WIDE three


@dataclass
class Position:
    """Where the run is; the steps of the first call are left out of the rate, because that call compiled."""

    step: int = 0
    epoch: int = 1
    phase: str = "compiling the first step"
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


def screen(header: RunHeader, position: Position, snapshot: Snapshot | None, width: int) -> RenderableType:
    """The whole live area at this width."""
    rows = [progress_rows(header, position, width)]
    if snapshot is not None:
        rows.append(table(cells(header, snapshot), width))
    return Group(*rows)


def progress_rows(header: RunHeader, position: Position, width: int) -> RenderableType:
    total = header.total_steps
    steps = f"step {count_words(position.step)}" + (f"/{count_words(total)}" if total else "")
    where = Text(f"epoch {position.epoch}/{header.epochs}  {steps}", style="bold", no_wrap=True)
    bar = ProgressBar(total=total, completed=position.step, pulse=total is None)
    left = Text(position.phase or _left_words(position.seconds_left(total)), style="cyan", no_wrap=True)
    grid = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None) if width >= NARROW else (1, None):
        grid.add_column(ratio=ratio)
    if width >= NARROW:
        grid.add_row(where, bar, left)
        return grid
    grid.add_row(bar, left)
    return Group(where, grid)


def cells(header: RunHeader, snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """Label, value and style of everything a person watches."""
    values = [("loss", number_words(snapshot.loss), "bold")]
    values += [(name, number_words(value), "") for name, value in beside_loss(snapshot)]
    values.append(("learning rate", f"{snapshot.learning_rate:.3g}", ""))
    values += _scale_cells(header, snapshot)
    if snapshot.gradients is not None:
        values += [(label, value, "magenta") for label, value in sample_words(snapshot.gradients)]
    rate = snapshot.examples_per_second
    values.append(("examples/s", "–" if rate is None else count_words(rate), ""))
    values.append(("memory", bytes_words(snapshot.memory_bytes), ""))
    return values


def _scale_cells(header: RunHeader, snapshot: Snapshot) -> list[tuple[str, str, str]]:
    if header.scaling.mode == "none":
        return [("loss scale", "not scaled", "dim")]
    skipped = f"{count_words(snapshot.skipped_steps)} ({share_words(snapshot.skipped_steps, snapshot.step)})"
    streak = snapshot.consecutive_skips
    return [
        ("loss scale", scale_words(snapshot.loss_scale), "magenta"),
        ("next growth", counter_words(snapshot, header) or _movement(header), "magenta"),
        ("skipped", skipped, "yellow" if snapshot.skipped_steps else ""),
        ("skip streak", count_words(streak), "bold red" if streak > 1 else "yellow" if streak else ""),
    ]


def _movement(header: RunHeader) -> str:
    """When a scale that counts no steps will move."""
    return "never: fixed" if header.scaling.mode == "fixed" else "with the gradients"


def table(values: list[tuple[str, str, str]], width: int) -> Table:
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


def wrapped(parts: Sequence[str], width: int) -> list[str]:
    """The parts in lines of at most `width` columns where a single part allows it, broken only between parts."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _left_words(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} left" if hours else f"{minutes}:{rest:02d} left"
