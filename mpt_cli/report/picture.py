"""A picture: its curves, their styles on screen and paper, and the data from which a page draws them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mpt_cli.files import JsonObject

# After Okabe and Ito's palette for the color-blind, without its light tones: each has a contrast of 3 or more both to
# the white page and to the dark one.
CURVE_COLORS = ("#0072b2", "#d55e00", "#00936b", "#c86fa2", "#a6761d", "#7f7f7f")
LINE_STYLES = ("-", "--", ":", "-.")
MOST_DRAWN = 2 * len(CURVE_COLORS)  # runs that a page shows at first


@dataclass(frozen=True)
class CurveStyle:
    """`style` is matplotlib's, empty for points alone."""

    color: str = CURVE_COLORS[0]
    style: str = "-"
    marker: str = ""


def distinct_style(index: int) -> CurveStyle:
    """Return a style that differs from others: first by color, then by line style; 24 of them are distinct."""
    return CurveStyle(
        CURVE_COLORS[index % len(CURVE_COLORS)], LINE_STYLES[index // len(CURVE_COLORS) % len(LINE_STYLES)]
    )


MOST_POINTS = 40_000  # of all curves of a page: with these its file stays under 1 MB
MOST_MARKS = 1_000


@dataclass(frozen=True)
class Curve:
    """Points joined in order. A value that is not finite breaks the line and is marked above it. `run` is the number of
    its run among several, the best first. The axis fits runs that are good.
    """

    label: str
    xs: list[float] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)
    look: CurveStyle = CurveStyle()
    run: int | None = None
    is_good: bool = True

    def add(self, x: float, y: float) -> None:
        self.xs.append(x)
        self.ys.append(y)


@dataclass(frozen=True)
class Picture:
    """`log_base` is that of the y axis (None: linear), `skips` are steps marked at the bottom."""

    title: str
    y_label: str
    curves: Sequence[Curve]
    log_base: int | None = None
    from_zero: bool = False
    skips: Sequence[float] = ()
    note: str = ""


def chart_data(pictures: Sequence[Picture]) -> list[JsonObject]:
    """Return what charts.js draws, in JSON's types; long curves are thinned out, and the first runs drawn at first."""
    most = max(2, MOST_POINTS // max(1, sum(len(picture.curves) for picture in pictures)))
    return [
        {
            **vars(picture),
            "skips": _some(picture.skips),
            "curves": [_curve_data(curve, most) for curve in picture.curves],
        }
        for picture in pictures
    ]


def _curve_data(curve: Curve, most_points: int) -> JsonObject:
    xs, ys = thin_out(np.asarray(curve.xs, float), np.asarray(curve.ys, float), most_points)
    is_finite = np.isfinite(ys)
    return {
        "label": curve.label,
        **vars(curve.look),
        "run": curve.run,
        "is_good": curve.is_good,
        "show": curve.run is None or curve.run < MOST_DRAWN,
        "lost": _some(xs[~is_finite]),
        "xs": [float(f"{x:.10g}") for x in xs],
        "ys": [float(f"{y:.5g}") if known else None for y, known in zip(ys, is_finite, strict=True)],
    }


def thin_out(xs: np.ndarray, ys: np.ndarray, most_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` points: the lowest and the highest of equal parts, so that no peak is lost.

    >>> xs, ys = thin_out(np.arange(6.0), np.array([5.0, 1.0, 2.0, 0.0, 9.0, 3.0]), 4)
    >>> xs.tolist(), ys.tolist()
    ([0.0, 1.0, 3.0, 4.0], [5.0, 1.0, 0.0, 9.0])
    """
    if len(xs) <= most_points:
        return xs, ys
    parts = np.array_split(np.arange(len(xs)), most_points // 2)
    kept = sorted({int(part[pick(ys[part])]) for part in parts for pick in (np.argmin, np.argmax)})
    return xs[kept], ys[kept]


def _some(xs: Sequence[float] | np.ndarray) -> list[float]:
    """Return every nth of more than MOST_MARKS places of marks, which lie closer than one can see."""
    return [float(x) for x in xs[:: 1 + len(xs) // MOST_MARKS]]
