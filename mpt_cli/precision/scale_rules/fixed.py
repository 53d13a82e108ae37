"""The scale stays where it is, at a given value (`fixed`) or at 1 (`none`)."""

from dataclasses import dataclass

import numpy as np
from keras import ops

from mpt_cli.precision.finite import Measured
from mpt_cli.precision.scale_rules import RuleState, check_scale


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

    def initial(self) -> RuleState:
        return {"scale": np.float32(self.initial_scale), "counter": np.int32(0)}

    def advance(self, state: RuleState, measured: Measured) -> RuleState:
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

    def advance(self, state: RuleState, measured: Measured) -> RuleState:
        moved = super().advance(state, measured)
        return {**moved, "scale": ops.ones_like(state["scale"])}  # whatever a file of another rule held
