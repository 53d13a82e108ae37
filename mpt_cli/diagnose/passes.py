"""One forward and backward pass that counts gradients through probes around every layer, and changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
from keras import ops

from mpt_cli.engine.loop import StepWrapper
from mpt_cli.engine.probes import Counts, Probes, Tensor

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
    if keras.backend.backend() == "tensorflow":
        from mpt_cli.diagnose.passes_tensorflow import TensorFlowPass

        return TensorFlowPass(model, probes, options)
    from mpt_cli.diagnose.passes_jax import JaxPass

    return JaxPass(model, probes, options)


def count_updates(before: list[Tensor], after: list[Tensor]) -> Tensor:
    """Shape (weights, 3): see `Counted`."""
    rows = [_count_update(old, new) for old, new in zip(before, after, strict=True)]
    return ops.stack(rows) if rows else ops.zeros((0, 3), "float32")


def _count_update(before: Tensor, after: Tensor) -> Tensor:
    size, weight = ops.abs(after - before), ops.abs(before)
    moved = size > 0
    lost = [ops.logical_and(moved, size < share * weight) for share in LOST_BELOW.values()]
    return ops.stack([ops.sum(ops.cast(flags, "float32")) for flags in (moved, *lost)])
