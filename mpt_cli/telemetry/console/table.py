"""The table of a run's epochs, printed row by row: the same on a screen, in a pipe and in console.log."""

import math
from collections.abc import Iterator

from rich.cells import cell_len

from mpt_cli.telemetry.format import format_count, format_number, format_scale, format_seconds
from mpt_cli.telemetry.record_types import Metrics, RunHeader, Snapshot

GAP = "  "
LEAST_WIDTH = 7  # of a column, so that a longer value seldom moves those after it
HEADING_ROWS = 40  # rows under one heading
OPTIMIZER_PREFIXES = ("loss_scale/", "skipped_steps/", "applied_steps/")


def model_metrics(metrics: Metrics) -> Metrics:
    """Return the metrics of the model, without the counters of further optimizers."""
    return {name: value for name, value in metrics.items() if not name.startswith(OPTIMIZER_PREFIXES)}


class EpochTable:
    """The lines of a run's table: each row, with a heading before it if one is due.

    A heading is due at the first row, after many rows, and when the columns change. The most important columns come
    first: those on the right are left out if they don't fit on the screen.
    """

    def __init__(self, header: RunHeader) -> None:
        self._header = header
        self._metrics = model_metrics(dict.fromkeys(header.metric_names, 0.0))
        self._widths: dict[str, int] = {}
        self._shown: list[tuple[str, int]] = []
        self._rows = 0  # under the heading

    def row(self, snapshot: Snapshot, seconds: float | None, width: int | None) -> list[str]:
        """Return the lines of one row; `seconds` are those of the epoch, None within one."""
        self._metrics |= model_metrics(snapshot.metrics)
        cells = dict(self.cells(snapshot, seconds))
        for name, text in cells.items():
            self._widths[name] = max(self._widths.get(name, LEAST_WIDTH), cell_len(text), len(name))
        shown, end = [], -len(GAP)
        for name in cells:
            end += len(GAP) + self._widths[name]
            if width is None or end <= width:
                shown.append((name, self._widths[name]))
        is_due = shown != self._shown or self._rows >= HEADING_ROWS
        self._shown, self._rows = shown, 1 if is_due else self._rows + 1
        line = GAP.join(cells[name].rjust(wide) for name, wide in shown).rstrip()
        heading = GAP.join(name.rjust(wide) for name, wide in shown)
        return [heading, line] if is_due else [line]

    def position_line(self, snapshot: Snapshot) -> str:
        """Return a line on where the run is within an epoch; it is no row of the table."""
        cells = {name: text for name, text in self.cells(snapshot) if text}
        where = f"step {cells.pop('step')}, epoch {cells.pop('epoch')}"
        return f"{where}: {', '.join(f'{name} {text}' for name, text in cells.items())}"

    def cells(self, snapshot: Snapshot, seconds: float | None = None) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each column."""
        header, metrics = self._header, snapshot.metrics
        yield "epoch", format_epoch(snapshot, header)
        yield "loss", format_number(snapshot.loss)
        if header.scaling.scales:
            yield "scale", format_scale(snapshot.loss_scale)
            yield "skipped", format_count(snapshot.skipped_steps)
        for name in self._metrics:
            if name != "loss":  # the snapshot has its own
                yield name, format_number(metrics[name]) if name in metrics else ""
        for name in metrics:
            kind, _, optimizer = name.partition("/")
            if kind == "loss_scale":  # of one of several
                yield f"scale {optimizer}", format_scale(metrics[name])
                yield f"skipped {optimizer}", format_count(metrics.get(f"skipped_steps/{optimizer}", 0.0))
        if growth_steps := header.scaling.rule.growth_steps:
            yield "grows in", format_count(max(0, growth_steps - snapshot.scale_counter))
        yield "learning rate", f"{snapshot.learning_rate:.3g}"
        yield "step", format_count(snapshot.step)
        rate = snapshot.examples_per_second
        yield "examples/s", "" if rate is None else format_count(rate)
        yield "time", "" if seconds is None else format_seconds(seconds)


def format_epoch(snapshot: Snapshot, header: RunHeader) -> str:
    """Return the epochs done, with hundredths within one: "0.75/3"; "0+/3" where the length is not known."""
    if snapshot.epoch_end:
        return f"{snapshot.epoch}/{header.epochs}"
    if not header.steps_per_epoch:
        return f"{snapshot.epoch - 1}+/{header.epochs}"
    done = min(snapshot.step_in_epoch / header.steps_per_epoch, 0.99)
    return f"{snapshot.epoch - 1 + math.floor(100 * done) / 100:.2f}/{header.epochs}"
