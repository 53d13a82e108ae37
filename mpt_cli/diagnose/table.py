"""A diagnosis as a person reads it: a table of the layers, then what it means."""

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.diagnose.advice import config_lines, sentences
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.diagnose.examination import Point
from mpt_cli.diagnose.ranges import LayerRange
from mpt_cli.diagnose.rows import print_rows
from mpt_cli.diagnose.verification import power_of_two_below
from mpt_cli.precision.gradients import SafeScales, share_flushed, share_subnormal

LEGEND = """max 2^: exponent of the largest; ×S: share flushed to zero at loss scale S;
subn.: share subnormal at the run's scale; safe 2^: exponents of safe scales;
lost %: updates that rounding would lose in float16/bfloat16 weights"""
MOST_LAYERS = 40  # on the console; the file has all
MOST_LAYERS_OF_EACH = 12  # of a model with more only the step that binds the scale is shown


def print_diagnosis(found: Diagnosis, files: Sequence[str], console: Console) -> None:
    """At 80 columns and more in a terminal; piped, aligned plain lines as wide as they need to be."""
    shown = found.points if len(found.layers) <= MOST_LAYERS_OF_EACH else [found.verified_point]
    for point in shown:
        _print_point(found, point, console)
    if len(shown) < len(found.points):
        console.print("the layers at the other steps are in diagnosis.json", soft_wrap=True)
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
    console.print(Text(LEGEND, style="dim"), soft_wrap=True)
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
    scales = [f"×{_short_scale(scale)}" for scale in _scales(found, point)]
    return ["layer", "max 2^", *scales, "subn.", "safe 2^", "lost %"]


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
    window = _powers(layer.window) if bound else layer.compute_dtype
    updates = layer.updates
    lost = "-" if updates is None else f"{100 * updates.lost_float16:.0f}/{100 * updates.lost_bfloat16:.0f}"
    largest = f"{max(exponents)}" if exponents else "-"
    return [layer.name, largest, *map(_short, flushed), _short(subnormal), window, lost]


def _powers(window: SafeScales | None) -> str:
    if window is None:
        return "any"
    lowest = "any" if window.lowest_power <= -126 else str(window.lowest_power)
    return "none" if window.empty else f"{lowest}…{window.highest_power}"


def _short(share: float | None) -> str:
    """Few letters: what is less than a ten-thousandth is said to be that."""
    if share is None or share == 0:
        return "-" if share is None else "0"
    return "<.01%" if share < 1e-4 else f"{100 * share:.0f}%" if share >= 0.1 else f"{100 * share:.2g}%"


def _short_scale(scale: float) -> str:
    power = power_of_two_below(scale)
    return f"2^{int(np.log2(power))}" if power == scale and scale != 1 else f"{scale:g}"


def _rich_table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False,
                  show_edge=False)  # fmt: skip
    for name in titles:
        is_layer = name == "layer"
        table.add_column(name, justify="left" if is_layer else "right", overflow="fold", no_wrap=not is_layer)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row), style="red" if "none" in row else "")
    return table
