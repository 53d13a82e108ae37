"""A look at the gradients now and then: is the loss scale too low, and how far is it from too high?

Gradients of one batch at any loss scale, without a trace left in the model, and what two sets of them say.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.engine.feed import Piece
from mpt_cli.precision import layers_of
from mpt_cli.precision.finite import dense, is_overwritten
from mpt_cli.precision.keras_internals import predict_in_training, training_loss
from mpt_cli.telemetry.records import GradientSample

Tensor = Any
SMALLEST_NORMAL = 2.0**-14  # of float16
MEASURES = ("nonzero", "flushed", "subnormal", "squares", "largest", "non_finite")


def pure_loss(model: Any, state: Sequence[list[Tensor]], batch: Any) -> Tensor:
    """float32 scalar: the loss of a training step on `batch`, as a pure function.

    `state` holds the values of the trainable, non-trainable and metric variables, in the order of the model's own
    lists. What the step would change (statistics, seeds, metrics) is computed and thrown away, on both backends.
    """
    variables = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
    mapping = [pair for group, values in zip(variables, state, strict=True) for pair in zip(group, values, strict=True)]
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    # as each backend's own step does it: only the former casts the inputs of a subclassed model
    forward = model if keras.backend.backend() == "tensorflow" else model.call
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True):
        loss = training_loss(model, x, y, predict_in_training(model, x, forward), weight)
    return ops.cast(loss, "float32")


def kept_gradients(gradients: list[Tensor], variables: list[Any]) -> list[Tensor]:
    """The values of those gradients that are some; statistics that overwrite their variable are none."""
    return [dense(g) for g, v in zip(gradients, variables, strict=True) if g is not None and not is_overwritten(v)]


def compare_gradients(model: Any, base: list[Tensor], raised: list[Tensor]) -> Tensor:
    """float32 vector of `MEASURES` for gradients of one batch at a loss scale (`base`) and at a higher one (`raised`).

    Elements that are not 0 at either scale; that are 0 in `base` only, which float16 flushed; subnormal ones in `base`
    of layers that compute in float16; sum of squares and largest magnitude of `base`; inf and nan in `raised`. A nan
    there says nothing of an element, since 0 times inf is nan; inf stands for a number.
    """
    narrow = {id(v) for layer in layers_of(model) if layer.compute_dtype == "float16" for v in layer.variables}
    trained = [v for v in model.trainable_variables if not is_overwritten(v)]
    is_narrow = [id(v) in narrow for v in trained] if len(trained) == len(base) else [True] * len(base)
    rows = [_measure(low, high, half) for low, high, half in zip(base, raised, is_narrow, strict=True)]
    table = ops.stack(rows)
    return ops.where(ops.arange(len(MEASURES)) == MEASURES.index("largest"), ops.max(table, 0), ops.sum(table, 0))


def _measure(base: Tensor, raised: Tensor, is_narrow: bool) -> Tensor:
    low, high = ops.abs(ops.cast(base, "float32")), ops.abs(ops.cast(raised, "float32"))
    known = ops.logical_and(ops.not_equal(high, 0), ops.logical_not(ops.isnan(high)))
    flushed = _count(ops.logical_and(ops.equal(low, 0), known))
    present = _count(ops.not_equal(low, 0))
    small = _count(ops.logical_and(ops.not_equal(low, 0), low < SMALLEST_NORMAL)) if is_narrow else 0.0 * present
    bad = _count(ops.logical_not(ops.isfinite(high)))
    return ops.stack([present + flushed, flushed, small, ops.sum(ops.square(low)), ops.max(low, initial=0.0), bad])


def _count(flags: Tensor) -> Tensor:
    return ops.cast(ops.sum(ops.cast(flags, "int32")), "float32")  # float32 additions of 1 would stop at 2**24


FIRST_SAMPLE_STEP = 100  # so that a short run has a sample too
LARGEST_FLOAT16 = 65504.0
MOST_DOUBLINGS = 24  # 2**24 spans float16 from its smallest number to 1
TRIES = 5  # 24, 12, 6, 3, 1


class GradientEngine(Protocol):
    """What a sample needs of the engine of a backend."""

    def gradients(self, source: Any, row: NDArray[np.int32], scale: float) -> list[Any]:
        """Gradients of one batch under this loss scale, on the device; nothing in the model changes."""

    def compare_gradients(self, base: list[Any], raised: list[Any]) -> list[float]:
        """`compare_gradients` as plain numbers."""


class GradientSampler:
    """Takes samples every `every_steps` steps, and one at `FIRST_SAMPLE_STEP`, each at the next line of the log.

    Each costs two to four backward passes outside of the training loop, compiled once. One that fails (a model that
    can't be called without side effects, too little memory) is reported through `say`, and no other is tried.
    """

    def __init__(self, engine: GradientEngine, every_steps: int, say: Callable[[str], None]) -> None:
        self.engine, self.every_steps, self.say = engine, every_steps, say
        self._works = True

    def next_due(self, step: int, log_every_steps: int) -> int | None:
        """The first line of the log after `step` that has a sample: there a call into the training loop has to end."""
        if not self._works:
            return None
        passed = step // self.every_steps
        wanted = min(FIRST_SAMPLE_STEP, self.every_steps), passed * self.every_steps, (passed + 1) * self.every_steps
        lines = [-(-at // log_every_steps) * log_every_steps for at in wanted if at]
        return min(line for line in lines if line > step)

    def take(self, piece: Piece, step: int, scale: float) -> GradientSample | None:
        """The sample of the last batch of `piece` at this loss scale; None where its gradients overflow."""
        row = piece.batch_indices[piece.count - 1]
        try:
            return sample_gradients(self.engine, piece.source, row, (step, scale))
        except Exception as error:  # a look must never end what it looks at
            self._works = False
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            self.say(f"gradients can't be sampled here ({reason[0][:200]}); training goes on without")
            return None


def sample_gradients(
    engine: GradientEngine, source: Any, row: NDArray[np.int32], position: tuple[int, float]
) -> GradientSample | None:
    """Compare the gradients at the present scale with those at one as high as they allow.

    The higher scale lifts what float16 flushed; zeros of ReLU and padding stay 0. It is lowered where the backward pass
    overflows on the way, which hides the elements behind it; the head-room is then what did not overflow: gradients of
    activations can be much larger than those of the weights. `position` is the step and the scale.
    """
    step, scale = position
    base = engine.gradients(source, row, scale)
    found = dict(zip(MEASURES, engine.compare_gradients(base, base), strict=True))
    if found["non_finite"]:
        return None
    norm, largest = math.sqrt(found["squares"]) / scale, found["largest"]
    headroom = math.log2(LARGEST_FLOAT16 / largest) if largest else None
    doublings = MOST_DOUBLINGS if headroom is None else max(1, min(MOST_DOUBLINGS, int(headroom) - 1))
    room = headroom
    for _ in range(TRIES):
        raised = engine.gradients(source, row, scale * 2.0**doublings)
        found = dict(zip(MEASURES, engine.compare_gradients(base, raised), strict=True))
        if not found["non_finite"] or doublings == 1:
            break
        doublings = max(1, doublings // 2)
        room = float(doublings)
    if found["non_finite"]:
        room = 0.0
    most = max(found["nonzero"], 1.0)
    room = None if headroom is None else room
    return GradientSample(step, norm, found["flushed"] / most, found["subnormal"] / most, room)
