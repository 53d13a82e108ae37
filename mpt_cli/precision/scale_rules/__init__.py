"""How the loss scale moves: the interface of a mode, what it is told of a step, and the checks its numbers share.

A rule knows numbers, not variables: `initial` gives the state it needs, `advance` maps the state and what was measured
of the step's gradients to the next state. It runs inside compiled steps, so it is written in `keras.ops`.
"""

import math
from typing import Any, Protocol

import numpy as np

from mpt_cli.precision.finite import Measured

RuleState = dict[str, Any]


class ScaleRule(Protocol):
    """What `LossScaleOptimizer` asks of a mode: `LogMaxScale` and `DynamicScale` show one."""

    @property
    def initial_scale(self) -> float:
        """The first scale."""

    def initial(self) -> RuleState:
        """NumPy scalars by name; `scale` (float32) and `counter` (int32) are always among them."""

    def advance(self, state: RuleState, measured: Measured) -> RuleState:
        """The state after a step; the names and dtypes are those of `initial`."""


def check_scale(name: str, value: object) -> float:
    """`value` as a float if it is a number that a float32 scale can be, else ValueError or TypeError that names it.

    That is 2**-126 to 2**127: below, kernels flush float32 to 0; above, a doubling would be inf.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{name}` must be a number. Received: {name}={value!r} of type {type(value).__name__}.")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"`{name}` must be a finite number above 0. Received: {name}={value}.")
    if not 2.0**-126 <= value <= 2.0**127:
        raise ValueError(f"`{name}` must lie between 2**-126 and 2**127, float32's range. Received: {name}={value}.")
    return float(value)


def check_count(name: str, value: object) -> int:
    """`value` as an int if it is a whole number of at least 1, else ValueError or TypeError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{name}` must be a whole number. Received: {name}={value!r} of type {type(value).__name__}.")
    if not (value >= 1 and float(value).is_integer()):
        raise ValueError(f"`{name}` must be a whole number of at least 1. Received: {name}={value}.")
    if not value < 2**31:
        raise ValueError(f"`{name}` must be below 2**31, as steps are counted in int32. Received: {name}={value}.")
    return int(value)


def check_bounds(min_scale: float, initial_scale: float, max_scale: float) -> None:
    """ValueError unless all three are scales and `min_scale <= initial_scale <= max_scale`."""
    for name, value in (("min_scale", min_scale), ("initial_scale", initial_scale), ("max_scale", max_scale)):
        check_scale(name, value)
    if not min_scale <= initial_scale <= max_scale:
        raise ValueError(
            "`initial_scale` must lie between `min_scale` and `max_scale`. Received: "
            f"min_scale={min_scale}, initial_scale={initial_scale}, max_scale={max_scale}."
        )
