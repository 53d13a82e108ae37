"""A map of exponents, a row for each layer and a column for each sample, with what float16 holds marked in its colours
and the loss scale drawn over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpt_cli.telemetry.format import format_count
from mpt_cli.telemetry.palette import CURVE_COLOURS, NON_FINITE_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpt_cli.report.picture import Curve

FLOAT16 = {-24: "2⁻²⁴ least", -14: "2⁻¹⁴ normal", 0: "1", 15: "2¹⁵ most"}  # exponents of float16's numbers
_TOO_SMALL, _TOO_LARGE = CURVE_COLOURS[3], NON_FINITE_COLOUR
_MOST_TICKS = 6
_ROW_INCHES, _REST_INCHES = 0.19, 0.9


@dataclass(frozen=True)
class Heat:
    """The steps of the columns, marks at (step, row), and the course of the loss scale, where there is one."""

    steps: Sequence[float]
    marks: Sequence[tuple[float, int]] = ()
    scale: "Curve | None" = None


def heat_inches(rows: int) -> float:
    """The height of a map with so many rows."""
    return max(2.2, _REST_INCHES + _ROW_INCHES * rows)


def draw_heat(axes: "Axes", heat: Heat, rows: Mapping[str, Mapping[float, float]]) -> None:
    """`rows` are exponents by step, by the name of a layer; a step without one leaves its place empty.

    Columns are equally wide, however far apart their steps are.
    """
    import matplotlib
    import numpy as np
    from matplotlib.colors import Normalize

    cells = np.array([[row.get(step, np.nan) for step in heat.steps] for row in rows.values()], float)
    colours = matplotlib.colormaps["cividis"].with_extremes(under=_TOO_SMALL, over=_TOO_LARGE)
    # half an exponent beyond the ends: they are float16's own
    mesh = axes.pcolormesh(np.ma.masked_invalid(cells), cmap=colours, norm=Normalize(-24.5, 15.5))
    bar = axes.figure.colorbar(mesh, ax=axes, extend="both", pad=0.14 if heat.scale is not None else 0.02)
    bar.set_ticks([*FLOAT16], labels=[*FLOAT16.values()], fontsize=8)
    bar.ax.set_title("float16", fontsize=8.5, loc="left")
    places = {step: column + 0.5 for column, step in enumerate(heat.steps)}
    axes.plot([places[step] for step, _ in heat.marks], [row + 0.5 for _, row in heat.marks], "x", color="white", ms=4,
              gid="lost")  # fmt: skip
    axes.set_yticks([row + 0.5 for row in range(len(rows))], list(rows), fontsize=8)
    axes.set_ylim(len(rows), 0)
    every = -(-len(heat.steps) // _MOST_TICKS)
    axes.set_xticks([places[step] for step in heat.steps[::every]], [format_count(s) for s in heat.steps[::every]],
                    fontsize=8.5)  # fmt: skip
    axes.grid(False)
    if heat.scale is not None:
        _draw_scale(axes, [places[step] for step in heat.scale.xs], heat.scale.ys)


def _draw_scale(axes: "Axes", columns: Sequence[float], scales: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator

    beside = axes.twinx()
    beside.plot(columns, scales, "-o", color="white", lw=3.4, ms=5)  # a rim, on whatever colour it lies
    beside.plot(columns, scales, "-o", color="black", lw=1.4, ms=2.5, gid="scale")
    beside.set_yscale("log", base=2)
    low, high = min(scales), max(scales)
    beside.set_ylim(low / 4, high * 4)
    beside.yaxis.set_major_locator(LogLocator(base=2, numticks=5))
    beside.set_title("loss scale", fontsize=8.5, loc="right")
    beside.tick_params(labelsize=8)
    beside.grid(False)
