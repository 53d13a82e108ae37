"""A picture: its curves, with few points and every peak; in words and numbers; drawn as SVG and PNG.

A heat map is one of exponents, a row for each layer and a column for each sample, with what float16 holds marked in its
colours and the loss scale drawn over it.
"""

import io
import math
import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

from mpt_cli.errors import missing_extra
from mpt_cli.telemetry.format import format_count
from mpt_cli.telemetry.palette import CURVE_COLOURS, NON_FINITE_COLOUR, PLAIN_STYLE, SKIPPED_STEP_COLOUR, CurveStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


MOST_POINTS = 40_000  # of one picture, whatever the number of its curves: about a megabyte of SVG
FEWEST_BUCKETS = 60


def buckets_for(curves: int) -> int:
    """How many stretches a curve may be cut into where a picture has this many of them."""
    return max(FEWEST_BUCKETS, min(1_000, MOST_POINTS // (4 * max(1, curves))))


def thin(xs: Sequence[float], ys: Sequence[float], buckets: int) -> tuple[list[float], list[float]]:
    """At most four points of each of `buckets` equal stretches of x: first, lowest, highest, last, in their order.

    A curve that has no more than that is returned as it is. Values that are not finite are left out, except that one
    stands for each gap they make, so that the line breaks there.

    >>> thin(range(1000), [0.0] * 500 + [9.0] + [0.0] * 499, 2)
    ([0, 499, 500, 501, 999], [0.0, 0.0, 9.0, 0.0, 0.0])
    """
    if len(xs) <= 4 * buckets:
        return list(xs), list(ys)
    left, width = xs[0], (xs[-1] - xs[0]) / buckets or 1.0
    kept: list[int] = []
    start = 0
    for bucket in range(buckets):
        end = start
        edge = left + (bucket + 1) * width if bucket < buckets - 1 else math.inf
        while end < len(xs) and xs[end] < edge:
            end += 1
        kept += _corners(ys, start, end)
        start = end
    return [xs[index] for index in kept], [ys[index] for index in kept]


def _corners(ys: Sequence[float], start: int, end: int) -> list[int]:
    """Indices of the first, lowest, highest and last value of a stretch, and of one that is not finite."""
    finite = [index for index in range(start, end) if math.isfinite(ys[index])]
    found = {index for index in (start, end - 1) if start <= index < end}
    if finite:
        found |= {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__), finite[0], finite[-1]}
    if len(finite) < end - start:
        found.add(next(index for index in range(start, end) if not math.isfinite(ys[index])))
    corners = sorted(found)
    return corners if len(corners) <= 4 else _without_plain_ends(corners, ys)


def _without_plain_ends(corners: list[int], ys: Sequence[float]) -> list[int]:
    """At most four: the extremes and a gap matter more than where the stretch begins and ends."""
    finite = [index for index in corners if math.isfinite(ys[index])]
    must = {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)} if finite else set()
    must |= set([index for index in corners if not math.isfinite(ys[index])][:1])
    for index in (corners[0], corners[-1]):
        if len(must) < 4:
            must.add(index)
    return sorted(must)


def thin_marks(steps: Sequence[int], last_step: int, places: int = 2_000) -> "array[float]":
    """Where to draw marks so that each of `steps` has one: those that fall on one place of the picture share it.

    >>> list(thin_marks([1, 2, 3, 1_000_000], 1_000_000, places=3))
    [1.0, 1000000.0]
    """
    if len(steps) <= places:
        return array("d", steps)
    width = max(1.0, last_step / places)
    found: dict[int, int] = {}
    for step in steps:
        found.setdefault(int(step / width), step)
    return array("d", found.values())


