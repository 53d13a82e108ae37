"""A picture: its curves, drawn by matplotlib as SVG."""

import io
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpt_cli.errors import missing_extra
from mpt_cli.telemetry.palette import NON_FINITE_COLOUR, PLAIN_STYLE, SKIPPED_STEP_COLOUR, CurveStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_MARKS = 1_000  # of one curve: those that would fall on one place share it
_INK = "#010203"  # stands for currentColor, which matplotlib can't write
_INCHES, _LEGEND_ROW_INCHES = (5.6, 3.3), 0.19
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"),
                    _INK),
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.15, "font.size": 10.5,
    "path.simplify_threshold": 0.5,  # of a pixel: a curve of a million points keeps 2,000, and every peak
    "svg.fonttype": "none", "text.parse_math": False,  # a dollar in a name is one
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Points to be joined in their order; a value that is not finite breaks the line and is marked above it."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    look: CurveStyle = PLAIN_STYLE


@dataclass(frozen=True)
class Picture:
    """`name` is that of a file, `log_base` that of the y axis (None: linear), `skips` steps marked at the bottom."""

    name: str
    title: str
    y_label: str
    curves: Sequence[Curve]
    x_label: str = "step"
    log_base: int | None = None
    log_base_x: int | None = None
    from_zero: bool = False
    skips: Sequence[float] = ()
    note: str = ""


def missing_matplotlib() -> str:
    """Why there are no pictures, in a sentence; empty where they can be drawn."""
    return missing_extra("matplotlib", "plots", "No pictures")


def drawable(pictures: Sequence[Picture]) -> Sequence[Picture]:
    """All of them; none where there is no matplotlib, which is said on standard error, and by the page."""
    if pictures and (missing := missing_matplotlib()):
        print(missing, file=sys.stderr)
        return []
    return pictures


def draw(picture: Picture, on_paper: bool = False) -> str:
    """The text of an SVG element for a page, or `on_paper` one that stands alone, dark on white."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    text = io.StringIO()
    with rc_context({**_STYLE, "svg.hashsalt": picture.name}):  # ids that no other picture of the page has
        canvas = Canvas(figsize=_INCHES, facecolor="white" if on_paper else "none")
        _fill(canvas, picture)
        canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text.getvalue(), flags=re.S)
    if on_paper:
        return svg.replace(_INK, "#1f2328")
    svg = re.sub(r' id="[\w.]+_\d+"| (?:width|height)="[\d.]+pt"', "", svg[svg.index("<svg") :])
    return svg.replace(_INK, "currentColor")


def _fill(canvas: "Canvas", picture: Picture) -> None:
    axes = canvas.subplots()
    axes.set_facecolor("none")
    for curve in picture.curves:
        _plot(axes, curve)
    if len(picture.skips):
        _mark(axes, picture.skips, 0.02, marker="|", color=SKIPPED_STEP_COLOUR, ms=11, mew=1.1, label="skipped step")
    _scale_axes(axes, picture)
    axes.set_xlabel(picture.x_label)
    axes.set_ylabel(picture.y_label)
    labels, below = axes.get_legend_handles_labels()[1], 0.0
    if len(labels) > 1:
        columns = 2 if max(map(len, labels)) <= 24 else 1
        below = _LEGEND_ROW_INCHES * math.ceil(len(labels) / columns)
        canvas.set_figheight(_INCHES[1] + below)
        canvas.legend(loc="lower center", ncols=columns, frameon=False, fontsize=9.5, handlelength=3.2,
                      labelspacing=0.3, borderaxespad=0.2)  # fmt: skip
    canvas.tight_layout(pad=0.4, rect=(0, below / (_INCHES[1] + below), 1, 1))


def _plot(axes: "Axes", curve: Curve) -> None:
    xs, ys = np.asarray(curve.xs, float), np.asarray(curve.ys, float)
    is_lost = ~np.isfinite(ys)
    axes.plot(xs, np.where(is_lost, np.nan, ys), linestyle=curve.look.style or "none", ms=4, lw=1.6,
              marker=curve.look.marker or ("o" if len(xs) == 1 else ""), markevery=1 + len(xs) // MOST_MARKS,
              color=curve.look.colour, label=curve.label or "_")  # fmt: skip
    _mark(axes, xs[is_lost], 0.985, marker="x", color=NON_FINITE_COLOUR, ms=5, clip_on=False, label="_")


def _mark(axes: "Axes", xs: Sequence[float], height: float, **look: Any) -> None:
    """Marks at this share of the height of the axes."""
    apart = [*{int(MOST_MARKS * x / (xs[-1] or 1)): x for x in xs}.values()]
    axes.plot(apart, [height] * len(apart), linestyle="none", transform=axes.get_xaxis_transform(), **look)


def _scale_axes(axes: "Axes", picture: Picture) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    for axis, base, set_scale in ((axes.xaxis, picture.log_base_x, axes.set_xscale),
                                  (axes.yaxis, picture.log_base, axes.set_yscale)):  # fmt: skip
        if base:
            set_scale("log", base=base)
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_locator(MaxNLocator(6, integer=axis is axes.xaxis and picture.x_label == "step"))
        axis.set_major_formatter(FuncFormatter(_format_power_tick if base == 2 else _format_tick))
    if picture.from_zero:
        axes.set_ylim(bottom=0)
    low, high = axes.get_ylim()
    if picture.log_base and high < 8 * low:  # a scale that never moved needs room around it, or the axis has no tick
        axes.set_ylim(math.sqrt(low * high) / 8, math.sqrt(low * high) * 8)


def _format_power_tick(value: float, _: Any = None) -> str:
    """
    >>> _format_power_tick(32768.0), _format_power_tick(0.25)
    ('2¹⁵', '2⁻²')
    """
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2{str(round(exponent)).translate(_SUPERSCRIPT)}" if abs(exponent - round(exponent)) < 1e-6 else ""


def _format_tick(value: float, _: Any = None) -> str:
    """
    >>> _format_tick(25_000.0), _format_tick(1_500_000.0), _format_tick(0.125), _format_tick(0.0)
    ('25k', '1.5M', '0.125', '0')
    """
    for size, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= size:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.6g}"
