"""A look at the gradients now and then: is the loss scale too low, and how far is it from too high?"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpt_cli.telemetry.records import GradientSample
from mpt_cli.training.feed import Piece
from mpt_cli.training.gradients import MEASURES

FIRST_STEP = 100  # so that a short run has a sample too
LARGEST_FLOAT16 = 65504.0
MOST_DOUBLINGS = 24  # 2**24 spans float16 from its smallest number to 1
TRIES = 5  # 24, 12, 6, 3, 1


class GradientEngine(Protocol):
    """What a sample needs of the engine of a backend."""

    def gradients(self, source: Any, row: NDArray[np.int32], scale: float) -> list[Any]:
        """Gradients of one batch under this loss scale, on the device; nothing in the model changes."""

    def compare(self, base: list[Any], raised: list[Any]) -> list[float]:
        """`gradients.compare` as plain numbers."""


class Sampler:
    """Takes samples every `every_steps` steps, and one at `FIRST_STEP`, each at the line of the log that follows.

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
        wanted = min(FIRST_STEP, self.every_steps), passed * self.every_steps, (passed + 1) * self.every_steps
        lines = [-(-at // log_every_steps) * log_every_steps for at in wanted if at]
        return min(line for line in lines if line > step)

    def take(self, piece: Piece, step: int, scale: float) -> GradientSample | None:
        """The sample of the last batch of `piece` at this loss scale; None where its gradients overflow."""
        row = piece.rows[piece.count - 1]
        try:
            return measure(self.engine, piece.source, row, (step, scale))
        except Exception as error:  # a look must never end what it looks at
            self._works = False
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            self.say(f"gradients can't be sampled here ({reason[0][:200]}); training goes on without")
            return None


def measure(
    engine: GradientEngine, source: Any, row: NDArray[np.int32], position: tuple[int, float]
) -> GradientSample | None:
    """Compare the gradients at the present scale with those at one as high as they allow.

    The higher scale lifts what float16 flushed; zeros of ReLU and padding stay 0. It is lowered where the backward pass
    overflows on the way, which hides the elements behind it; the head-room is then what did not overflow: gradients of
    activations can be much larger than those of the weights. `position` is the step and the scale.
    """
    step, scale = position
    base = engine.gradients(source, row, scale)
    found = dict(zip(MEASURES, engine.compare(base, base), strict=True))
    if found["non_finite"]:
        return None
    norm, largest = math.sqrt(found["squares"]) / scale, found["largest"]
    headroom = math.log2(LARGEST_FLOAT16 / largest) if largest else None
    doublings = MOST_DOUBLINGS if headroom is None else max(1, min(MOST_DOUBLINGS, int(headroom) - 1))
    room = headroom
    for _ in range(TRIES):
        raised = engine.gradients(source, row, scale * 2.0**doublings)
        found = dict(zip(MEASURES, engine.compare(base, raised), strict=True))
        if not found["non_finite"] or doublings == 1:
            break
        doublings = max(1, doublings // 2)
        room = float(doublings)
    if found["non_finite"]:
        room = 0.0
    most = max(found["nonzero"], 1.0)
    room = None if headroom is None else room
    return GradientSample(step, norm, found["flushed"] / most, found["subnormal"] / most, room)
