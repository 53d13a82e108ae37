"""Predict the safe loss scales of each layer from counts of its gradients in float32."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpt_cli.precision.gradients.exponent_counts import (
    INFS,
    SLOTS,
    Counts,
    SafeScales,
    safe_scales,
)
from mpt_cli.samples.gradient_pass import ValueRanges
from mpt_cli.samples.probes import GRADIENT
from mpt_cli.samples.value_ranges import HALF, MAGNITUDES, RangeMap


def add_up(passes: Sequence[ValueRanges]) -> ValueRanges:
    """Return the sum of the counts of one or more passes, with their mean loss."""
    parts, weights = (np.sum(counts, axis=0) for counts in zip(*(ranges[:2] for ranges in passes), strict=True))
    return passes[0]._replace(parts=parts, weights=weights, loss=float(np.mean([ranges.loss for ranges in passes])))


# Not less: the gradient of a bias that a normalisation or a softmax cancels is rounding noise, and does not matter.
MOST_WEIGHTS_FLUSHED = 0.1  # share of the nonzero gradients of a layer's weights that a safe scale may flush to zero
MOST_MAGNITUDE_FLUSHED = 0.001  # the same share of the summed magnitude of the gradients of its output
MAGNITUDE_OF_SLOT = np.append(MAGNITUDES, np.ones(SLOTS - INFS))  # 1 for inf, nan and 0


@dataclass(frozen=True)
class GradientCounts:
    """The gradients of one kind in one layer, in float32: `counts` of all measured batches together.

    `dtype` is their dtype in the examined model; only float16 limits the loss scale. Each gradient of a weight moves
    one weight, and with Adam a small gradient moves it as far as a large one: a safe scale flushes few of them.
    Gradients of outputs are summed over the batch, and those of examples that a model is sure of are tiny: a safe scale
    flushes little of their sum.
    """

    counts: Counts
    dtype: str
    of_weights: bool

    @property
    def is_float16(self) -> bool:
        return self.dtype == HALF

    @property
    def window(self) -> SafeScales | None:
        """Return the scales at which nothing overflows and little is flushed; None if every scale is safe."""
        if not self.is_float16:
            return None
        if self.of_weights:
            return safe_scales(self.counts, largest_share_flushed=MOST_WEIGHTS_FLUSHED)
        return safe_scales(self.counts * MAGNITUDE_OF_SLOT, largest_share_flushed=MOST_MAGNITUDE_FLUSHED)


@dataclass(frozen=True)
class LayerRange:
    """The counts of one layer; None for what it lacks (weights, a gradient of its output)."""

    name: str
    compute_dtype: str
    activations: GradientCounts | None
    weights: GradientCounts | None

    @property
    def gradients(self) -> list[GradientCounts]:
        return [found for found in (self.activations, self.weights) if found is not None]

    @property
    def window(self) -> SafeScales | None:
        return common_window([found.window for found in self.gradients])


def layer_ranges(range_map: RangeMap, counted: ValueRanges) -> list[LayerRange]:
    """Return a row for each layer of the examined model that has gradients, in call order."""
    rows = []
    for entry in range_map.entries:
        outputs = weights = None
        if entry.is_trained and entry.part is not None and counted.parts[entry.part, GRADIENT].sum():
            outputs = GradientCounts(counted.parts[entry.part, GRADIENT], entry.output_dtype, False)
        if entry.weights:
            weights = GradientCounts(counted.weights[[*entry.weights]].sum(axis=0), entry.dtype, True)
        rows.append(LayerRange(entry.name, entry.dtype, outputs, weights))
    return [row for row in rows if row.gradients]


def common_window(windows: Sequence[SafeScales | None]) -> SafeScales | None:
    """Return the scales that are safe for all; None where no window limits them."""
    minding = [window for window in windows if window is not None]
    if not minding:
        return None
    return SafeScales(max(w.lowest_power for w in minding), min(w.highest_power for w in minding))


@dataclass(frozen=True)
class ScaleTrial:
    """The result of float16 passes at one scale. `flushed` is the share of nonzero gradients in float16 that became 0.

    It is None if gradients overflowed, which hides the others. An overflow is a pass whose weight gradients have inf or
    nan: a step that loss scaling would skip. `loss_is_finite` is about the loss of the forward pass.
    """

    scale: float
    passes: int
    flushed: float | None
    overflows: int
    loss_is_finite: bool
