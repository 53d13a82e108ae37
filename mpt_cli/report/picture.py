"""A picture: its curves, as data for a page's charts, and drawn by matplotlib as an SVG file."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mpt_cli.errors import missing_extra
from mpt_cli.telemetry.colors import NON_FINITE_COLOR, PLAIN_STYLE, SKIPPED_STEP_COLOR, CurveStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 40_000  # of all curves of a page: with these its file stays under 1 MB
MOST_MARKS = 1_000


@dataclass(frozen=True)
class Curve:
    """Points joined in their order. A value that is not finite breaks the line and is marked above it."""

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
    from_zero: bool = False
    skips: Sequence[float] = ()
    note: str = ""


def missing_matplotlib() -> str:
    """Return why nothing can be drawn without a page, in a sentence; empty where it can."""
    return missing_extra("matplotlib", "plots", "No pictures")


def chart_data(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    """Return what charts.js draws, in JSON's types; long curves are thinned out."""
    most = MOST_POINTS // max(1, sum(len(picture.curves) for picture in pictures))
    return [
        {
            **vars(picture),
            "skips": _distinct_marks(picture.skips),
            "curves": [_curve_data(curve, most) for curve in picture.curves],
        }
        for picture in pictures
    ]


def _curve_data(curve: Curve, most_points: int) -> dict[str, Any]:
    xs, ys = thin_out(np.asarray(curve.xs, float), np.asarray(curve.ys, float), most_points)
    is_finite = np.isfinite(ys)
    return {
        "label": curve.label,
        **vars(curve.look),
        "lost": _distinct_marks(xs[~is_finite]),
        "xs": [float(f"{x:.10g}") for x in xs],
        "ys": [float(f"{y:.5g}") if known else None for y, known in zip(ys, is_finite, strict=True)],
    }


def thin_out(xs: np.ndarray, ys: np.ndarray, most_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many points: the lowest and the highest of each of equal parts, so that no peak is lost.

    >>> xs, ys = thin_out(np.arange(6.0), np.array([5.0, 1.0, 2.0, 0.0, 9.0, 3.0]), 4)
    >>> xs.tolist(), ys.tolist()
    ([0.0, 1.0, 3.0, 4.0], [5.0, 1.0, 0.0, 9.0])
    """
    if len(xs) <= most_points:
        return xs, ys
    parts = np.array_split(np.arange(len(xs)), most_points // 2)
    kept = sorted({int(part[pick(ys[part])]) for part in parts for pick in (np.argmin, np.argmax)})
    return xs[kept], ys[kept]


def _distinct_marks(xs: Sequence[float] | np.ndarray) -> list[float]:
    """Return the places of marks; those that would fall on one place share it."""
    last = float(xs[-1]) or 1.0 if len(xs) else 1.0
    return [*{int(MOST_MARKS * x / last): float(x) for x in xs}.values()]


def draw(picture: Picture) -> str:
    """Return the text of an SVG file, dark on white, with a title for those who can't see it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    text = io.StringIO()
    with rc_context(
        {
            "svg.hashsalt": picture.name,
            "svg.fonttype": "none",
            "text.parse_math": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.15,
            "path.simplify_threshold": 0.5,
        }
    ):
        figure = Figure(figsize=(5.6, 3.5), layout="constrained")
        axes = figure.subplots()
        _fill(axes, picture)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": picture.title})
    return text.getvalue()


def _fill(axes: "Axes", picture: Picture) -> None:
    for curve in picture.curves:
        xs, ys = np.asarray(curve.xs, float), np.asarray(curve.ys, float)
        is_lost = ~np.isfinite(ys)
        axes.plot(
            xs,
            np.where(is_lost, np.nan, ys),
            linestyle=curve.look.style or "none",
            ms=4,
            lw=1.6,
            marker=curve.look.marker or ("o" if len(xs) == 1 else ""),
            markevery=1 + len(xs) // MOST_MARKS,
            color=curve.look.color,
            label=curve.label or "_",
        )
        _mark(axes, _distinct_marks(xs[is_lost]), 0.985, marker="x", color=NON_FINITE_COLOR, label="_")
    if len(picture.skips):
        _mark(axes, _distinct_marks(picture.skips), 0.02, marker="|", color=SKIPPED_STEP_COLOR, label="skipped step")
    if base := picture.log_base:
        axes.set_yscale("log", base=base)
        axes.yaxis.set_major_formatter(partial(_format_power, base))  # its own writes formulas, which are off here
        axes.yaxis.set_minor_formatter("")
    low, high = axes.get_ylim()
    if picture.log_base and high < 8 * low:  # a scale that never moved needs room around it, or the axis has no tick
        axes.set_ylim(math.sqrt(low * high) / 8, math.sqrt(low * high) * 8)
    elif picture.from_zero:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=picture.x_label, ylabel=picture.y_label)


def _format_power(base: int, value: float, _: int | None = None) -> str:
    """
    >>> _format_power(2, 32768.0), _format_power(10, 0.01)
    ('2^15', '10^-2')
    """
    return f"{base}^{round(math.log(value, base))}"


def _mark(axes: "Axes", xs: Sequence[float], height: float, **look: Any) -> None:
    """Draw marks at this share of the height of the axes."""
    axes.plot(xs, [height] * len(xs), linestyle="none", ms=8, transform=axes.get_xaxis_transform(), **look)
