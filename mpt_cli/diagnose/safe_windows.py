"""Which loss scales the gradients of each layer bear: predicted from counts in float32, verified by float16 passes.
Each is one forward and backward pass that counts gradients through probes around every layer, and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log2
from typing import Any

import numpy as np

from mpt_cli.precision.gradients import (
    EXPONENT_BIAS,
    INFS,
    SINK_SIZE,
    SafeScales,
    largest_exponent,
    safe_scales,
)
from mpt_cli.precision.policy import name_of
from mpt_cli.samples.gradient_pass import GradientPass
from mpt_cli.samples.probes import GRADIENT, Counts, Probes
from mpt_cli.samples.value_ranges import HALF, RangeMap, ValueRanges
from mpt_cli.telemetry.record_types import ACTIVATION_GRADIENTS, WEIGHT_GRADIENTS, LayerSample


def add_up(passes: Sequence[ValueRanges]) -> ValueRanges:
    """Return the counts of several passes together, of one at least, with their mean loss."""
    parts, weights = (np.sum(counts, axis=0) for counts in zip(*(ranges[:2] for ranges in passes), strict=True))
    return passes[0]._replace(parts=parts, weights=weights, loss=float(np.mean([ranges.loss for ranges in passes])))


def scaled_ranges(ranges: ValueRanges, power: int) -> ValueRanges:
    """Return the counts of a loss 2**power times as large; what leaves the range of float32 stays at its ends."""
    parts = ranges.parts.copy()
    parts[:, GRADIENT] = _shifted(parts[:, GRADIENT], power)
    return ranges._replace(parts=parts, weights=_shifted(ranges.weights, power))


def _shifted(counts: Counts, power: int) -> Counts:
    moved = counts.copy()
    moved[..., :INFS] = 0
    for place in range(INFS):
        moved[..., min(max(place + power, 0), INFS - 1)] += counts[..., place]
    return moved


# Not less: the gradient of a bias that a normalisation or a softmax cancels is rounding noise, and does not matter.
MOST_WEIGHTS_FLUSHED = 0.1  # share of the nonzero gradients of a layer's weights that a safe scale may flush to zero
MOST_MAGNITUDE_FLUSHED = 0.001  # the same of the summed magnitude of the gradients of its output
MAGNITUDES = np.where(np.arange(SINK_SIZE) < INFS, 2.0 ** (np.arange(SINK_SIZE) - EXPONENT_BIAS), 1.0)  # of each slot


@dataclass(frozen=True)
class GradientCounts:
    """The gradients of one kind in one layer, in float32: `counts` of all measured batches together.

    `dtype` is the one in which they flow in the examined model; only float16 binds the loss scale. Each gradient of a
    weight moves a weight of its own, and with Adam a small one as far as a large one: a safe scale flushes few of them.
    Gradients of outputs are summed over the batch, in which those of the examples that a model is sure of are tiny by
    nature: a safe scale flushes little of their sum.
    """

    counts: Counts
    dtype: str
    of_weights: bool

    @property
    def is_float16(self) -> bool:
        return self.dtype == HALF

    @property
    def largest_exponent(self) -> int | None:
        """Return e, where the largest magnitude lies from 2**e up to 2**(e + 1); None if all are zero."""
        return largest_exponent(self.counts)

    @property
    def window(self) -> SafeScales | None:
        """Return the scales at which nothing overflows and little is flushed; None where every scale will do."""
        if not self.is_float16:
            return None
        if self.of_weights:
            return safe_scales(self.counts, largest_share_flushed=MOST_WEIGHTS_FLUSHED)
        return safe_scales(self.counts * MAGNITUDES, largest_share_flushed=MOST_MAGNITUDE_FLUSHED)


@dataclass(frozen=True)
class LayerRange:
    """One layer; what it does not have (weights, a gradient of its output) is None."""

    name: str
    kind: str
    compute_dtype: str
    variable_dtype: str
    activations: GradientCounts | None
    weights: GradientCounts | None

    @property
    def gradients(self) -> list[GradientCounts]:
        return [found for found in (self.activations, self.weights) if found is not None]

    @property
    def window(self) -> SafeScales | None:
        return common_window([found.window for found in self.gradients])


def layer_ranges(places: RangeMap, probes: Probes, counted: ValueRanges) -> list[LayerRange]:
    """Return a row for each layer of the examined model that has gradients, in call order."""
    parts = {name_of(part): part for part in probes.parts}
    rows = []
    for place in places.places:
        part, own, outputs, weights = parts.get(place.name), list(place.weights), None, None
        if place.part in probes.trained and counted.parts[place.part, GRADIENT].sum():
            outputs = GradientCounts(counted.parts[place.part, GRADIENT], place.output_dtype, False)
        if own:
            weights = GradientCounts(counted.weights[own].sum(axis=0), place.dtype, True)
        variable_dtype = getattr(part, "variable_dtype", place.dtype)
        rows.append(LayerRange(place.name, type(part).__name__, place.dtype, variable_dtype, outputs, weights))
    return [row for row in rows if row.gradients]


def common_window(windows: Sequence[SafeScales | None]) -> SafeScales | None:
    """Return the scales that are safe for all; None where no window limits them."""
    minding = [window for window in windows if window is not None]
    if not minding:
        return None
    return SafeScales(max(w.lowest_power for w in minding), min(w.highest_power for w in minding))


# doublings above and below the predicted highest scale within which the real one is looked for
FARTHEST, FARTHEST_BELOW = 3, 32


@dataclass(frozen=True)
class ScaleTrial:
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


class Verifier:
    """Tries scales on the model in float16, against the counts of the float32 passes."""

    def __init__(
        self, examined_pass: GradientPass, batches: Sequence[Any], places: RangeMap, reference: ValueRanges
    ) -> None:
        self.examined_pass, self.batches, self.places, self.reference = examined_pass, batches, places, reference
        self.rows: dict[float, list[LayerSample]] = {}  # by scale: what the passes left of each layer, against float32
        self.trials: dict[float, ScaleTrial] = {}
        trained = examined_pass.counter.probes.trained  # below the first weight no gradient matters
        self._gradients = {(ACTIVATION_GRADIENTS, place.name) for place in places.places if place.part in trained}
        self._gradients |= {(WEIGHT_GRADIENTS, place.name) for place in places.places}

    def try_scale(self, scale: float) -> ScaleTrial:
        """Try it, once."""
        if scale not in self.trials:
            passes = [self.examined_pass(batch, scale) for batch in self.batches]
            total, power = add_up(passes), floor(log2(scale))
            rows = self.places.layer_samples(total, scaled_ranges(self.reference, power))
            bound = [row for row in rows if row.dtype == HALF and (row.kind, row.layer) in self._gradients]
            predicted_overflow = any((row.lowest_exponent or 0) + len(row.exponents) > 16 for row in bound)
            overflows = sum(not ranges.is_finite for ranges in passes)
            flushed, predicted = (
                _mean_share(bound, [getattr(row, name) for row in bound]) for name in ("flushed", "predicted_flushed")
            )
            self.rows[scale] = rows
            self.trials[scale] = ScaleTrial(
                scale,
                len(passes),
                predicted,
                None if overflows else flushed,
                predicted_overflow,
                overflows,
                isfinite(total.loss),
            )
        return self.trials[scale]

    def highest_safe(self, window: SafeScales) -> int | None:
        """Return the largest power of two near the predicted one at which nothing really overflows; None where even far
        below it something does.
        """
        power = window.highest_power
        if self._is_safe(power):
            above = range(power + 1, power + FARTHEST + 1)
            return next((k - 1 for k in above if not self._is_safe(k)), power + FARTHEST)
        return next((k for k in range(power - 1, power - FARTHEST_BELOW, -1) if self._is_safe(k)), None)

    def _is_safe(self, power: int) -> bool:
        return -126 <= power <= 127 and self.try_scale(2.0**power).overflows == 0


def _mean_share(rows: Sequence[LayerSample], shares: Sequence[float]) -> float:
    """Return the mean of the shares, weighted by how many values each row has."""
    values = [row.values for row in rows]
    return float(np.dot(shares, values) / max(sum(values), 1))


def power_of_two_below(scale: float) -> float:
    """Return the power of two at or below `scale`: the histogram counts by powers of two."""
    return float(2.0 ** np.floor(np.log2(scale)))
