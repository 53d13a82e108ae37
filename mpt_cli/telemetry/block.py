"""The records of the steps of one call into the compiled loop, as arrays on the host."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

FLOATS = ("loss", "scale_before", "scale_after", "learning_rate")
INTS = ("finite", "counter", "nan", "inf", "first_bad", "zero")


NEVER = 2**30


class Lines(NamedTuple):
    """After which steps of a call there is a line of the log: the `first`, counted from 1, and each `every` further."""

    first: int = NEVER
    every: int = NEVER


class Streaks(NamedTuple):
    """Counts of bad steps, or the counts at which a call ends early.

    Steps skipped in a row; skipped since the scale came to its floor; applied in a row with a loss that was not finite;
    with gradients that were all zero; and all steps skipped in this call.
    """

    skips: int
    floor_skips: int
    non_finite_losses: int
    zero_steps: int
    skips_in_call: int


class Watch(NamedTuple):
    """`streaks` before a call, and their `limits`."""

    streaks: Streaks = Streaks(0, 0, 0, 0, 0)
    limits: Streaks = Streaks(NEVER, NEVER, NEVER, NEVER, NEVER)

    def numbers(self) -> list[int]:
        """The streaks, then the limits; a streak at its limit already (of a resumed run, say) leaves a step.

        >>> Watch(Streaks(0, 12, 0, 0, 0), Streaks(50, 10, NEVER, 50, 3)).numbers()
        [0, 12, 0, 0, 0, 50, 13, 1073741824, 50, 3]
        """
        pairs = zip(self.streaks, self.limits, strict=True)
        return [*self.streaks, *(max(limit, streak + 1) for streak, limit in pairs)]


@dataclass(frozen=True)
class Block:
    """One row per step, in order. `floats` is float32 (steps, 4) and `ints` int32 (steps, 6), columns as named above.
    `zero` is 1 where every element of every gradient was 0.

    `metrics` are the epoch's running metrics after the last step, `lines` those after each step that has a line of the
    log, by its number in the block, counted from 1.
    """

    floats: NDArray[np.float32]
    ints: NDArray[np.int32]
    metrics: dict[str, float]
    lines: dict[int, dict[str, float]] = field(default_factory=dict)

    def parts(self) -> list[Self]:
        """Cut after each step that has a line; the metrics of a part are those after its last step.

        >>> block = Block(np.zeros((5, 4)), np.zeros((5, 6)), {"loss": 5.0}, {2: {"loss": 2.0}, 4: {"loss": 4.0}})
        >>> [(len(part), part.metrics["loss"]) for part in block.parts()]
        [(2, 2.0), (2, 4.0), (1, 5.0)]
        """
        ends = sorted({*self.lines, len(self)})
        return [
            type(self)(self.floats[first:last], self.ints[first:last], self.lines.get(last, self.metrics))
            for first, last in pairwise([0, *ends])
        ]

    def __len__(self) -> int:
        return len(self.floats)

    def column(self, name: str) -> NDArray[Any]:
        if name in FLOATS:
            return self.floats[:, FLOATS.index(name)]
        return self.ints[:, INTS.index(name)]

    @property
    def finite(self) -> NDArray[np.bool_]:
        return self.column("finite").astype(bool)
