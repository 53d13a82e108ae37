"""A picture before it is drawn: its curves, what they mean, and the same in words and numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mpt_cli.report.looks import PLAIN, Look
from mpt_cli.telemetry.console.words import count_words


@dataclass(frozen=True)
class Curve:
    """Points to be joined in their order; a value that is not finite breaks the line and is marked above it."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    look: Look = PLAIN
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

    @property
    def description(self) -> str:
        """What a person who can't see it should know."""
        shown = [curve for curve in self.curves if not curve.is_part]
        count = f"{len(shown)} curve{'s' if len(shown) != 1 else ''}"
        parts = [f"{self.y_label} over {self.x_label}, {count}."]
        parts += [] if self.lanes else [curve_words(curve) for curve in shown[:6]]
        parts += [f"And {len(shown) - 6} more, in the table below."] if len(shown) > 6 and not self.lanes else []
        return " ".join([*parts, self.note]).strip()

    def rows(self) -> list[list[str]]:
        """The table that stands for the picture: curve, first, lowest, highest and last value, each with its x."""
        return [_row(curve, bool(self.lanes)) for curve in self.curves if not curve.is_part]


COLUMNS = ("curve", "points", "first", "lowest", "highest", "last")


def curve_words(curve: Curve) -> str:
    """One curve in a sentence."""
    points = _finite(curve)
    if not points:
        return f"{curve.label}: no finite value."
    (_, first), (_, last) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = f"between {figure_words(low)} and {figure_words(high)}"
    return f"{curve.label}: from {figure_words(first)} to {figure_words(last)}, {span}."


def figure_words(value: float) -> str:
    """A finite value of either axis: four digits at least, and all before the point of what is below a million.

    >>> figure_words(0.00031622), figure_words(0.25), figure_words(32768.0), figure_words(16982.7), figure_words(2e7)
    ('0.0003162', '0.25', '32,768', '16,983', '2e+07')
    """
    is_whole = abs(value) < 1e6 and (abs(value) >= 1e3 or value == round(value))
    return f"{value:,.0f}" if is_whole else f"{value:.4g}"


def _row(curve: Curve, is_lane: bool) -> list[str]:
    points = _finite(curve)
    if is_lane and points:
        xs = [_x_words(x) for x, _ in points]
        return [curve.label, count_words(len(points)), xs[0], "-", "-", xs[-1]]
    lost = len(curve.ys) - len(points)
    count = count_words(len(curve.ys)) + (f" ({count_words(lost)} not finite)" if lost else "")
    if not points:
        return [curve.label, count, "-", "-", "-", "-"]
    ends = [points[0], min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1]), points[-1]]
    return [curve.label, count, *(f"{figure_words(y)} at {_x_words(x)}" for x, y in ends)]


def _x_words(x: float) -> str:
    """A step in full, however late."""
    return count_words(x) if x == round(x) else figure_words(x)


def _finite(curve: Curve) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if math.isfinite(y)]
