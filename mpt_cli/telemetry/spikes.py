"""Jumps of the loss, found while a run trains: each step's loss is held against those of the steps before it.

What a loss may be is settled at every `EVERY`th step of the run, and at those of `EARLY`, so that what is found depends
neither on how steps are divided into calls nor on where a run was resumed.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW, EVERY = 128, 64  # losses looked back at, steps between two looks
EARLY, LEAST = (16, 32), 16  # steps of the looks before these, finite losses that one needs
FEW, FEW_FACTOR = 32, 1.25  # of fewer losses deviations are known less well, so that they are taken so much larger
MADS, SHARE = 20.0, 0.5  # above the median: so many times the median deviation, and at least this share of it
LOG_MADS = 7.0  # the same of the logarithms, as losses near 0 differ by factors
APART = 8  # a step within so many of one that lies above belongs to the same spike
BEFORE = 8  # losses before it that are kept
# How heavy the tail of the noise is, is told by the excursions of the last steps, of half the height of a jump: the
# share of steps that go beyond a height falls with its third power at the least, as Student's t of 3 degrees has it.
EXCURSION_MADS, EXCURSION_LOG_MADS = 10.0, 5.0
MEMORY_STEPS, LEAST_MEMORY_STEPS = 4096, 1024
BY_CHANCE = 1.0  # an excursion that may be a small jump
RARE = 2e-5  # the share of steps whose noise may go beyond the bound


class Jump(NamedTuple):
    """A spike by its first step; `median` and `bound` are None before there was a first look."""

    step: int
    median: float | None
    bound: float | None
    before: tuple[float, ...]


class LossSpread(NamedTuple):
    """Of finite losses: their median, their median absolute deviation, and that of their logarithms, told from the
    differences of neighbours, so that a fast fall is no spread; None where one of them is not above 0."""

    median: float
    deviation: float
    log_deviation: float | None

    @classmethod
    def of(cls, losses: NDArray[Any]) -> "LossSpread | None":
        """None where too few are finite, or most of them the same 0, beside which any other would be a jump."""
        known = losses[np.isfinite(losses)].astype(np.float64)
        if len(known) < LEAST:
            return None
        widened = FEW_FACTOR if len(known) < FEW else 1.0
        median = _median(known)
        deviation = widened * _median(np.abs(known - median))
        if median == deviation == 0.0:
            return None
        factor = widened * _median(np.abs(np.diff(np.log(known)))) / math.sqrt(2) if known.min() > 0.0 else None
        return cls(median, deviation, factor)

    def bound(self, mads: float = MADS, log_mads: float = LOG_MADS, share: float = SHARE) -> float:
        """So many deviations above the median, at least `share` of it, and so many deviations of the logarithms."""
        bound = self.median + max(mads * self.deviation, share * abs(self.median))
        if self.log_deviation is None:
            return bound
        return max(bound, math.exp(min(math.log(self.median) + log_mads * self.log_deviation, 700.0)))


def loss_bound(losses: NDArray[Any]) -> tuple[float, float]:
    """The median of these losses and the most that another may be where the noise has no heavy tail; nan and infinity
    where they are too few, or most of them the same 0.

    The median plus `MADS` median absolute deviations, and never below one and a half times itself. Losses above 0 may
    also differ by factors, as those of single batches do when most are near 0: by `LOG_MADS` deviations of their
    logarithms. Of 10,000 steps of noisy losses (logarithms normal with a deviation of 1, Student's t of 3 and 5
    degrees) less than one is taken for a jump; where the tail is heavy `SpikeWatch` raises the bound for that.

    >>> loss_bound(np.array([2.0] * 40)), loss_bound(np.array([1.0, 3.0] * 20))
    ((2.0, 3.0), (2.0, 459.89609109597313))
    >>> loss_bound(np.array([2.0] * 15))
    (nan, inf)
    """
    spread = LossSpread.of(losses)
    if spread is None:
        known = losses[np.isfinite(losses)]
        return (0.0 if len(known) >= LEAST else math.nan), math.inf
    return spread.median, spread.bound()


def _median(values: NDArray[Any]) -> float:
    ascending = np.sort(values)
    return float(ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2]) / 2


def _episodes(steps: NDArray[Any], before: float = -math.inf) -> NDArray[np.bool_]:
    """Which of these ascending steps are further than `APART` from the one before them; `before` is the last known."""
    return np.diff(steps, prepend=before) > APART


@dataclass
class SpikeWatch:
    """What must be known of the steps so far; `window` holds the losses of the last ones, newest last.

    A loss above `bound` is a jump, and so is one above `low_bound` that follows another such within `APART` steps:
    where the tail of the noise is heavy, single losses come that far by chance, and two near one another do not.
    """

    window: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.float32))
    median: float = math.nan
    low_bound: float = math.inf
    bound: float = math.inf
    excursion_bound: float = math.inf
    excursions: float = 0.0  # of `watched` steps, those long ago counting less
    watched: float = 0.0
    last_high: int = -APART - 1  # the last step whose loss was above the low bound
    last_above: int = -APART - 1  # the last that was a jump or part of one
    found: int = 0

    def position(self) -> dict[str, Any]:
        """As a JSON object, for a checkpoint."""
        return {**vars(self), "window": self.window.tolist()}

    def resume(self, position: dict[str, Any]) -> None:
        """Go on from what `position` gave, also after a round trip through strict JSON; what an older version did not
        keep is as at the beginning, until the next look."""
        self.window = np.array([float(loss) for loss in position["window"]], np.float32)
        for each in fields(self):
            if each.name != "window" and each.name in position:
                setattr(self, each.name, type(getattr(self, each.name))(position[each.name]))
        self.low_bound = float(position.get("low_bound", self.bound))

    def absorb(self, seen: int, losses: NDArray[Any], applied: NDArray[np.bool_], most: int) -> list[Jump]:
        """Take in the losses of the next steps, `seen` of them before; the jumps, as long as they are the first `most`.

        A loss that is not finite is one too, unless the step was skipped: that is an overflow, with an event.
        """
        found: list[Jump] = []
        start = 0
        while start < len(losses):
            step = seen + start
            if step in EARLY or step % EVERY == 0:
                self._look(step)
            end = min(len(losses), start + _next_look(step) - step)
            part = losses[start:end]
            if not (largest := float(part.max())) <= self.low_bound or largest == math.inf:
                found += self._jumps(step, part, np.flatnonzero(self._above(step, part, applied[start:end])))
            self.window = np.concatenate([self.window, part])[-WINDOW:]
            start = end
        kept = found[: max(0, most - self.found)]
        self.found += len(found)
        return kept

    def _look(self, step: int) -> None:
        """Settle what the losses after `step` may be."""
        if step >= 2 * EVERY and step % EVERY == 0:
            self._count_excursions()
        spread = LossSpread.of(self.window)
        self.median, self.low_bound = loss_bound(self.window)
        self.bound = self.excursion_bound = math.inf
        if spread is not None:
            share = max(self.excursions - BY_CHANCE, 0.0) / max(self.watched, LEAST_MEMORY_STEPS)
            self.bound = spread.bound(max(MADS, EXCURSION_MADS * (share / RARE) ** (1 / 3)))
            self.excursion_bound = spread.bound(EXCURSION_MADS, EXCURSION_LOG_MADS, share=0.0)

    def _count_excursions(self) -> None:
        """Of the steps since the look before, each episode once; what was a jump is no noise."""
        latest = self.window[-EVERY:]
        high = np.flatnonzero((latest > self.excursion_bound) & (latest <= self.bound) & (latest < math.inf))
        kept = 1 - EVERY / MEMORY_STEPS
        self.excursions = kept * self.excursions + int(_episodes(high).sum())
        self.watched = kept * self.watched + EVERY

    def _above(self, seen: int, losses: NDArray[Any], applied: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which are part of a jump; `seen` steps were before the first of them."""
        finite = np.isfinite(losses)
        above: NDArray[np.bool_] = np.where(finite, losses > self.bound, applied)
        high = np.flatnonzero(finite & (losses > self.low_bound))
        above[high[~_episodes(high + seen + 1, self.last_high)]] = True
        if len(high):
            self.last_high = int(high[-1]) + seen + 1
        return above

    def _jumps(self, seen: int, losses: NDArray[Any], above: NDArray[Any]) -> list[Jump]:
        """`above` are the rows of these losses, `seen` of them before, that are; the window ends before the first."""
        begins = above[_episodes(above + seen + 1, self.last_above)]
        if len(above):
            self.last_above = int(above[-1]) + seen + 1
        course, first = np.concatenate([self.window, losses]), len(self.window)
        return [Jump(int(row) + seen + 1, *self._bounds_of(float(losses[row])),
                     tuple(course[: first + row][-BEFORE:].tolist())) for row in begins]  # fmt: skip

    def _bounds_of(self, loss: float) -> tuple[float | None, float | None]:
        """The median, and the bound that this loss is beyond."""
        if math.isnan(self.median):
            return None, None
        return self.median, self.low_bound if loss <= self.bound else self.bound


def _next_look(step: int) -> int:
    """
    >>> [_next_look(step) for step in (0, 16, 31, 32, 64, 100)]
    [16, 32, 32, 64, 128, 128]
    """
    return next((early for early in EARLY if early > step), (step // EVERY + 1) * EVERY)
