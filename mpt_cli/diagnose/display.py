"""A diagnosis as a person sees it: a table of the layers, what it means, and a picture.

The picture shows gradient magnitudes over exponents, as figure 3 of Micikevicius et al. 2018: without scaling above, at
the recommended scale below, with what float16 can hold marked.
"""

from collections.abc import Sequence
from math import frexp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.diagnose.advice import config_lines, sentences
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.diagnose.examination import ExaminedPoint
from mpt_cli.diagnose.safe_windows import GradientCounts, LayerRange, power_of_two_below
from mpt_cli.precision.gradients import (
    EXPONENT_BIAS,
    INFS,
    ZEROS,
    SafeScales,
    largest_exponent,
    share_flushed,
    share_subnormal,
)
from mpt_cli.report.tables import plain_lines, text_columns
from mpt_cli.telemetry.format import format_fraction, format_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_WIDTH = 9


def print_labelled(rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Label and text; a label that stands for several lines is said once."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=LABEL_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    before = ""
    for label, text in rows:
        if console.is_terminal:
            grid.add_row("" if label == before else label, Text(text))
        else:
            console.out(f"{label:<{LABEL_WIDTH}}  {text}")
        before = label
    if console.is_terminal:
        console.print(grid)


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
    print_labelled(rows, console)


def _print_point(found: Diagnosis, point: ExaminedPoint, console: Console) -> None:
    title = f"step {point.step}: gradients of outputs and weights, the worse of the two"
    shown = most_telling(point.layers)
    titles, rows = _titles(found, point), [_cells(found, point, layer) for layer in shown]
    if console.is_terminal:
        console.print(_rich_table(title, titles, rows))
    else:
        console.out("\n".join([title, *plain_lines(text_columns(titles), rows)]), highlight=False)
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


def _titles(found: Diagnosis, point: ExaminedPoint) -> list[str]:
    """The shares stand for no scaling, the run's own scale and the recommended one, each once."""
    scales = [f"×{_short_scale(scale)}" for scale in _scales(found, point)]
    return ["layer", "max 2^", *scales, "subn.", "safe 2^", "lost %"]


def _scales(found: Diagnosis, point: ExaminedPoint) -> list[float]:
    wanted = [1.0, point.loss_scale, *([found.recommended] if found.recommended else [])]
    return list(dict.fromkeys(wanted))


def _cells(found: Diagnosis, point: ExaminedPoint, layer: LayerRange) -> list[str]:
    exponents = [g.largest_exponent for g in layer.gradients if g.largest_exponent is not None]
    bound = [g.counts for g in layer.gradients if g.is_bound]
    powers = map(power_of_two_below, _scales(found, point))
    flushed = [max((share_flushed(counts, power) for counts in bound), default=None) for power in powers]
    now = power_of_two_below(point.loss_scale)
    subnormal = max((share_subnormal(counts, now) for counts in bound), default=None)
    window = _short_window(layer.window) if bound else layer.compute_dtype
    updates = layer.updates
    lost = "-" if updates is None else f"{100 * updates.lost_float16:.0f}/{100 * updates.lost_bfloat16:.0f}"
    largest = f"{max(exponents)}" if exponents else "-"
    return [layer.name, largest, *map(_short_share, flushed), _short_share(subnormal), window, lost]


def _short_window(window: SafeScales | None) -> str:
    if window is None:
        return "any"
    lowest = "any" if window.lowest_power <= -126 else str(window.lowest_power)
    return "none" if window.empty else f"{lowest}…{window.highest_power}"


def _short_share(share: float | None) -> str:
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


FLUSHED_BELOW, NORMAL_FROM, OVERFLOW_FROM = -25, -14, 16  # exponents of float16
OUTPUTS_COLOUR, WEIGHTS_COLOUR = "#2a7fd4", "#e07b00"
LEAST_SHARE = 1e-6


def write_pictures(found: Diagnosis, png: Path, svg: Path) -> None:
    """Both files anew."""
    from matplotlib import rc_context

    with rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "mpt", "axes.spines.top": False,
                     "axes.spines.right": False}):  # fmt: skip
        figure = _draw(found)
        figure.savefig(png, dpi=150, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None})


