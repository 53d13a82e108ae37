"""Judge from runs with the same seeds whether one of two configurations is better, or both are equal within a margin.

The runs are paired by seed, and the mean of the differences is tested. Two questions are asked, each answered wrongly
in at most LEVEL of the cases, at any number of seeds:

- better or worse: the two-sided paired t test, that is that the interval of 1 - LEVEL leaves out 0.
- equal: the same interval lies between the margins, so that it also shows the reader why. These are two one-sided t
  tests at half the LEVEL (D. J. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach
  for assessing the equivalence of average bioavailability", 1987).

When several configurations are compared with the first, the level is divided by the number of comparisons (Bonferroni).
The first is chosen by the same values, so the LEVEL is that of the truly best one being called worse than the first
(J. C. Hsu, "Multiple Comparisons: Theory and Methods", 1996).

scipy, which takes most of a second to import, is imported where something is computed.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.05
FEWEST_SEEDS = 3  # that show a spread: two leave an interval 13 times the standard error wide
_ROUNDING = 2.0**-23  # of one float32 number; a sum in float32 has a few of them


def count_seeds(seeds: int) -> str:
    return f"{seeds} seeds" if seeds > 1 else "one seed"


def needed_size(seeds: int, comparisons: int) -> float:
    """Return how many times its standard deviation over these seeds a mean difference must be to be shown."""
    from scipy.special import stdtrit

    return float(-stdtrit(seeds - 1, LEVEL / comparisons / 2)) / math.sqrt(seeds)


@dataclass(frozen=True)
class PairedDifference:
    """The (baseline, other) values of each seed, all finite. `comparisons` divides the level.

    >>> found = PairedDifference([(0.95, 0.929), (0.96, 0.941), (0.94, 0.920)])
    >>> found.is_shown, found.is_within(0.01), found.is_within(0.03)
    (True, False, True)
    """

    pairs: Sequence[tuple[float, float]]
    comparisons: int = 1

    @property
    def seeds(self) -> int:
        return len(self.pairs)

    @property
    def differences(self) -> list[float]:
        return [other - base for base, other in self.pairs]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def resolution(self) -> float:
        """Return the largest difference that float32 rounding makes between equal figures."""
        return 8 * self._rounding

    @property
    def _rounding(self) -> float:
        return _ROUNDING * max(abs(value) for pair in self.pairs for value in pair)

    @property
    def is_same(self) -> bool:
        """Return whether no seed of several shows a difference."""
        return self.seeds > 1 and all(abs(difference) <= self.resolution for difference in self.differences)

    @property
    def shown_interval(self) -> tuple[float, float] | None:
        """Return the interval of the mean difference, by Student's t, at the level that all comparisons share. None if
        the spread is unknown: with fewer seeds than FEWEST_SEEDS, or if all differences are the same.

        A spread below the resolution counts as the resolution.
        """
        if self.seeds < FEWEST_SEEDS or (spread := statistics.stdev(self.differences)) <= self._rounding:
            return None
        half = needed_size(self.seeds, self.comparisons) * max(spread, self.resolution)
        return self.mean - half, self.mean + half

    @property
    def is_shown(self) -> bool:
        """Return whether the mean differs from 0, shown at the level."""
        interval = self.shown_interval
        return interval is not None and (interval[0] > 0 or interval[1] < 0)

    def is_within(self, margin: float) -> bool:
        """Return whether the mean is nearer to 0 than the margin, shown at the level."""
        interval = self.shown_interval
        return interval is not None and -margin < interval[0] and interval[1] < margin