@dataclass(frozen=True)
class Curve:
    """Points to be joined in their order; a value that is not finite breaks the line and is marked above it."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    look: CurveStyle = PLAIN_STYLE
    is_part: bool = False  # of the curve before it: without a row of its own in the table


@dataclass(frozen=True)
class Picture:
    """`name` is that of its files, `log_base` that of the y axis (None: linear), `rug` steps marked at the bottom."""

    name: str
    title: str
    y_label: str
    curves: list[Curve]
    x_label: str = "step"
    log_base: int | None = None
    log_base_x: int | None = None
    from_zero: bool = False
    rug: Sequence[float] = ()
    rug_label: str = ""
    note: str = ""
    levels: dict[str, float] = field(default_factory=dict)  # horizontal lines by what they mean
    lanes: Sequence[str] = ()  # names of y = 0, 1, 2 …, from the top
    x_end: float | None = None  # where the x axis ends that begins at 0; None: as the points are
    is_of_several: bool = False  # runs: then one curve alone needs its name too
    heat: Heat | None = None  # the curves are rows of a map, their values its colours

    @property
    def description(self) -> str:
        """What a person who can't see it should know."""
        shown = [curve for curve in self.curves if not curve.is_part]
        count = f"{len(shown)} curve{'s' if len(shown) != 1 else ''}"
        parts = [f"{self.y_label} over {self.x_label}, {count}."]
        parts += [] if self.lanes else [describe_curve(curve) for curve in shown[:6]]
        parts += [f"And {len(shown) - 6} more, in the table below."] if len(shown) > 6 and not self.lanes else []
        return " ".join([*parts, self.note]).strip()

    def rows(self) -> list[list[str]]:
        """The table that stands for the picture: curve, first, lowest, highest and last value, each with its x."""
        return [_table_row(curve, bool(self.lanes)) for curve in self.curves if not curve.is_part]


TABLE_TITLES = ("curve", "points", "first", "lowest", "highest", "last")


def describe_curve(curve: Curve) -> str:
    """One curve in a sentence."""
    points = _finite_points(curve)
    if not points:
        return f"{curve.label}: no finite value."
    (_, first), (_, last) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = f"between {format_axis_value(low)} and {format_axis_value(high)}"
    return f"{curve.label}: from {format_axis_value(first)} to {format_axis_value(last)}, {span}."


def format_axis_value(value: float) -> str:
    """A finite value of either axis: four digits at least, and all before the point of what is below a million.

    >>> [format_axis_value(value) for value in (0.00031622, 0.25, 32768.0, 16982.7, 2e7)]
    ['0.0003162', '0.25', '32,768', '16,983', '2e+07']
    """
    is_whole = abs(value) < 1e6 and (abs(value) >= 1e3 or value == round(value))
    return f"{value:,.0f}" if is_whole else f"{value:.4g}"


def _table_row(curve: Curve, is_lane: bool) -> list[str]:
    points = _finite_points(curve)
    if is_lane and points:
        xs = [_format_x(x) for x, _ in points]
        return [curve.label, format_count(len(points)), xs[0], "-", "-", xs[-1]]
    lost = len(curve.ys) - len(points)
    count = format_count(len(curve.ys)) + (f" ({format_count(lost)} not finite)" if lost else "")
    if not points:
        return [curve.label, count, "-", "-", "-", "-"]
    ends = [points[0], min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1]), points[-1]]
    return [curve.label, count, *(f"{format_axis_value(y)} at {_format_x(x)}" for x, y in ends)]


def _format_x(x: float) -> str:
    """A step in full, however late."""
    return format_count(x) if x == round(x) else format_axis_value(x)


def _finite_points(curve: Curve) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if math.isfinite(y)]


_INK = "#010203"  # stands for currentColor, which matplotlib can't write
_PAPER_INK = "#1f2328"
_INCHES = (5.6, 3.3)
_LEGEND_ROW_INCHES = 0.19
_PNG_DPI = 160
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_LEGEND = 14
_MOST_LANE_NAMES = 16
_LANE_NAME_LENGTH = 20


@dataclass(frozen=True)
class Drawing:
    """`inline` goes into a page; `svg` and `png` are whole files, dark ink on white."""

    picture: Picture
    inline: str
    svg: str
    png: bytes


def missing_matplotlib() -> str:
    """Why there are no pictures, in a sentence; empty where they can be drawn."""
    return missing_extra("matplotlib", "plots", "No pictures")


