"""`dynamic`: grow after so many applied steps, back off at an overflow."""

from dataclasses import dataclass

import numpy as np
from keras import ops

from mpt_cli.precision.finite import Measured
from mpt_cli.precision.scale_rules import RuleState, check_bounds, check_count, check_scale


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

    def initial(self) -> RuleState:
        return {
            "scale": np.float32(self.initial_scale),
            "counter": np.int32(0),
            "growth_steps": np.int32(self.growth_steps),
            "hysteresis_left": np.int32(self.hysteresis),
        }

    def advance(self, state: RuleState, measured: Measured) -> RuleState:
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
