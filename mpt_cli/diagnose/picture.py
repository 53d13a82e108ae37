"""The picture of a diagnosis: gradient magnitudes over exponents, as figure 3 of Micikevicius et al. 2018.

Without scaling above, at the recommended scale below, with what float16 can hold marked.
"""

from collections.abc import Sequence
from math import frexp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.diagnose.ranges import Gradients
from mpt_cli.precision.gradients import EXPONENT_BIAS, INFS, ZEROS, largest_exponent, share_flushed, share_subnormal
from mpt_cli.telemetry.console.words import scale_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLUSHED_BELOW, NORMAL_FROM, OVERFLOW_FROM = -25, -14, 16  # exponents of float16
OUTPUTS, WEIGHTS = "#2a7fd4", "#e07b00"
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
        _bars(axes, outputs, power, OUTPUTS, "gradients of layer outputs", -0.2)
        _bars(axes, weights, power, WEIGHTS, "gradients of weights", 0.2)
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
    chosen: Sequence[Gradients] = [g for g in bound if g.of_weights == of_weights]
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
    zeros = f"{label} ({percent_words(total[ZEROS] / max(total.sum(), 1.0))} are exact zeros)"
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
    shares = [(name, percent_words(share_flushed(total, scale)), percent_words(share_subnormal(total, scale)))
              for name, total in named if largest_exponent(total) is not None]  # fmt: skip
    parts = [f"of {name} {flushed} flushed, {subnormal} subnormal" for name, flushed, subnormal in shares]
    return f"{'without scaling' if scale == 1 else f'loss scale {scale_words(scale)}'}: {'; '.join(parts)}"


def percent_words(share: float) -> str:
    """Two digits, or three where it is a hundred: `.2g` alone writes that as 1e+02.

    >>> percent_words(1.0), percent_words(0.999), percent_words(0.123), percent_words(0.00123), percent_words(0.0)
    ('100 %', '99.9 %', '12 %', '0.12 %', '0 %')
    """
    percent = 100 * share
    return f"{percent:.3g} %" if percent >= 99 else f"{percent:.2g} %"
