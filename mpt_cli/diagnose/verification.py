"""Real float16 passes at chosen scales: what is flushed and what overflows, held against the prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from mpt_cli.diagnose.passes import Counted, Counts, GradientPass, add_up
from mpt_cli.diagnose.ranges import LayerRange
from mpt_cli.diagnose.watching import GRADIENT
from mpt_cli.precision.gradients import INFS, NANS, ZEROS, SafeScales, share_flushed, share_overflow

FARTHEST = 3  # doublings from the predicted highest scale within which the real one is looked for


@dataclass(frozen=True)
class Trial:
    """What one scale did. `flushed` is the share of the nonzero gradients in float16 that became zero.

    It is None where gradients overflowed, which hides what became of the others. An overflow is a pass whose weight
    gradients hold inf or nan: a step that loss scaling would skip. `loss_is_finite` is that of the forward pass.

    The prediction looks at each gradient by itself. Where all that one is computed from is flushed it is zero too,
    however large it would have been: more is met than was predicted, below every scale that is worth using.
    """

    scale: float
    passes: int
    predicted_flushed: float
    flushed: float | None
    predicted_overflow: bool
    overflows: int
    loss_is_finite: bool


@dataclass(frozen=True)
class Reference:
    """What a trial is held against: the rows of the float32 pass, and its counts."""

    layers: Sequence[LayerRange]
    counted: Counted


class Verifier:
    """Tries scales on the model in float16."""

    def __init__(self, trial_pass: GradientPass, batches: Sequence[Any], reference: Reference) -> None:
        self.trial_pass, self.batches, self.reference = trial_pass, batches, reference
        self.bound = [g for layer in reference.layers for g in layer.gradients if g.is_bound]
        self.done: dict[float, Trial] = {}

    def trials(self) -> list[Trial]:
        """Those done so far, by scale."""
        return [self.done[scale] for scale in sorted(self.done)]

    def try_scale(self, scale: float) -> Trial:
        if scale not in self.done:
            self.done[scale] = self._try(scale)
        return self.done[scale]

    def highest_safe(self, window: SafeScales) -> int | None:
        """The largest power of two at which nothing really overflows; None if even the smallest overflows.

        Looked for around the predicted one, and below that by halving the distance to one that is safe.
        """
        power = window.highest_power
        if self._is_safe(power):
            above = range(power + 1, power + FARTHEST + 1)
            return next((k - 1 for k in above if not self._is_safe(k)), power + FARTHEST)
        lowest = next((k for k in (power - 1, power - 4, power - 16, power - 64, -126) if self._is_safe(k)), None)
        if lowest is None:
            return None
        while power - lowest > 1:
            middle = (lowest + power) // 2
            lowest, power = (middle, power) if self._is_safe(middle) else (lowest, middle)
        return lowest

    def _is_safe(self, power: int) -> bool:
        return -126 <= power <= 127 and self.try_scale(2.0**power).overflows == 0

    def _try(self, scale: float) -> Trial:
        found = [self.trial_pass(batch, scale) for batch in self.batches]
        overflows = sum(holds_non_finite(counted.weights) for counted in found)
        total = add_up(found)
        values = [float(np.sum(g.counts[:INFS])) for g in self.bound]
        shares = [share_flushed(g.counts, power_of_two_below(scale)) for g in self.bound]
        return Trial(
            scale, len(found), float(np.dot(values, shares) / max(sum(values), 1.0)),
            None if overflows else self._flushed(total, sum(values)),
            any(share_overflow(g.counts, power_of_two_below(scale)) > 0 for g in self.bound), overflows,
            all(map(isfinite, total.losses)),
        )  # fmt: skip

    def _flushed(self, total: Counted, values: float) -> float:
        """Zeros more than in float32, as a share of the values that are not zero there."""
        more = self._zeros(total) - self._zeros(self.reference.counted)
        return min(max(more / max(values, 1.0), 0.0), 1.0)

    def _zeros(self, counted: Counted) -> float:
        of_outputs, of_weights = counted.sinks[:, GRADIENT, ZEROS], counted.weights[:, ZEROS]
        zeros = [(of_weights if g.of_weights else of_outputs)[list(g.places)].sum() for g in self.bound]
        return float(np.sum(zeros, dtype=np.float64))


def holds_non_finite(counts: Counts) -> bool:
    return bool(counts[..., INFS : NANS + 1].sum())


def power_of_two_below(scale: float) -> float:
    """The histogram knows powers of two; of other scales it answers for the one below, to within a doubling."""
    return float(2.0 ** np.floor(np.log2(scale)))
