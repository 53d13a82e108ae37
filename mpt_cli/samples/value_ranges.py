"""Count the values in a model by exponent during one training step: as it trains, and with every layer in float32.

Probes count them, so that neither pass changes the model. The two sets of counts show for each layer, forward and
backward, what float16 flushed to zero, keeps in fewer bits or lost to overflow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from mpt_cli.precision.gradient_check import NARROW, Tensor
from mpt_cli.precision.gradients.exponent_counts import (
    EXPONENT_BIAS,
    INFS,
    NANS,
    SUBNORMALS,
    ZEROS,
    Counts,
    largest_exponent,
    statistics_of_each,
)
from mpt_cli.precision.keras_internals import (
    copied_optimizer,
    direct_trainable_variables,
    inner_layers,
)
from mpt_cli.precision.policy import layers_of, name_of
from mpt_cli.samples.gradient_pass import ValueRanges, wide
from mpt_cli.samples.probes import GRADIENT, VALUE, Probes, weights_of
from mpt_cli.telemetry.record_types import (
    ACTIVATION_GRADIENTS,
    ACTIVATIONS,
    DEAD,
    FLUSHED,
    OVERFLOWED,
    UNMOVED,
    UPDATES,
    VANISHED,
    WEIGHT_GRADIENTS,
    LayerSample,
)


def is_rounded(model: Any) -> bool:
    """Return whether a layer computes in half precision, or keeps weights in it."""
    return any(dtype in NARROW for layer in layers_of(model) for dtype in (layer.compute_dtype, layer.variable_dtype))


class WeightUpdates(NamedTuple):
    """Counts of what the optimizer would add to each weight in float32, and of what remains after the weight is
    rounded, as in `ValueRanges`. `dtypes` are those of the weights.
    """

    wanted: Counts
    kept: Counts
    dtypes: tuple[str, ...]


def count_updates(model: Any, gradients: Sequence[Tensor], scale: float) -> WeightUpdates | None:
    """Count what a step with these gradients of the scaled loss would change in the weights.

    None if the optimizer has unknown variables. Nothing in the model or its optimizer changes.
    """
    weights, inner = weights_of(model), model.optimizer.inner_optimizer
    twin = copied_optimizer(inner)
    twin.gradient_accumulation_steps = None
    copies = [keras.Variable(wide(v.value), dtype="float32", trainable=True) for v in weights]
    twin.build(copies)
    slots = [v for v in inner.variables if "gradient_accumulator" not in v.path]
    if len(slots) != len(twin.variables):
        return None
    for own, slot in zip(twin.variables, slots, strict=True):
        own.assign(ops.copy(ops.cast(slot.value, own.dtype)))
    twin.apply([ops.convert_to_tensor(gradient) / scale for gradient in gradients], copies)
    before = [wide(v.value) for v in weights]
    rounded = [wide(ops.cast(copy.value, v.dtype)) for copy, v in zip(copies, weights, strict=True)]
    wanted, kept = (
        [after - first for after, first in zip(new, before, strict=True)]
        for new in ([copy.value for copy in copies], rounded)
    )
    dtypes = tuple(keras.backend.standardize_dtype(v.dtype) for v in weights)
    return WeightUpdates(np.asarray(statistics_of_each(wanted)), np.asarray(statistics_of_each(kept)), dtypes)


@dataclass(frozen=True)
class PartRows:
    """The rows of a `ValueRanges` of one layer, plain operation or weight without a layer, and their dtypes. Training
    computes a gradient of its outputs if it `is_trained`."""

    name: str
    part: int | None  # None: its outputs are those of a layer inside, or it was not called
    weights: dict[int, str]  # rows and paths
    kernels: set[str]  # the paths of those of the highest rank: a bias alone, whose gradient may be noise, is none
    dtype: str
    output_dtype: str
    is_called: bool
    is_trained: bool


class RangeMap:
    """The layers, operations and weights of a model in the order of the forward pass, from the probes of a pass."""

    def __init__(self, model: Any, probes: Probes) -> None:
        parts, rows = probes.parts, {id(v): row for row, v in enumerate(weights_of(model))}
        called = {id(parts[index]) for index in probes.order}
        self.entries = []
        for index in dict.fromkeys([*probes.order, *range(len(parts))]):
            direct = direct_trainable_variables(parts[index]) if isinstance(parts[index], keras.Layer) else []
            own = {rows.pop(id(v)): v for v in direct if id(v) in rows}
            inner = [each for each in inner_layers(parts[index]) if id(each) in called]
            shown = index if index in probes.order and (own or not inner) else None
            highest = max((len(v.shape) for v in own.values()), default=0)
            output_dtype = probes.dtypes.get(index, "float32")
            entry = PartRows(
                name_of(parts[index]),
                shown,
                {row: v.path for row, v in own.items()},
                {v.path for v in own.values() if len(v.shape) == highest},
                getattr(parts[index], "compute_dtype", None) or output_dtype,
                output_dtype,
                index in probes.order,
                index in probes.trained,
            )
            self.entries += [entry] if own or shown is not None else []
        for v in weights_of(model):
            if (row := rows.get(id(v))) is not None:
                self.entries.append(
                    PartRows(v.path, None, {row: v.path}, {v.path}, model.compute_dtype, "", True, True)
                )

    def layer_samples(
        self, base: ValueRanges, shadow: ValueRanges, updates: WeightUpdates | None = None
    ) -> list[LayerSample]:
        """Compare `base` with `shadow`, the same in float32, at each entry."""
        rows = []
        for entry in self.entries:
            if entry.part is not None:
                both = base.parts[entry.part], shadow.parts[entry.part]
                rows.append(_layer_sample(entry, ACTIVATIONS, entry.output_dtype, *(each[VALUE] for each in both)))
                if entry.is_trained and both[1][GRADIENT].sum():
                    gradients = [each[GRADIENT] for each in both]
                    rows.append(_layer_sample(entry, ACTIVATION_GRADIENTS, entry.output_dtype, *gradients))
            for weight in entry.weights:
                both = base.weights[weight], shadow.weights[weight]
                rows.append(_layer_sample(entry, WEIGHT_GRADIENTS, entry.dtype, *both, weight))
                if updates is not None and (dtype := updates.dtypes[weight]) in NARROW:
                    both = updates.kept[weight], updates.wanted[weight]
                    rows.append(_layer_sample(entry, UPDATES, dtype, *both, weight))
        return rows

    def faults(self, rows: Sequence[LayerSample], loss: float) -> dict[str, str]:
        """Return the layers that do not train as they would in float32, each with what is wrong with it; `loss` is that
        in float32, without which no gradient is missed.
        """
        found: dict[str, str] = {}
        for entry in self.entries:
            own = [row for row in rows if row.layer == entry.name and row.variable in (None, *entry.kernels)]
            outputs, kernels, updates = (
                [row for row in own if row.kind == kind] for kind in (ACTIVATIONS, WEIGHT_GRADIENTS, UPDATES)
            )
            if any(row.overflowed for row in outputs):
                found[entry.name] = OVERFLOWED
            elif any(row.is_lost for row in outputs):
                found[entry.name] = VANISHED
            elif kernels and all(row.is_lost for row in kernels):
                found[entry.name] = FLUSHED
            elif kernels and loss and entry.is_called and not any(row.values for row in kernels):
                found[entry.name] = DEAD
            elif updates and all(row.is_lost for row in updates):
                found[entry.name] = UNMOVED
        return found

    def doublings_to_overflow(self, shadow: ValueRanges) -> float | None:
        """Return how often the scale could double before a float16 gradient overflows, from float32 values; None if all
        are 0."""
        halves = [p for p in self.entries if p.is_trained and p.part is not None and p.output_dtype == HALF]
        bound = [shadow.parts[p.part, GRADIENT] for p in halves]
        bound += [shadow.weights[w] for p in self.entries if p.dtype == HALF for w in p.weights]
        tops = [top for counts in bound if (top := largest_exponent(counts)) is not None]
        return 15.0 - max(tops) if tops else None


def mean_share(rows: Sequence[LayerSample], name: str) -> float:
    """Return the mean of this share of the rows, weighted by how many values each has."""
    values = sum(row.values for row in rows)
    return float(sum(row.values * getattr(row, name) for row in rows) / max(values, 1))


HALF = "float16"


MAGNITUDES = 2.0 ** (np.arange(INFS) - EXPONENT_BIAS)  # of each slot of finite numbers
_SMALLEST_NORMAL = EXPONENT_BIAS - 14  # the slot of float16's


def _layer_sample(
    entry: PartRows, kind: str, dtype: str, base: Counts, shadow: Counts, weight: int | None = None
) -> LayerSample:
    low, high = base.astype(np.float64), shadow.astype(np.float64)
    values, size = high[:INFS].sum(), max(low.sum(), 1.0)
    occupied = np.flatnonzero(high[:INFS])
    first = int(occupied[0]) if occupied.size else None
    bad = low[INFS : NANS + 1].sum() - high[INFS : NANS + 1].sum()
    small = low[SUBNORMALS:_SMALLEST_NORMAL].sum() if dtype == HALF and kind != UPDATES else 0.0
    sums = [float(counts[:INFS] @ MAGNITUDES) for counts in (low, high)]
    return LayerSample(
        entry.name,
        kind,
        dtype,
        int(values),
        _share(low[ZEROS] - high[ZEROS], values),
        _share(small, values),
        _share(bad, size),
        _share(*sums),
        None if first is None else first - EXPONENT_BIAS,
        () if first is None else tuple(int(n) for n in high[first : occupied[-1] + 1]),
        None if weight is None else entry.weights[weight],
    )


def _share(part: float, whole: float) -> float:
    return float(min(max(part / whole, 0.0), 1.0)) if whole else 0.0
