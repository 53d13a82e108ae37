"""How the loss scale moves: one small frozen value per mode, all behind the same interface.

A rule knows numbers, not variables: `initial` gives the state it needs, `advance` maps the state and what was measured
of the step's gradients to the next state. It runs inside compiled steps, so it is written in `keras.ops`. A further
mode is a further class in its own file, like `logmax`, and its name in `arguments.RULES`.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from keras import ops

from mpt_cli.precision.finite import Measured

State = dict[str, Any]


class ScaleRule(Protocol):
    """What `LossScaleOptimizer` asks of a mode: `LogMaxScale` and `DynamicScale` show one."""

    @property
    def initial_scale(self) -> float:
        """The first scale."""

    def initial(self) -> State:
        """NumPy scalars by name; `scale` (float32) and `counter` (int32) are always among them."""

    def advance(self, state: State, measured: Measured) -> State:
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


@dataclass(frozen=True)
class FixedScale:
    """The scale stays where it is; overflow steps are skipped and counted all the same.

    Raises TypeError or ValueError for a scale that is no number from 2**-126 to 2**127.

    >>> rule = FixedScale(2.0**10)
    >>> state = rule.advance(rule.initial(), Measured(ops.convert_to_tensor(False), ops.ones(())))
    >>> float(state["scale"]), int(state["counter"])
    (1024.0, 0)
    """

    initial_scale: float

    def __post_init__(self) -> None:
        check_scale("initial_scale", self.initial_scale)

    def initial(self) -> State:
        return {"scale": np.float32(self.initial_scale), "counter": np.int32(0)}

    def advance(self, state: State, measured: Measured) -> State:
        return {**state, "counter": ops.where(measured.finite, state["counter"] + 1, 0)}


@dataclass(frozen=True)
class NoScale(FixedScale):
    """No scaling: the scale is 1, and nothing has to be multiplied or divided by it (`LossScaleOptimizer.scales`).

    >>> rule = NoScale()
    >>> float(rule.advance({"scale": ops.ones(()) * 8, "counter": 3}, Measured(True, ops.ones(())))["scale"])
    1.0
    """

    initial_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.initial_scale != 1:
            raise ValueError(f"`initial_scale` of NoScale must be 1. Received: initial_scale={self.initial_scale}.")

    def advance(self, state: State, measured: Measured) -> State:
        moved = super().advance(state, measured)
        return {**moved, "scale": ops.ones_like(state["scale"])}  # whatever a file of another rule held


@dataclass(frozen=True)
class DynamicScale:
    """Grow after `growth_steps` applied steps, back off at an overflow, within `min_scale` and `max_scale`.

    With c the applied steps since the scale last changed:
    finite: `c += 1; if c >= growth_steps: S = min(S * growth_factor, max_scale); c = 0; hysteresis refilled`;
    otherwise: `c = 0; hysteresis_left -= 1; if hysteresis_left <= 0: S = max(S * backoff_factor, min_scale)`.
    Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; hysteresis as in Megatron-LM.

    Raises TypeError or ValueError for a number out of range, by its name in `LossScaleOptimizer`.

    >>> rule = DynamicScale(2.0**10, growth_steps=2)
    >>> state, scales = rule.initial(), []
    >>> for finite in (True, True, True, False):
    ...     state = rule.advance(state, Measured(ops.convert_to_tensor(finite), ops.ones(())))
    ...     scales.append(float(state["scale"]))
    >>> scales
    [1024.0, 2048.0, 2048.0, 1024.0]
    """

    initial_scale: float = 2.0**15
    growth_steps: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    min_scale: float = 2.0**-14
    max_scale: float = 2.0**32
    hysteresis: int = 1

    def __post_init__(self) -> None:
        check_bounds(self.min_scale, self.initial_scale, self.max_scale)
        check_scale("growth_factor", self.growth_factor)
        check_scale("backoff_factor", self.backoff_factor)
        check_count("dynamic_growth_steps", self.growth_steps)
        check_count("hysteresis", self.hysteresis)
        if not self.growth_factor > 1:
            raise ValueError(f"`growth_factor` must be above 1. Received: growth_factor={self.growth_factor}.")
        if not self.backoff_factor < 1:
            raise ValueError(f"`backoff_factor` must be below 1. Received: backoff_factor={self.backoff_factor}.")

    def initial(self) -> State:
        return {
            "scale": np.float32(self.initial_scale),
            "counter": np.int32(0),
            "growth_steps": np.int32(self.growth_steps),
            "hysteresis_left": np.int32(self.hysteresis),
        }

    def advance(self, state: State, measured: Measured) -> State:
        finite = measured.finite
        scale, applied, left = state["scale"], state["counter"] + 1, ops.maximum(state["hysteresis_left"] - 1, 0)
        grows = ops.logical_and(finite, applied >= state["growth_steps"])
        falls = ops.logical_and(ops.logical_not(finite), left <= 0)
        grown = ops.minimum(scale * self.growth_factor, self.max_scale)
        fallen = ops.maximum(scale * self.backoff_factor, self.min_scale)
        return {
            "scale": ops.where(grows, grown, ops.where(falls, fallen, scale)),
            "counter": ops.where(ops.logical_and(finite, ops.logical_not(grows)), applied, 0),
            "growth_steps": state["growth_steps"],
            "hysteresis_left": ops.where(
                grows, self.hysteresis, ops.where(finite, state["hysteresis_left"], left)
            ),
        }