def _draw(found: Diagnosis) -> "Figure":
    from matplotlib.figure import Figure

    outputs, weights = _total(found, of_weights=False), _total(found, of_weights=True)
    scales = [1.0] if found.recommended is None else list(dict.fromkeys([1.0, found.recommended]))
    powers = [frexp(scale)[1] - 1 for scale in scales]
    figure = Figure(figsize=(8.0, 1.2 + 2.9 * len(scales)), layout="constrained")
    rows = figure.subplots(len(scales), 1, sharex=True, squeeze=False)[:, 0]
    lowest, highest = _ends([outputs, weights], powers)
    for axes, scale, power in zip(rows, scales, powers, strict=True):
        _mark_float16(axes, lowest, highest)
        _bars(axes, outputs, power, OUTPUTS_COLOUR, "gradients of layer outputs", -0.2)
        _bars(axes, weights, power, WEIGHTS_COLOUR, "gradients of weights", 0.2)
        axes.set_title(scale_title(scale, outputs, weights), loc="left", fontsize=9)
        axes.set_yscale("log")
        axes.set_ylim(LEAST_SHARE, 2.0)
        axes.set_xlim(lowest - 0.8, highest + 0.8)
        axes.set_ylabel("share of all values")
    figure.legend(*rows[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center", ncols=2)
    rows[-1].set_xlabel("exponent: magnitudes from 2^x up to 2^(x+1)")
    steps = ", ".join(str(point.step) for point in found.points)
    figure.suptitle(f"{found.settings.recipe}: gradients of the float16 layers, measured in float32, step {steps}",
                    fontsize=10)  # fmt: skip
    return figure


def _total(found: Diagnosis, of_weights: bool) -> Any:
    """Counts of all layers at all points; of those that flow in float16 where there are any."""
    every = [g for point in found.points for layer in point.layers for g in layer.gradients]
    bound = [g for g in every if g.is_bound] or every
    chosen: Sequence[GradientCounts] = [g for g in bound if g.of_weights == of_weights]
    return sum((g.counts.astype(np.float64) for g in chosen), np.zeros(ZEROS + 1))


def _ends(totals: Sequence[Any], powers: Sequence[int]) -> tuple[int, int]:
    """Exponents at the ends of the axis: everything that was measured, scaled or not, and float16's range."""
    occupied = [np.flatnonzero(_shares(total) > LEAST_SHARE) - EXPONENT_BIAS for total in totals]
    found = [int(e) + power for exponents in occupied if len(exponents) for e in exponents[[0, -1]] for power in powers]
    return min([*found, FLUSHED_BELOW - 3]), max([*found, OVERFLOW_FROM + 2])


def _shares(total: Any) -> Any:
    return total[:INFS] / max(total.sum(), 1.0)


def _bars(axes: "Axes", total: Any, power: int, colour: str, label: str, offset: float) -> None:
    shares = _shares(total)
    places = np.flatnonzero(shares)
    zeros = f"{label} ({format_fraction(total[ZEROS] / max(total.sum(), 1.0))} are exact zeros)"
    axes.bar(places - EXPONENT_BIAS + power + 0.5 + offset, shares[places], 0.4, color=colour, label=zeros, zorder=2)


def _mark_float16(axes: "Axes", lowest: int, highest: int) -> None:
    zones = (
        (lowest - 1, FLUSHED_BELOW, "#d6336c", "zero in float16"),
        (FLUSHED_BELOW, NORMAL_FROM, "#f2b705", "subnormal"),
        (NORMAL_FROM, OVERFLOW_FROM, "#2f9e44", "float16 normal range"),
        (OVERFLOW_FROM, highest + 1, "#d6336c", "inf"),
    )
    for start, end, colour, name in zones:
        axes.axvspan(start, end, color=colour, alpha=0.10, lw=0, zorder=0)
        axes.axvline(end, color=colour, alpha=0.5, lw=0.8, zorder=1) if end <= highest else None
        middle = (max(start, lowest) + min(end, highest)) / 2
        axes.text(middle, 1.2, name, ha="center", va="top", fontsize=8, color="#444444", zorder=3)


def scale_title(scale: float, outputs: Any, weights: Any) -> str:
    """The shares of the nonzero values that become zero or lose digits."""
    named = (("outputs", outputs), ("weights", weights))
    shares = [(name, format_fraction(share_flushed(total, scale)), format_fraction(share_subnormal(total, scale)))
              for name, total in named if largest_exponent(total) is not None]  # fmt: skip
    parts = [f"of {name} {flushed} flushed, {subnormal} subnormal" for name, flushed, subnormal in shares]
    return f"{'without scaling' if scale == 1 else f'loss scale {format_scale(scale)}'}: {'; '.join(parts)}"
