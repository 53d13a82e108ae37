"""Whether training moves the weights: an update of less than half a unit in the last place of a weight, 2^-25 to 2^-24
of a float32 one, is rounded away, and at a learning rate that is too small all of them are.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.gradient_check import is_overwritten
from mpt_cli.telemetry.record_types import UnmovedWeights

LEAST_UPDATES = 10  # before anything is said
MOST_BYTES = 2**26  # of kernels, the smallest first
WIDE = ("float32", "float64")  # samples of the gradients tell of narrower ones


class WeightWatch:
    """Holds the kernels that built `optimizers` train against what they were after step `since` of the run.

    Kernels are weights of two axes or more, or all where there are none of these. Once one of them has changed by a
    bit, `has_moved` stays true and nothing is looked at any more.
    """

    def __init__(self, optimizers: Sequence[LossScaleOptimizer], since: int, has_moved: bool = False) -> None:
        self.optimizers, self.since, self.has_moved = optimizers, since, has_moved
        self._begun = [] if has_moved else [(kernel, _checksum(kernel)) for kernel in _kernels(optimizers)]
        self._applied_before = self._applied()  # last, as a loop may go on in the meantime
        self.found: UnmovedWeights | None = None  # as of the latest look; None where all is well

    def look(self, rate: float) -> UnmovedWeights | None:
        """Return what the end of an epoch finds that none before it did, at this learning rate; None where weights
        move, and where that can't be told: after few updates, at a rate of 0, without kernels."""
        was_known, self.found = self.found is not None, None
        if self.has_moved or not self._begun:
            return None
        self.has_moved = any(_checksum(kernel) != begun for kernel, begun in self._begun)
        if self.has_moved or not rate > 0 or self._applied() - self._applied_before < LEAST_UPDATES:
            return None
        self.found = UnmovedWeights(self.since, rate)
        return None if was_known else self.found

    def _applied(self) -> float:
        """Return the number of updates so far, of the optimizer that has the most."""
        return max(
            (
                int(each.applied_steps) / (each.inner_optimizer.gradient_accumulation_steps or 1)
                for each in self.optimizers
            ),
            default=0.0,
        )


def _kernels(optimizers: Sequence[LossScaleOptimizer]) -> list[Any]:
    trained = [
        variable
        for optimizer in optimizers
        for variable in optimizer.trained_variables
        if variable.dtype in WIDE and not is_overwritten(variable)
    ]
    found = sorted([each for each in trained if len(each.shape) > 1] or trained, key=_bytes)
    return [
        each
        for each, total in zip(found, np.cumsum([_bytes(each) for each in found]), strict=True)
        if total <= MOST_BYTES
    ]


def _bytes(variable: Any) -> int:
    return int(math.prod(variable.shape)) * (8 if variable.dtype == "float64" else 4)


def _checksum(variable: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).data)
