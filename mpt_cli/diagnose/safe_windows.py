"""Which loss scales the gradients of each layer bear: predicted from counts in float32, verified by float16 passes.
Each is one forward and backward pass that counts gradients through probes around every layer, and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from mpt_cli.precision.gradients import (
    EXPONENT_BIAS,
    INFS,
    NANS,
    SINK_SIZE,
    ZEROS,
    SafeScales,
    largest_exponent,
    safe_scales,
    share_flushed,
    share_overflow,
)
from mpt_cli.precision.policy import name_of
from mpt_cli.samples.flow import Flow, FlowMap
from mpt_cli.samples.gradient_pass import GradientPass
from mpt_cli.samples.probes import GRADIENT, Counts, Probes
from mpt_cli.telemetry.records import LayerSample


@dataclass(frozen=True)
class Counted:
    """What passes found. Sums of several add up with `+`.

    `parts` and `weights` are those of a `Flow`, `losses` those of the passes, float32 and unscaled.
    """

    losses: tuple[float, ...]
    parts: Counts
    weights: Counts

    @classmethod
    def of(cls, flow: Flow) -> "Counted":
        """What one pass found."""
        return cls((flow.loss,), flow.parts, flow.weights)

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.losses + other.losses, self.parts + other.parts, self.weights + other.weights)

    def flow(self, power: int = 0) -> Flow:
        """As of a loss 2**power times as large; what leaves the range of float32 stays at its ends."""
        parts = self.parts.copy()
        parts[:, GRADIENT] = _shifted(parts[:, GRADIENT], power)
        return Flow(parts, _shifted(self.weights, power), np.zeros(2, np.float32))


def _shifted(counts: Counts, power: int) -> Counts:
    moved = counts.copy()
    moved[..., :INFS] = 0
    for place in range(INFS):
        moved[..., min(max(place + power, 0), INFS - 1)] += counts[..., place]
    return moved


def add_up(found: Sequence[Counted]) -> Counted:
    """The counts of several passes together, of one at least."""
    return sum(found[1:], found[0])


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
    places: tuple[int, ...] = ()  # the parts or the trainable weights that were counted

    @property
    def is_bound(self) -> bool:
        return self.dtype == "float16"

    @property
    def values(self) -> float:
        """How many are not zero."""
        return float(self.counts[:INFS].sum())

    @property
    def largest_exponent(self) -> int | None:
        """e, where the largest magnitude lies from 2**e up to 2**(e + 1); None if all are zero."""
        return largest_exponent(self.counts)

    @property
    def window(self) -> SafeScales | None:
        """Scales at which nothing overflows and little is flushed; None where every scale will do."""
        if not self.is_bound:
            return None
        if self.of_weights:
            return safe_scales(self.counts, largest_share_flushed=MOST_WEIGHTS_FLUSHED)
        return safe_scales(self.counts * MAGNITUDES, largest_share_flushed=MOST_MAGNITUDE_FLUSHED)

    def histogram(self) -> dict[int, int]:
        """Values by exponent: those from 2**e up to 2**(e + 1) at e."""
        return {i - EXPONENT_BIAS: int(n) for i, n in enumerate(self.counts[:INFS]) if n}


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


def layer_ranges(places: FlowMap, probes: Probes, counted: Counted) -> list[LayerRange]:
    """A row for each place of the examined model that has gradients, in the order in which they are called."""
    parts = {name_of(part): part for part in probes.parts}
    rows = []
    for place in places.places:
        part, own, outputs, weights = parts.get(place.name), list(place.weights), None, None
        if place.part in probes.trained and counted.parts[place.part, GRADIENT].sum():
            outputs = GradientCounts(counted.parts[place.part, GRADIENT], place.output_dtype, False, (place.part,))
        if own:
            weights = GradientCounts(counted.weights[own].sum(axis=0), place.dtype, True, place.weights)
        variable_dtype = getattr(part, "variable_dtype", place.dtype)
        rows.append(LayerRange(place.name, type(part).__name__, place.dtype, variable_dtype, outputs, weights))
    return [row for row in rows if row.gradients]


def common_window(windows: Sequence[SafeScales | None]) -> SafeScales | None:
    """The scales that are safe for all; None where none of them minds."""
    minding = [window for window in windows if window is not None]
    if not minding:
        return None
    return SafeScales(max(w.lowest_power for w in minding), min(w.highest_power for w in minding))


def share_of_all(gradients: Sequence[GradientCounts], shares: Sequence[float]) -> float:
    """The mean of shares of each, by how many values they have."""
    values = [each.values for each in gradients]
    return float(np.dot(shares, values) / max(sum(values), 1.0))


FARTHEST = 3  # doublings from the predicted highest scale within which the real one is looked for


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
    """Tries scales on the model in float16, against the rows and counts of the float32 passes."""

    def __init__(self, examined_pass: GradientPass, batches: Sequence[Any], layers: Sequence[LayerRange],
                 reference: Counted) -> None:  # fmt: skip
        self.examined_pass, self.batches, self.reference = examined_pass, batches, reference
        self.bound = [g for layer in layers for g in layer.gradients if g.is_bound]
        self.done: dict[float, ScaleTrial] = {}
        self.totals: dict[float, Counted] = {}

    def trials(self) -> list[ScaleTrial]:
        """Those done so far, by scale."""
        return [self.done[scale] for scale in sorted(self.done)]

    def try_scale(self, scale: float) -> ScaleTrial:
        if scale not in self.done:
            self.done[scale] = self._try(scale)
        return self.done[scale]

    def layer_samples(self, places: FlowMap, scale: float) -> list[LayerSample]:
        """What the passes at a scale that was tried left of each layer, against float32."""
        power = int(np.log2(power_of_two_below(scale)))
        return places.layer_samples(self.totals[scale].flow(), self.reference.flow(power))

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

    def _try(self, scale: float) -> ScaleTrial:
        found = [Counted.of(self.examined_pass(batch, scale)) for batch in self.batches]
        overflows = sum(holds_non_finite(counted.weights) for counted in found)
        total, power = add_up(found), power_of_two_below(scale)
        self.totals[scale] = total
        more = self._zeros(total) - self._zeros(self.reference)  # as a share of what is not zero in float32
        values = max(sum(g.values for g in self.bound), 1.0)
        return ScaleTrial(
            scale, len(found), share_of_all(self.bound, [share_flushed(g.counts, power) for g in self.bound]),
            None if overflows else min(max(more / values, 0.0), 1.0),
            any(share_overflow(g.counts, power) > 0 for g in self.bound), overflows,
            all(map(isfinite, total.losses)),
        )  # fmt: skip

    def _zeros(self, counted: Counted) -> float:
        of_outputs, of_weights = counted.parts[:, GRADIENT, ZEROS], counted.weights[:, ZEROS]
        zeros = [(of_weights if g.of_weights else of_outputs)[list(g.places)].sum() for g in self.bound]
        return float(np.sum(zeros, dtype=np.float64))


def holds_non_finite(counts: Counts) -> bool:
    return bool(counts[..., INFS : NANS + 1].sum())


def power_of_two_below(scale: float) -> float:
    """The histogram knows powers of two; of other scales it answers for the one below, to within a doubling."""
    return float(2.0 ** np.floor(np.log2(scale)))
