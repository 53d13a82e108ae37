"""What was measured of each layer: in which dtype its gradients flow, how large they are, which scales they bear."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from mpt_cli.diagnose.passes import LOST_BFLOAT16, LOST_FLOAT16, MOVED, Counted, Counts, weights_of
from mpt_cli.diagnose.watching import GRADIENT, Watch, name_of, parts_of
from mpt_cli.precision import layers_of
from mpt_cli.precision.gradients import EXPONENT_BIAS, INFS, SINK_SIZE, SafeScales, largest_exponent, safe_scales

# Not less: the gradient of a bias that a normalisation or a softmax cancels is rounding noise, and does not matter.
MOST_WEIGHTS_FLUSHED = 0.1  # share of the nonzero gradients of a layer's weights that a safe scale may flush to zero
MOST_MAGNITUDE_FLUSHED = 0.001  # the same of the summed magnitude of the gradients of its output
MAGNITUDES = np.where(np.arange(SINK_SIZE) < INFS, 2.0 ** (np.arange(SINK_SIZE) - EXPONENT_BIAS), 1.0)  # of each slot


@dataclass(frozen=True)
class Gradients:
    """The gradients of one kind in one layer, from the float32 model: `counts` of all measured batches together.

    `dtype` is the one in which they flow in the examined model; only float16 binds the loss scale. Each gradient of a
    weight moves a weight of its own, and with Adam a small one as far as a large one: a safe scale flushes few of them.
    Gradients of outputs are summed over the batch, in which those of the examples that a model is sure of are tiny by
    nature: a safe scale flushes little of their sum.
    """

    counts: Counts
    dtype: str
    of_weights: bool
    places: tuple[int, ...] = ()  # the sinks or the trainable weights that were counted

    @property
    def is_bound(self) -> bool:
        return self.dtype == "float16"

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
class Updates:
    """Of the elements that one step of the optimizer moves, the shares that would be lost to rounding."""

    moved: int
    lost_float16: float
    lost_bfloat16: float


@dataclass(frozen=True)
class LayerRange:
    """One layer; what it does not have (weights, a gradient of its output) is None."""

    name: str
    kind: str
    compute_dtype: str
    variable_dtype: str
    activations: Gradients | None
    weights: Gradients | None
    updates: Updates | None

    @property
    def gradients(self) -> list[Gradients]:
        return [found for found in (self.activations, self.weights) if found is not None]

    @property
    def window(self) -> SafeScales | None:
        return common_window([found.window for found in self.gradients])


@dataclass(frozen=True)
class Examined:
    """The parts of the examined model by position, as the rows of a diagnosis: their names, kinds and dtypes."""

    model: Any
    output_dtypes: dict[int, str]

    def layer_ranges(self, watch: Watch, counted: Counted) -> list[LayerRange]:
        """A row for each part that has gradients of its own, in the order in which they are called."""
        parts = parts_of(self.model)
        owners = owners_of_weights(self.model)
        uncalled = [index for index in range(len(parts)) if index not in watch.order]
        rows = [self._row(parts[i], i, watch, counted, owners) for i in [*watch.order, *uncalled]]
        return [row for row in rows if row.gradients]

    def _row(self, part: Any, index: int, watch: Watch, counted: Counted, owners: list[int | None]) -> LayerRange:
        own = [i for i, owner in enumerate(owners) if owner == index]
        through = counted.sinks[index, GRADIENT]
        has_output = index in watch.trained and through.sum() > 0 and (bool(own) or not _inside(part))
        compute_dtype = getattr(part, "compute_dtype", None) or self.output_dtypes.get(index, "float32")
        dtype = self.output_dtypes.get(index, compute_dtype)
        return LayerRange(
            name_of(part), type(part).__name__, compute_dtype, getattr(part, "variable_dtype", compute_dtype),
            Gradients(through, dtype, False, (index,)) if has_output else None,
            Gradients(counted.weights[own].sum(axis=0), compute_dtype, True, tuple(own)) if own else None,
            _updates(counted.updates[own].sum(axis=0)) if own and counted.updates is not None else None,
        )  # fmt: skip


def owners_of_weights(model: Any) -> list[int | None]:
    """For each trainable weight the index of the innermost layer that has it; None for one of the model itself."""
    layers = layers_of(model)
    held = [({id(v) for v in layer.trainable_variables}, index) for index, layer in enumerate(layers)]
    owners: list[int | None] = []
    for variable in weights_of(model):
        holding = [(len(variables), index) for variables, index in held if id(variable) in variables]
        owners.append(min(holding)[1] if holding else None)
    return owners


def common_window(windows: list[SafeScales | None]) -> SafeScales | None:
    """The scales that are safe for all; None where none of them minds."""
    minding = [window for window in windows if window is not None]
    if not minding:
        return None
    return SafeScales(max(w.lowest_power for w in minding), min(w.highest_power for w in minding))


def _updates(row: Counts) -> Updates | None:
    moved = float(row[MOVED])
    if not moved:
        return None  # a learning rate of 0, as at the first step of a warm-up
    return Updates(int(moved), float(row[LOST_FLOAT16]) / moved, float(row[LOST_BFLOAT16]) / moved)


def _inside(part: Any) -> list[Any]:
    return list(part._flatten_layers(include_self=False)) if isinstance(part, keras.Layer) else []
