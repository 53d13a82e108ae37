"""A diagnosis as a person reads it: a table of the layers, then what it means."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.diagnose.advice import config_lines, sentences, share_words, window_words
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.diagnose.examination import Point
from mpt_cli.diagnose.ranges import LayerRange
from mpt_cli.diagnose.rows import print_rows
from mpt_cli.diagnose.verification import power_of_two_below
from mpt_cli.precision.gradients import share_flushed, share_subnormal
from mpt_cli.telemetry.console.words import scale_words

MOST_LAYERS = 40  # on the console; the file has all


def print_diagnosis(found: Diagnosis, files: Sequence[str], console: Console) -> None:
    """At 80 columns and more in a terminal; piped, aligned plain lines as wide as they need to be."""
    for point in found.points:
        _print_point(found, point, console)
    rows = [*sentences(found), *(("config", line) for line in config_lines(found)), *(("file", f) for f in files)]
    print_rows(rows, console)


def _print_point(found: Diagnosis, point: Point, console: Console) -> None:
    title = f"step {point.step}: gradients of outputs and weights, the worse of the two"
    shown = most_telling(point.layers)
    titles, rows = _titles(found, point), [_cells(found, point, layer) for layer in shown]
    if console.is_terminal:
        console.print(_rich_table(title, titles, rows))
    else:
        widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
        for row in ([title], titles, *rows):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            console.out(line.rstrip(), highlight=False)
    if len(shown) < len(point.layers):
        console.print(f"and {len(point.layers) - len(shown)} more layers, which bind less, in diagnosis.json")


def most_telling(layers: Sequence[LayerRange]) -> list[LayerRange]:
    """All, or the MOST_LAYERS with the narrowest windows, in the order in which they are called."""

    def width(layer: LayerRange) -> int:
        window = layer.window
        return 300 if window is None else window.highest_power - window.lowest_power

    kept = {layer.name for layer in sorted(layers, key=width)[:MOST_LAYERS]}
    return [layer for layer in layers if layer.name in kept]


def _titles(found: Diagnosis, point: Point) -> list[str]:
    """The shares stand for no scaling, the run's own scale and the recommended one, each once."""
    return ["layer", "largest", *(f"×{scale_words(scale)}" for scale in _scales(found, point)), "subn.", "safe scales",
            "lost updates"]  # fmt: skip


def _scales(found: Diagnosis, point: Point) -> list[float]:
    wanted = [1.0, point.loss_scale, *([found.recommended] if found.recommended else [])]
    return list(dict.fromkeys(wanted))


def _cells(found: Diagnosis, point: Point, layer: LayerRange) -> list[str]:
    exponents = [g.largest_exponent for g in layer.gradients if g.largest_exponent is not None]
    bound = [g.counts for g in layer.gradients if g.is_bound]
    powers = map(power_of_two_below, _scales(found, point))
    flushed = [max((share_flushed(counts, power) for counts in bound), default=None) for power in powers]
    now = power_of_two_below(point.loss_scale)
    subnormal = max((share_subnormal(counts, now) for counts in bound), default=None)
    window = window_words(layer.window) if bound else layer.compute_dtype
    updates = layer.updates
    lost = "-" if updates is None else f"{share_words(updates.lost_float16)} {share_words(updates.lost_bfloat16)}"
    return [layer.name, f"2^{max(exponents)}" if exponents else "0", *map(share_words, flushed),
            share_words(subnormal), window, lost]  # fmt: skip


def _rich_table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for name in titles:
        is_layer = name == "layer"
        table.add_column(name, justify="left" if is_layer else "right", overflow="fold", no_wrap=not is_layer)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row), style="red" if "none" in row else "")
    return table
