"""Fewer points of a long curve, honestly: every peak and every dip of the original stays."""

import math
from array import array
from collections.abc import Sequence

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


def marks(steps: Sequence[int], last_step: int, places: int = 2_000) -> "array[float]":
    """Where to draw marks so that each of `steps` has one: those that fall on one place of the picture share it.

    >>> list(marks([1, 2, 3, 1_000_000], 1_000_000, places=3))
    [1.0, 1000000.0]
    """
    if len(steps) <= places:
        return array("d", steps)
    width = max(1.0, last_step / places)
    found: dict[int, int] = {}
    for step in steps:
        found.setdefault(int(step / width), step)
    return array("d", found.values())
