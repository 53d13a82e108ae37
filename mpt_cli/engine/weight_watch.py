"""Whether training moves the weights: those that stay as they are, bit for bit, although they have gradients.

An update of less than half a unit in the last place of its weight, 2^-25 to 2^-24 of a float32 one, is rounded away.
So some elements of each kernel are compared with what they were when training began, which costs next to nothing: a
kernel of which most have moved is looked at no longer. Had the others a gradient? An optimizer with moments or momentum
tells it, whose own variables have changed there; for one without, a batch goes through the model once, outside of the
compiled step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.engine.flow import pure_loss
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.finite import is_overwritten
from mpt_cli.precision.keras_internals import slots_of
from mpt_cli.precision.train_step import trained_by
from mpt_cli.telemetry.records import UnmovedWeights

PICKED = 64  # rows of a kernel that are looked at, and elements of each, evenly spaced
LEAST_UPDATES = 10  # before anything is said
MOST_OF_KERNEL = 0.5  # of the elements with a gradient; in a run that trains nearly all of them have moved
WIDE = ("float32", "float64")  # samples of the gradients tell of narrower ones
LEAST_COLUMNS = 8  # of which a row tells whether its elements move
ALL_MOVED: dict[str, Any] = {"kernels": [], "any_moved": True}  # a position in which there is nothing to watch
Tensor = Any
Gradients = Callable[[], dict[int, Tensor]]  # by the ids of the variables; without those that have none


@dataclass
class WatchedKernel:
    """A weight that is watched: elements of it and of the optimizer's variables for it, `slots`, as they were at the
    beginning. `had_gradient` says of which of them a batch gave a gradient, where that was asked."""

    variable: Any
    slots: list[Any]
    optimizer: LossScaleOptimizer
    begun: NDArray[Any]
    slots_begun: list[NDArray[Any]]
    applied_before: int
    had_gradient: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, variable: Any, slots: list[Any], optimizer: LossScaleOptimizer) -> "WatchedKernel":
        """As it is now; the steps are counted last, as a loop may go on in the meantime."""
        picked = pick(variable), [*map(pick, slots)]
        return cls(variable, slots, optimizer, *picked, int(optimizer.applied_steps))

    @property
    def layer(self) -> str:
        path = str(self.variable.path)
        return path.rpartition("/")[0] or path

    @property
    def is_settled(self) -> bool:
        """Whether it was updated often enough to tell."""
        steps = self.optimizer.inner_optimizer.gradient_accumulation_steps or 1
        return int(self.optimizer.applied_steps) - self.applied_before >= LEAST_UPDATES * steps

    def unmoved_share(self) -> float | None:
        """Of the elements that had a gradient and were not 0, which any update moves; None where none is known."""
        had_gradient = self.with_gradient()
        return None if had_gradient is None else self._unmoved_share(had_gradient)

    def has_moved(self) -> bool:
        """Whether most elements have, as far as can be told without a batch."""
        had_gradient = self.with_gradient()
        share = self._unmoved_share(self._in_moved_rows() if had_gradient is None else had_gradient)
        return share is not None and share < MOST_OF_KERNEL

    def with_gradient(self) -> NDArray[np.bool_] | None:
        """Which elements had one; None where that is not known."""
        changed = [pick(slot) != begun for slot, begun in zip(self.slots, self.slots_begun, strict=True)]
        return np.logical_or.reduce(changed) if changed else self.had_gradient

    def _unmoved_share(self, had_gradient: NDArray[np.bool_]) -> float | None:
        known = had_gradient & (self.begun != 0)
        return float(1 - self.moved()[known].mean()) if known.any() else None

    def _in_moved_rows(self) -> NDArray[np.bool_]:
        """A row of which no element has moved may be of an input that no batch had, as of a word."""
        moved = self.moved()
        return np.broadcast_to(moved.any(axis=1, keepdims=True) | (moved.shape[1] < LEAST_COLUMNS), moved.shape)

    def moved(self) -> NDArray[np.bool_]:
        """Which of its elements are others now, by a bit or more."""
        moved: NDArray[np.bool_] = pick(self.variable) != self.begun
        return moved


def pick(values: Any) -> NDArray[Any]:
    """A copy of at most `PICKED` rows of an array, tensor or variable, and of as many elements of each, evenly spaced;
    all axes but the last count as one.

    >>> pick(np.arange(6.0).reshape(3, 2)).tolist(), pick(np.zeros((3, 3, 200, 70))).shape, pick(np.zeros(5)).shape
    ([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], (63, 35), (5, 1))
    """
    values = getattr(values, "value", values)
    columns = values.shape[-1] if len(values.shape) > 1 else 1
    is_here = keras.backend.backend() == "jax"  # where slicing would compile, and an array on the CPU is no copy
    rows = np.reshape(np.asarray(values), (-1, columns)) if is_here else ops.reshape(values, (-1, columns))
    steps = [-(-length // PICKED) for length in rows.shape]
    return np.array(rows[:: steps[0], :: steps[1]])


class WeightWatch:
    """Watches the kernels that built `optimizers` train from here on, after step `since` of the run: weights of two
    axes or more, or all where there are none of these, in float32 or float64.

    `position` is what `position()` gave of a run that goes on: kernels that had moved by then have moved.
    """

    def __init__(
        self, optimizers: Sequence[LossScaleOptimizer], since: int, position: dict[str, Any] | None = None
    ) -> None:
        self.since = since
        kept = [trained for trained in _kernels(optimizers)
                if position is None or trained[0].path in position["kernels"]]  # fmt: skip
        self.kernels = [WatchedKernel.of(*trained) for trained in kept]
        self.any_moved = position is not None and bool(position["any_moved"])
        self.found: UnmovedWeights | None = None  # as of the latest look; None where all is well
        self._rate = 0.0  # the highest at a look
        self._next_look = 0

    def position(self) -> dict[str, Any]:
        """As a JSON object, for a checkpoint: what has not moved by now."""
        self._drop_moved()
        return {"kernels": [kernel.variable.path for kernel in self.kernels], "any_moved": self.any_moved}

    def is_due(self, step: int) -> bool:
        """At twice as many steps each time."""
        return bool(self.kernels) and step >= self._next_look

    def look(self, step: int, rate: float, gradients: Gradients | None = None) -> UnmovedWeights | None:
        """What has not moved by this step, whose learning rate was `rate`; None where all is well, and where that can't
        be told: after few updates, none above a rate of 0, or without knowing whether there were gradients.

        `gradients` are called for kernels whose optimizer has no variables that would tell, which are known from then.
        """
        self._drop_moved()
        self._rate, self._next_look = max(self._rate, rate), 2 * step
        settled = [kernel for kernel in self.kernels if kernel.is_settled] if self._rate > 0 else []
        if gradients is not None and any(kernel.with_gradient() is None for kernel in settled):
            found = gradients()
            for kernel in self.kernels:
                kernel.had_gradient = pick(found[id(kernel.variable)]) != 0 if id(kernel.variable) in found else None
        self.found = self._unmoved(settled)
        return self.found

    def news(self, step: int, rate: float, gradients: Gradients | None = None) -> UnmovedWeights | None:
        """What a `look` finds, where the one before found nothing."""
        was_known = self.found is not None
        found = self.look(step, rate, gradients)
        return None if was_known else found

    def _drop_moved(self) -> None:
        still = [kernel for kernel in self.kernels if not kernel.has_moved()]
        self.any_moved = self.any_moved or len(still) < len(self.kernels)
        self.kernels = still

    def _unmoved(self, kernels: list[WatchedKernel]) -> UnmovedWeights | None:
        """Of layers all of whose kernels that had a gradient stayed."""
        shares: dict[str, list[float]] = {}
        for kernel in kernels:
            if (share := kernel.unmoved_share()) is not None:
                shares.setdefault(kernel.layer, []).append(share)
        layers = {layer: min(found) for layer, found in shares.items() if min(found) >= MOST_OF_KERNEL}
        if not layers:
            return None
        is_whole = not (self.any_moved or any(kernel.moved().any() for kernel in self.kernels))
        return UnmovedWeights(layers, is_whole, self.since, self._rate)


def _kernels(optimizers: Sequence[LossScaleOptimizer]) -> list[tuple[Any, list[Any], LossScaleOptimizer]]:
    trained = [(variable, slots, optimizer) for optimizer in optimizers
               for variable, slots in zip(trained_by(optimizer), slots_of(optimizer.inner_optimizer), strict=True)
               if variable.dtype in WIDE and math.prod(variable.shape) and not is_overwritten(variable)]  # fmt: skip
    return [each for each in trained if len(each[0].shape) > 1] or trained


def gradients_of_batch(model: Any, batch: Any, scale: float) -> dict[int, Tensor]:
    """Of the loss of `batch`, `(x, y, sample_weight)`, at this loss scale, by the trainable variables it depends on, by
    their ids: as the model trains, but outside of any compiled function and without a trace."""
    lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
    state = [[ops.convert_to_tensor(v.value) for v in variables] for variables in lists]
    found = _differentiate(lambda trained: pure_loss(model, (trained, *state[1:]), batch) * scale, state[0])
    return {id(v): gradient for v, gradient in zip(lists[0], found, strict=True) if gradient is not None}


def _differentiate(function: Callable[[list[Tensor]], Tensor], values: list[Tensor]) -> list[Tensor | None]:
    if keras.backend.backend() == "jax":
        import jax

        return list(jax.grad(function)(values))
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(values)
        result = function(values)
    found = tape.gradient(result, values)
    return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in found]  # sparse ones whole
