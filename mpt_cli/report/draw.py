"""Pictures as SVG that takes its ink from the page around it, and as files of their own, SVG and PNG."""

import io
import math
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from mpt_cli.report.looks import BAD, SKIPPED
from mpt_cli.report.picture import Curve, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def draw(picture: Picture) -> Drawing:
    """Off screen, without pyplot's global state; the same input gives the same text."""
    from matplotlib import rc_context

    with rc_context(_style()):
        figure = _figure(picture)
        text, png = io.StringIO(), io.BytesIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        figure.savefig(png, format="png", dpi=_PNG_DPI, facecolor="white", metadata={"Software": None})
    svg = _named(_bare(text.getvalue()), picture)
    paper = re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="#fff"/>', svg, count=1)
    file = '<?xml version="1.0" encoding="utf-8"?>\n' + paper.replace(_INK, _PAPER_INK)
    return Drawing(picture, svg.replace(_INK, "currentColor"), file, png.getvalue())


def _style() -> dict[Any, Any]:
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    return {
        **dict.fromkeys(inked, _INK), "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.alpha": 0.15, "svg.fonttype": "none", "svg.hashsalt": "mpt", "font.family": "sans-serif",
        "font.size": 10.5, "path.simplify": True,
    }  # fmt: skip


def _figure(picture: Picture) -> "Figure":
    from matplotlib.figure import Figure

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
    _fill(axes, picture, {id(curve) for curve in named[:_MOST_LEGEND]})
    if entries:
        figure.legend(loc="lower center", borderaxespad=0.2, ncols=columns, frameon=False, fontsize=9.5,
                      handlelength=3.2, labelspacing=0.3)  # fmt: skip
    figure.tight_layout(pad=0.4, rect=(0, below / height, 1, 1))
    return figure


def _fill(axes: "Axes", picture: Picture, named: set[int]) -> None:
    for curve in sorted(picture.curves, key=lambda curve: not curve.look.quiet):  # the quiet ones lie below
        _plot(axes, curve, id(curve) in named, _lane_size(picture))
    _scale(axes, picture)
    for curve in picture.curves:
        lost = [x for x, y in zip(curve.xs, curve.ys, strict=True) if not math.isfinite(y)]
        axes.plot(lost, [0.985] * len(lost), "x", color=BAD, ms=5, transform=axes.get_xaxis_transform(), clip_on=False)
    for name, level in picture.levels.items():
        axes.axhline(level, color=_INK, alpha=0.55, lw=0.9, ls=(0, (1, 2)))
        axes.annotate(name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8.5)
    if len(picture.rug):
        axes.plot(picture.rug, [0.02] * len(picture.rug), "|", color=SKIPPED, ms=11, mew=1.1, label=picture.rug_label,
                  transform=axes.get_xaxis_transform(), gid="skips")  # fmt: skip
    axes.set_xlabel(picture.x_label)
    axes.set_ylabel(picture.y_label)


def _lane_size(picture: Picture) -> float:
    """Of a mark in points: where there are lanes, most of the height of one."""
    return max(2.0, min(12.0, 150.0 / len(picture.lanes))) if picture.lanes else 4.0


def _plot(axes: "Axes", curve: Curve, is_named: bool, marker_size: float) -> None:
    look = curve.look
    ys = [y if math.isfinite(y) else math.nan for y in curve.ys]
    marker = look.marker or ("o" if sum(math.isfinite(y) for y in ys) == 1 else "")
    axes.plot(curve.xs, ys, linestyle=look.style or "none", marker=marker, ms=marker_size, color=look.colour or _INK,
              lw=look.width, alpha=look.alpha, label=curve.label if is_named else "_")  # fmt: skip


def _scale(axes: "Axes", picture: Picture) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    if picture.x_end:
        axes.set_xlim(-0.025 * picture.x_end, 1.025 * picture.x_end)
    if picture.log_base_x:
        axes.set_xscale("log", base=picture.log_base_x)
        axes.xaxis.set_major_formatter(FuncFormatter(_power if picture.log_base_x == 2 else _number))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=picture.x_label == "step"))
        axes.xaxis.set_major_formatter(FuncFormatter(_number))
    if picture.log_base:
        axes.set_yscale("log", base=picture.log_base)
        axes.yaxis.set_major_formatter(FuncFormatter(_power if picture.log_base == 2 else _number))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _widen(axes)
    elif picture.lanes:
        axes.set_ylim(len(picture.lanes) - 0.4, -0.6)
        names = [_short(name) for name in picture.lanes] if len(picture.lanes) <= _MOST_LANE_NAMES else []
        axes.set_yticks(range(len(names)), names)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(_number))
    if picture.from_zero:
        axes.set_ylim(bottom=0)


def _short(name: str) -> str:
    """A name that leaves room for its lane; the whole one stands in the table."""
    return name if len(name) <= _LANE_NAME_LENGTH else f"{name[: _LANE_NAME_LENGTH - 1]}…"


def _widen(axes: "Axes") -> None:
    """A scale that never moved needs room around it, or the axis has no tick."""
    low, high = axes.get_ylim()
    if high < 8 * low:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / 8, middle * 8)


def _power(value: float, _: Any = None) -> str:
    """
    >>> _power(32768.0), _power(0.25)
    ('2¹⁵', '2⁻²')
    """
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2{str(round(exponent)).translate(_SUPERSCRIPT)}" if abs(exponent - round(exponent)) < 1e-6 else ""


def _number(value: float, _: Any = None) -> str:
    """
    >>> _number(25_000.0), _number(1_500_000.0), _number(0.125), _number(0.0)
    ('25k', '1.5M', '0.125', '0')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.6g}{letter}"
    return f"{value:.6g}"


def _bare(svg: str) -> str:
    """From the root element on, without what names the program that drew it."""
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg"):], flags=re.S)


def _named(svg: str, picture: Picture) -> str:
    """With a title and a description that screen readers say, and ids that no other picture of the page has."""
    name = picture.name
    svg = re.sub(r'(\bid="|xlink:href="#|href="#|url\(#)', lambda found: f"{found[1]}{name}-", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2).replace("*{", f"#{name}-figure_1 *{{", 1)
    words = f'<title id="{name}-title">{escape(picture.title)}</title>'
    words += f'<desc id="{name}-desc">{escape(picture.description)}</desc>'
    opening = f'<svg role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc"'
    return re.sub(r"(<svg[^>]*>)", lambda found: found[1] + words, svg.replace("<svg", opening, 1), count=1)