def import_matplotlib_ahead() -> None:
    """matplotlib, beside what this process does or waits for: it takes 0.3 seconds, and pictures follow at the end.
    Where it can't be imported, that is said when they are drawn."""
    if not missing_matplotlib():
        Thread(target=partial(import_module, "matplotlib.figure"), daemon=True).start()


def draw_all(pictures: Sequence[Picture]) -> list[Drawing]:
    """Each of them; none where there is no matplotlib, which is said on standard error, and by the page."""
    if pictures and (missing := missing_matplotlib()):
        print(missing, file=sys.stderr)
        return []
    return [draw(picture) for picture in pictures]


def draw(picture: Picture) -> Drawing:
    """Off screen, without pyplot's global state; the same input gives the same text."""
    from matplotlib import rc_context

    with rc_context(_matplotlib_style()):
        figure = _figure(picture)
        text, png = _svg_text(figure), _png_bytes(figure)
    svg = _with_accessible_names(_without_metadata(text), picture)
    paper = re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="#fff"/>', svg, count=1)
    file = '<?xml version="1.0" encoding="utf-8"?>\n' + paper.replace(_INK, _PAPER_INK)
    return Drawing(picture, svg.replace(_INK, "currentColor"), file, png)


def _svg_text(figure: "Figure") -> str:
    """By its canvas itself: `savefig` draws everything twice, the first time for nothing."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text, canvas = io.StringIO(), cast(Any, FigureCanvasSVG)(figure)
    canvas.print_svg(text, metadata={"Date": None})
    return text.getvalue()


def _png_bytes(figure: "Figure") -> bytes:
    """On white paper, which the figure has from now on."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(_PNG_DPI)
    figure.set_facecolor("white")
    png, canvas = io.BytesIO(), cast(Any, FigureCanvasAgg)(figure)
    canvas.print_png(png, metadata={"Software": None})
    return png.getvalue()


def _matplotlib_style() -> dict[Any, Any]:
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    return {
        **dict.fromkeys(inked, _INK), "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.alpha": 0.15, "svg.fonttype": "none", "svg.hashsalt": "mpt", "font.family": "sans-serif",
        "font.size": 10.5, "path.simplify": True,
    }  # fmt: skip


def _figure(picture: Picture) -> "Figure":
    from matplotlib.figure import Figure

    if picture.heat is not None:
        return _heat_figure(picture, picture.heat)
    named = [curve for curve in picture.curves if not curve.look.quiet and curve.label and not curve.is_part]
    named = [] if picture.lanes else named
    needs_names = len(named) > 1 or picture.rug_label or picture.is_of_several
    entries = min(_MOST_LEGEND, len(named)) if needs_names else 0
    columns = 2 if max((len(curve.label) for curve in named), default=0) <= 24 else 1
    below = _LEGEND_ROW_INCHES * math.ceil((entries + bool(picture.rug_label)) / columns)
    height = _INCHES[1] + below
    figure = Figure(figsize=(_INCHES[0], height), facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    _fill_axes(axes, picture, {id(curve) for curve in named[:_MOST_LEGEND]})
    if entries:
        figure.legend(loc="lower center", borderaxespad=0.2, ncols=columns, frameon=False, fontsize=9.5,
                      handlelength=3.2, labelspacing=0.3)  # fmt: skip
    figure.tight_layout(pad=0.4, rect=(0, below / height, 1, 1))
    return figure


def _heat_figure(picture: Picture, heat: Heat) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES[0], heat_inches(len(picture.curves))), facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    rows = {_shorten(curve.label, last=True): dict(zip(curve.xs, curve.ys, strict=True)) for curve in picture.curves}
    draw_heat(axes, heat, rows)
    axes.set_xlabel(picture.x_label)
    figure.tight_layout(pad=0.4)
    return figure


