"""How fast something grows: slopes of straight lines."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least-squares line through the points; 0 for a single one.

    >>> round(slope([1, 2, 3], [5, 7, 9]), 6)
    2.0
    """
    if len(set(x)) < 2:
        return 0.0
    return float(np.polyfit(np.asarray(x, float), np.asarray(y, float), 1)[0])


def exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """b of y = a * x**b, by least squares in logarithms; None for less than two points.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return None if len(set(x)) < 2 else slope(np.log(x).tolist(), np.log(y).tolist())


def end_exponent(points: list[dict[str, Any]], key: str) -> float | None:
    """That of the larger half of the points: at small sizes a fixed cost per step hides the growth."""
    large = sorted(points, key=lambda point: point["value"])[-max(3, (len(points) + 1) // 2) :]
    return exponent([point["value"] for point in large], [point[key] for point in large])
