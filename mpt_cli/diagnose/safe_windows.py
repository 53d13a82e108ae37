"""Which loss scales the gradients of each layer bear: predicted from counts in float32, verified by float16 passes.
Each is one forward and backward pass that counts gradients through probes around every layer, and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops

from mpt_cli.engine.flow import Flow, FlowMap
from mpt_cli.engine.loop import StepWrapper
from mpt_cli.engine.probes import (
    GRADIENT,
    Counts,
    Probes,
    Tensor,
    count_weights,
    in_layers,
    owners_of_weights,
    weights_of,
)
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
from mpt_cli.precision.keras_internals import inner_layers, predict_in_training, training_loss
from mpt_cli.precision.optimizer import backend_step
from mpt_cli.precision.policy import name_of, parts_of
from mpt_cli.telemetry.records import LayerSample

MOVED, LOST_FLOAT16, LOST_BFLOAT16 = 0, 1, 2
LOST_BELOW = {LOST_FLOAT16: 2.0**-11, LOST_BFLOAT16: 2.0**-8}  # of the weight: half a unit in its last place


@dataclass(frozen=True)
class Counted:
    """What passes found. Sums of several add up with `+`.

    `sinks` has shape (sinks of the probes, its rows, SINK_SIZE), `weights` (trainable weights, SINK_SIZE): counts of
    the gradients. `updates` (trainable weights, 3), where an optimizer was given: elements that the optimizer would
    move, and of those the ones whose weight would stay what it is if it were float16 or bfloat16. `losses` are those
    of the passes, float32 and unscaled.
    """

    losses: tuple[float, ...]
    sinks: Counts
    weights: Counts
    updates: Counts | None = None

    def __add__(self, other: "Counted") -> "Counted":
        updates = None if self.updates is None or other.updates is None else self.updates + other.updates
        losses = self.losses + other.losses
        return Counted(losses, self.sinks + other.sinks, self.weights + other.weights, updates)


def add_up(found: Sequence[Counted]) -> Counted:
    """The counts of several passes together, of one at least."""
    return sum(found[1:], found[0])


class GradientPass(Protocol):
    """The gradients of `scale` times the loss of one batch `(x, y, sample_weight)`; no variable is different after."""

    def __call__(self, batch: Any, scale: float = 1.0) -> Counted:
        """Compiled at the first call for the shapes of `batch`."""


@dataclass(frozen=True)
class PassOptions:
    """`optimizer` (not wrapped, built) says by how much weights would move. `step_wrapper` puts faults into the pass,
    as into a training step."""

    optimizer: Any = None
    jit_compile: bool = False
    step_wrapper: StepWrapper | None = None


def build_pass(model: Any, probes: Probes, options: PassOptions = PassOptions()) -> GradientPass:
    """The pass for a model with a loss. Where the model has an optimizer, that one's loss scale counts as well.

    float16 is rounded where the layers round it, also between fused operations: TensorFlow's kernels do so, JAX is
    told to. With `jit_compile` TensorFlow uses XLA, and JAX leaves XLA the freedom that training leaves it.
    """
    kind = TensorFlowPass if keras.backend.backend() == "tensorflow" else JaxPass
    return kind(model, probes, options)


class TensorFlowPass:
    """A `GradientPass`. Whatever the pass writes into variables is put back at its end."""

    def __init__(self, model: Any, probes: Probes, options: PassOptions) -> None:
        import tensorflow as tf

        self.model, self.probes, self.optimizer = model, probes, options.optimizer
        self._step = options.step_wrapper(self._pass) if options.step_wrapper else self._pass
        self._run = tf.function(self._scaled_pass, autograph=False, jit_compile=options.jit_compile)
        self._scale: Tensor = None  # of the pass that is being traced

    def __call__(self, batch: Any, scale: float = 1.0) -> Counted:
        loss, sinks, weights, updates = self._run(batch, ops.convert_to_tensor(scale, "float32"))
        moved = None if self.optimizer is None else updates.numpy()
        return Counted((float(loss),), sinks.numpy(), weights.numpy(), moved)

    def _scaled_pass(self, batch: Any, scale: Tensor) -> Any:
        self._scale = scale
        return self._step(self.model, batch)

    def _pass(self, model: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        import tensorflow as tf

        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        weights = weights_of(model)
        touched = [*model.non_trainable_variables, *model.metrics_variables]
        before = _read(touched)
        sinks = self.probes.sinks()
        with self.probes.installed(sinks), tf.GradientTape() as tape:
            tape.watch(sinks)
            y_pred = predict_in_training(model, x)
            loss = ops.cast(training_loss(model, x, y, y_pred, weight), "float32")
            scaled = (loss if model.optimizer is None else model.optimizer.scale_loss(loss)) * self._scale
        found = tape.gradient(scaled, [*weights, *sinks])
        gradients, counts = found[: len(weights)], found[len(weights) :]
        updates = self._updates([*weights], gradients)
        known = [ops.zeros_like(v) if g is None else g for v, g in zip(weights, gradients, strict=True)]
        counts = [ops.zeros_like(sink) if c is None else c for sink, c in zip(sinks, counts, strict=True)]
        _write(touched, before)
        return loss, ops.stack(counts), count_weights(in_layers(model, known)), updates

    def _updates(self, weights: list[Any], gradients: list[Tensor]) -> Tensor:
        if self.optimizer is None:
            return ops.zeros((0, 3), "float32")
        touched = [*weights, *self.optimizer.variables]
        before = _read(touched)
        self.optimizer.apply(gradients, weights)
        updates = count_updates(before[: len(weights)], _read(weights))
        _write(touched, before)
        return updates


def _read(variables: list[Any]) -> list[Tensor]:
    return [ops.copy(variable.value) for variable in variables]


def _write(variables: list[Any], values: list[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class JaxPass:
    """A `GradientPass`: a pure function of the variables' values, so that there is nothing to put back."""

    def __init__(self, model: Any, probes: Probes, options: PassOptions) -> None:
        import jax

        self.model, self.probes, self.optimizer = model, probes, options.optimizer
        self._step = options.step_wrapper(self._pass) if options.step_wrapper else self._pass
        self._scale: Tensor = None  # of the pass that is being traced
        # XLA otherwise keeps float32 between the operations it fuses, and nothing would be seen to underflow there
        precision: dict[str, Any] = {} if options.jit_compile else {"xla_allow_excess_precision": False}
        self._run = jax.jit(self._scaled_pass, compiler_options=precision)

    def __call__(self, batch: Any, scale: float = 1.0) -> Counted:
        import jax

        model = self.model
        rule = self.optimizer or model.optimizer
        own = [] if rule is None else rule.variables
        lists = (model.trainable_variables, model.non_trainable_variables, own, model.metrics_variables)
        state = backend_step().TrainState(*([variable.value for variable in variables] for variables in lists))
        loss, sinks, weights, updates = jax.device_get(self._run(state, batch, np.float32(scale)))
        return Counted((float(loss),), sinks, weights, None if self.optimizer is None else updates)

    def _scaled_pass(self, state: Any, batch: Any, scale: Tensor) -> Any:
        self._scale = scale
        return self._step(self.model, state, batch)

    def _pass(self, model: Any, state: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        import jax

        weights, frozen, own, metrics = state
        given = keras.utils.unpack_x_y_sample_weight(batch)

        def scaled_loss(weights: list[Tensor], sinks: list[Tensor]) -> tuple[Tensor, Tensor]:
            with self.probes.installed(sinks):
                scaled, (loss, *_) = model.compute_loss_and_updates(
                    weights, frozen, metrics, *given, training=True, optimizer_variables=own
                )
            return ops.cast(scaled, "float32") * self._scale, ops.cast(loss, "float32")

        differentiated = jax.value_and_grad(scaled_loss, argnums=(0, 1), has_aux=True)
        (_, loss), (gradients, sinks) = differentiated(weights, self.probes.sinks())
        moved = {id(variable) for variable in weights_of(model)}
        chosen = [id(variable) in moved for variable in model.trainable_variables]
        counts = count_weights(in_layers(model, [g for g, is_it in zip(gradients, chosen, strict=True) if is_it]))
        return loss, ops.stack(sinks), counts, self._updates(own, gradients, weights)

    def _updates(self, own: list[Tensor], gradients: list[Tensor], weights: list[Tensor]) -> Tensor:
        if self.optimizer is None:
            return ops.zeros((0, 3), "float32")
        moved, _ = self.optimizer.stateless_apply(own, gradients, weights)
        return count_updates(weights, moved)


def count_updates(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Shape (weights, 3): see `Counted`."""
    rows = [_count_update(old, new) for old, new in zip(before, after, strict=True)]
    return ops.stack(rows) if rows else ops.zeros((0, 3), "float32")


def _count_update(before: Tensor, after: Tensor) -> Tensor:
    size, weight = ops.abs(after - before), ops.abs(before)
    moved = size > 0
    lost = [ops.logical_and(moved, size < share * weight) for share in LOST_BELOW.values()]
    return ops.stack([ops.sum(ops.cast(flags, "float32")) for flags in (moved, *lost)])


# Not less: the gradient of a bias that a normalisation or a softmax cancels is rounding noise, and does not matter.
MOST_WEIGHTS_FLUSHED = 0.1  # share of the nonzero gradients of a layer's weights that a safe scale may flush to zero
MOST_MAGNITUDE_FLUSHED = 0.001  # the same of the summed magnitude of the gradients of its output
MAGNITUDES = np.where(np.arange(SINK_SIZE) < INFS, 2.0 ** (np.arange(SINK_SIZE) - EXPONENT_BIAS), 1.0)  # of each slot


@dataclass(frozen=True)
class GradientCounts:
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
class LostUpdates:
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
    activations: GradientCounts | None
    weights: GradientCounts | None
    updates: LostUpdates | None

    @property
    def gradients(self) -> list[GradientCounts]:
        return [found for found in (self.activations, self.weights) if found is not None]

    @property
    def window(self) -> SafeScales | None:
        return common_window([found.window for found in self.gradients])


@dataclass(frozen=True)
class ExaminedModel:
    """The parts of the examined model by position, as the rows of a diagnosis: their names, kinds and dtypes."""

    model: Any
    output_dtypes: dict[int, str]

    def layer_ranges(self, probes: Probes, counted: Counted) -> list[LayerRange]:
        """A row for each part that has gradients of its own, in the order in which they are called."""
        parts = parts_of(self.model)
        owners = owners_of_weights(self.model)
        uncalled = [index for index in range(len(parts)) if index not in probes.order]
        rows = [self._row(parts[i], i, probes, counted, owners) for i in [*probes.order, *uncalled]]
        return [row for row in rows if row.gradients]

    def _row(self, part: Any, index: int, probes: Probes, counted: Counted, owners: list[int | None]) -> LayerRange:
        own = [i for i, owner in enumerate(owners) if owner == index]
        through = counted.sinks[index, GRADIENT]
        has_output = index in probes.trained and through.sum() > 0 and (bool(own) or not inner_layers(part))
        compute_dtype = getattr(part, "compute_dtype", None) or self.output_dtypes.get(index, "float32")
        dtype = self.output_dtypes.get(index, compute_dtype)
        return LayerRange(
            name_of(part), type(part).__name__, compute_dtype, getattr(part, "variable_dtype", compute_dtype),
            GradientCounts(through, dtype, False, (index,)) if has_output else None,
            GradientCounts(counted.weights[own].sum(axis=0), compute_dtype, True, tuple(own)) if own else None,
            _updates(counted.updates[own].sum(axis=0)) if own and counted.updates is not None else None,
        )  # fmt: skip


def common_window(windows: list[SafeScales | None]) -> SafeScales | None:
    """The scales that are safe for all; None where none of them minds."""
    minding = [window for window in windows if window is not None]
    if not minding:
        return None
    return SafeScales(max(w.lowest_power for w in minding), min(w.highest_power for w in minding))


def _updates(row: Counts) -> LostUpdates | None:
    moved = float(row[MOVED])
    if not moved:
        return None  # a learning rate of 0, as at the first step of a warm-up
    return LostUpdates(int(moved), float(row[LOST_FLOAT16]) / moved, float(row[LOST_BFLOAT16]) / moved)


def layer_samples(places: FlowMap, examined: Counted, shadow: Counted, scale: float) -> list[LayerSample]:
    """What passes of the examined model at `scale` left of each layer, against unscaled ones in float32."""
    power = int(np.log2(power_of_two_below(scale)))
    parts = shadow.sinks.copy()
    parts[:, GRADIENT] = _shifted(shadow.sinks[:, GRADIENT], power)
    none = np.zeros(2, np.float32)
    wide = Flow(parts, _shifted(shadow.weights, power), none)
    return places.layer_samples(Flow(examined.sinks, examined.weights, none), wide)


def _shifted(counts: Counts, power: int) -> Counts:
    """Of the values times 2**power; those that leave the range of float32 stay at its ends."""
    moved = counts.copy()
    moved[..., :INFS] = 0
    for place in range(INFS):
        moved[..., min(max(place + power, 0), INFS - 1)] += counts[..., place]
    return moved


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


@dataclass(frozen=True)
class ReferenceGradients:
    """What a trial is held against: the rows of the float32 pass, and its counts."""

    layers: Sequence[LayerRange]
    counted: Counted


class Verifier:
    """Tries scales on the model in float16."""

    def __init__(self, examined_pass: GradientPass, batches: Sequence[Any], reference: ReferenceGradients) -> None:
        self.examined_pass, self.batches, self.reference = examined_pass, batches, reference
        self.bound = [g for layer in reference.layers for g in layer.gradients if g.is_bound]
        self.done: dict[float, ScaleTrial] = {}
        self.totals: dict[float, Counted] = {}

    def trials(self) -> list[ScaleTrial]:
        """Those done so far, by scale."""
        return [self.done[scale] for scale in sorted(self.done)]

    def try_scale(self, scale: float) -> ScaleTrial:
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

    def _try(self, scale: float) -> ScaleTrial:
        found = [self.examined_pass(batch, scale) for batch in self.batches]
        overflows = sum(holds_non_finite(counted.weights) for counted in found)
        total = self.totals[scale] = add_up(found)
        values = [float(np.sum(g.counts[:INFS])) for g in self.bound]
        shares = [share_flushed(g.counts, power_of_two_below(scale)) for g in self.bound]
        return ScaleTrial(
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