def _fill_axes(axes: "Axes", picture: Picture, named: set[int]) -> None:
    for curve in sorted(picture.curves, key=lambda curve: not curve.look.quiet):  # the quiet ones lie below
        _plot_curve(axes, curve, id(curve) in named, _lane_size(picture))
    _scale_axes(axes, picture)
    for curve in picture.curves:
        lost = [x for x, y in zip(curve.xs, curve.ys, strict=True) if not math.isfinite(y)]
        axes.plot(
            lost,
            [0.985] * len(lost),
            "x",
            color=NON_FINITE_COLOUR,
            ms=5,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )
    for name, level in picture.levels.items():
        axes.axhline(level, color=_INK, alpha=0.55, lw=0.9, ls=(0, (1, 2)))
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8.5)
    if len(picture.rug):
        axes.plot(
            picture.rug,
            [0.02] * len(picture.rug),
            "|",
            color=SKIPPED_STEP_COLOUR,
            ms=11,
            mew=1.1,
            label=picture.rug_label,
            transform=axes.get_xaxis_transform(),
            gid="skips",
        )
    axes.set_xlabel(picture.x_label)
    axes.set_ylabel(picture.y_label)


def _lane_size(picture: Picture) -> float:
    """Of a mark in points: where there are lanes, most of the height of one."""
    return max(2.0, min(12.0, 150.0 / len(picture.lanes))) if picture.lanes else 4.0


def _plot_curve(axes: "Axes", curve: Curve, is_named: bool, marker_size: float) -> None:
    look = curve.look
    ys = [y if math.isfinite(y) else math.nan for y in curve.ys]
    marker = look.marker or ("o" if sum(math.isfinite(y) for y in ys) == 1 else "")
    axes.plot(curve.xs, ys, linestyle=look.style or "none", marker=marker, ms=marker_size, color=look.colour or _INK,
              lw=look.width, alpha=look.alpha, label=curve.label if is_named else "_")  # fmt: skip


def _scale_axes(axes: "Axes", picture: Picture) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    if picture.x_end:
        axes.set_xlim(-0.025 * picture.x_end, 1.025 * picture.x_end)
    if picture.log_base_x:
        axes.set_xscale("log", base=picture.log_base_x)
        axes.xaxis.set_major_formatter(FuncFormatter(_format_power_tick if picture.log_base_x == 2 else _format_tick))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=picture.x_label == "step"))
        axes.xaxis.set_major_formatter(FuncFormatter(_format_tick))
    if picture.log_base:
        axes.set_yscale("log", base=picture.log_base)
        axes.yaxis.set_major_formatter(FuncFormatter(_format_power_tick if picture.log_base == 2 else _format_tick))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _widen(axes)
    elif picture.lanes:
        axes.set_ylim(len(picture.lanes) - 0.4, -0.6)
        names = [_shorten(name) for name in picture.lanes] if len(picture.lanes) <= _MOST_LANE_NAMES else []
        axes.set_yticks(range(len(names)), names)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(_format_tick))
    if picture.from_zero:
        axes.set_ylim(bottom=0)


def _shorten(name: str, last: bool = False) -> str:
    """A name that leaves room for its lane, its first letters or its last; the whole one stands in the table."""
    if len(name) <= _LANE_NAME_LENGTH:
        return name
    return f"…{name[1 - _LANE_NAME_LENGTH :]}" if last else f"{name[: _LANE_NAME_LENGTH - 1]}…"


def _widen(axes: "Axes") -> None:
    """A scale that never moved needs room around it, or the axis has no tick."""
    low, high = axes.get_ylim()
    if high < 8 * low:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / 8, middle * 8)


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
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.6g}{letter}"
    return f"{value:.6g}"


def _without_metadata(svg: str) -> str:
    """From the root element on, without what names the program that drew it."""
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg"):], flags=re.S)


def _with_accessible_names(svg: str, picture: Picture) -> str:
    """With a title and a description that screen readers say, and ids that no other picture of the page has."""
    name = picture.name
    svg = re.sub(r'(\bid="|xlink:href="#|href="#|url\(#)', lambda found: f"{found[1]}{name}-", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2).replace("*{", f"#{name}-figure_1 *{{", 1)
    words = f'<title id="{name}-title">{escape(picture.title)}</title>'
    words += f'<desc id="{name}-desc">{escape(picture.description)}</desc>'
    opening = f'<svg role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc"'
    return re.sub(r"(<svg[^>]*>)", lambda found: found[1] + words, svg.replace("<svg", opening, 1), count=1)
