"""From the ranges of the layers to a scale for all of them, or to the layers that must stay in float32."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log2

from mpt_cli.precision.gradients import SafeScales


@dataclass(frozen=True)
class ScaleBounds:
    """The `loss_scale.min_scale` and `max_scale` of the run."""

    lowest: float
    highest: float


def recommended_scale(window: SafeScales, bounds: ScaleBounds) -> float:
    """A factor of two below the highest safe scale, and within the bounds where they leave a safe one.

    >>> recommended_scale(SafeScales(17, 40), ScaleBounds(2.0**-14, 2.0**32)) == 2.0**32
    True
    >>> recommended_scale(SafeScales(-4, 20), ScaleBounds(2.0**-14, 2.0**32)) == 2.0**19
    True
    """
    power = max(window.highest_power - 1, window.lowest_power) if not window.empty else window.highest_power - 1
    within = min(max(power, -floor(-log2(bounds.lowest))), floor(log2(bounds.highest)))
    is_safe = window.lowest_power <= within <= window.highest_power
    return 2.0 ** (within if is_safe else min(max(power, -126), 127))


def layers_without_scale(windows: Mapping[str, SafeScales]) -> tuple[int, list[str]]:
    """The power of two that is safe for most layers, and the others. Of equal choices the highest power.

    >>> layers_without_scale({"a": SafeScales(30, 60), "b": SafeScales(0, 20), "c": SafeScales(5, 22)})
    (20, ['a'])
    """
    tops = sorted({window.highest_power for window in windows.values()}, reverse=True)
    choices = [(power, [name for name, w in windows.items() if not is_within(power, w)]) for power in tops]
    return min(choices, key=lambda choice: len(choice[1]))


def is_within(power: int, window: SafeScales | None) -> bool:
    return window is None or window.lowest_power <= power <= window.highest_power
