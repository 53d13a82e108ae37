"""The records of the steps of one call into the compiled loop, as arrays on the host."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOATS = ("loss", "scale_before", "scale_after", "learning_rate")
INTS = ("finite", "counter", "nan", "inf", "first_bad", "zero")


@dataclass(frozen=True)
class Block:
    """One row per step, in order. `floats` is float32 (steps, 4) and `ints` int32 (steps, 6), columns as named above.
    `zero` is 1 where every element of every gradient was 0.

    `metrics` are the epoch's running metrics after the last step.
    """

    floats: NDArray[np.float32]
    ints: NDArray[np.int32]
    metrics: dict[str, float]

    def __len__(self) -> int:
        return len(self.floats)

    def column(self, name: str) -> NDArray[Any]:
        if name in FLOATS:
            return self.floats[:, FLOATS.index(name)]
        return self.ints[:, INTS.index(name)]

    @property
    def finite(self) -> NDArray[np.bool_]:
        return self.column("finite").astype(bool)
