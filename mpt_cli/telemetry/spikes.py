"""Jumps of the loss, found while a run trains: each step's loss is held against those of the steps before it.

What a loss may be is settled at every `EVERY`th step of the run, so that what is found depends neither on how steps are
divided into calls nor on where a run was resumed.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW, EVERY, LEAST = 128, 64, 32  # losses looked back at, steps between two looks, finite losses that one needs
MADS, SHARE = 20.0, 0.5  # above the median: so many times the median deviation, and at least this share of it
LOG_MADS = 7.0  # the same of the logarithms, as losses near 0 differ by factors
APART = 8  # a step within so many of one that lies above belongs to the same spike
BEFORE = 8  # losses before it that are kept


class Jump(NamedTuple):
    """A spike by its first step; `median` and `bound` are None before there was a first look."""

    step: int
    median: float | None
    bound: float | None
    before: tuple[float, ...]


def loss_bound(losses: NDArray[Any]) -> tuple[float, float]:
    """The median of these losses and the most that another may be; nan and infinity where they are too few, or most of
    them the same 0, beside which any other would be one.

    The median plus `MADS` median absolute deviations, and never below one and a half times itself. Losses above 0 may
    also differ by factors, as those of single batches do when most are near 0: by `LOG_MADS` deviations of their
    logarithms, told from the differences of neighbours, so that a fast fall is no spread. Of 10,000 steps of noisy
    losses (logarithms normal with a deviation of 1, Student's t of 5 degrees) less than one is taken for a jump.

    >>> loss_bound(np.array([2.0] * 40)), loss_bound(np.array([1.0, 3.0] * 20))
    ((2.0, 3.0), (2.0, 459.89609109597313))
    >>> loss_bound(np.array([2.0] * 31))
    (nan, inf)
    """
    known = losses[np.isfinite(losses)].astype(np.float64)
    if len(known) < LEAST:
        return math.nan, math.inf
    median = _median(known)
    spread = _median(np.abs(known - median))
    if median == spread == 0.0:
        return median, math.inf
    bound = median + max(MADS * spread, SHARE * abs(median))
    if known.min() > 0.0:
        logarithms = np.log(known)
        factor = _median(np.abs(np.diff(logarithms))) / math.sqrt(2)
        bound = max(bound, math.exp(min(math.log(median) + LOG_MADS * factor, 700.0)))
    return median, bound


def _median(values: NDArray[Any]) -> float:
    ascending = np.sort(values)
    return float(ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2]) / 2


@dataclass
class SpikeWatch:
    """What must be known of the steps so far; `window` holds the losses of the last ones, newest last."""

    window: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.float32))
    median: float = math.nan
    bound: float = math.inf
    last_above: int = -APART  # the last step whose loss was above the bound
    found: int = 0

    def position(self) -> dict[str, Any]:
        """As a JSON object, for a checkpoint."""
        return {**vars(self), "window": self.window.tolist()}

    def resume(self, position: dict[str, Any]) -> None:
        """Go on from what `position` gave, also after a round trip through strict JSON."""
        self.window = np.array([float(loss) for loss in position["window"]], np.float32)
        self.median, self.bound = float(position["median"]), float(position["bound"])
        self.last_above, self.found = int(position["last_above"]), int(position["found"])

    def absorb(self, seen: int, losses: NDArray[Any], applied: NDArray[np.bool_], most: int) -> list[Jump]:
        """Take in the losses of the next steps, `seen` of them before; the jumps, as long as they are the first `most`.

        A loss that is not finite is one too, unless the step was skipped: that is an overflow, with an event.
        """
        found: list[Jump] = []
        start = 0
        while start < len(losses):
            place = (seen + start) % EVERY
            if place == 0:
                self.median, self.bound = loss_bound(self.window)
            end = min(len(losses), start + EVERY - place)
            part = losses[start:end]
            if not (largest := float(part.max())) <= self.bound or largest == math.inf:
                found += self._jumps(seen + start, part, np.flatnonzero(self._above(part, applied[start:end])))
            self.window = np.concatenate([self.window, part])[-WINDOW:]
            start = end
        kept = found[: max(0, most - self.found)]
        self.found += len(found)
        return kept

    def _above(self, losses: NDArray[Any], applied: NDArray[np.bool_]) -> NDArray[np.bool_]:
        finite = np.isfinite(losses)
        above: NDArray[np.bool_] = np.where(finite, losses > self.bound, applied)
        return above

    def _jumps(self, seen: int, losses: NDArray[Any], above: NDArray[Any]) -> list[Jump]:
        """`above` are the rows of these losses, `seen` of them before, that are; the window ends before the first."""
        begins = above[np.diff(above + seen + 1, prepend=self.last_above) > APART]
        if len(above):
            self.last_above = int(above[-1]) + seen + 1
        median, bound = (None, None) if math.isnan(self.median) else (self.median, self.bound)
        course, first = np.concatenate([self.window, losses]), len(self.window)
        return [Jump(int(row) + seen + 1, median, bound, tuple(course[: first + row][-BEFORE:].tolist()))
                for row in begins]  # fmt: skip
