"""What runs of the same seeds show of two configurations: whether one is better, whether both are equal as far as it
matters, or neither, and how many seeds would tell; and which of several configurations are behind the first.

The runs are paired by their seed, and what is judged is the mean of the differences. Two questions are asked of it,
each answered wrongly in at most LEVEL of the cases, at any number of seeds:

- equal: two one-sided t tests against a margin (D. J. Schuirmann, "A comparison of the two one-sided tests procedure
  and the power approach for assessing the equivalence of average bioavailability", 1987). It is the same as that the
  interval of 1 - 2 LEVEL lies between the margins.
- better or worse: the two-sided paired t test, that is that the interval of 1 - LEVEL leaves out 0.

Several configurations are held against the one that has come out first, so that the level is shared among the
comparisons (Bonferroni): each of them may have been the first by chance.

Runs that agree are no proof: what happens less often than about 3 in N was not seen in N seeds in 5 % of the cases
(J. A. Hanley, A. Lippman-Hand, "If nothing goes wrong, is everything all right?", 1983).

scipy, which takes most of a second to import, is imported where something is computed.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

LEVEL = 0.05
FEWEST_SEEDS = 3  # that show a spread: two leave an interval 13 times the standard error wide
POWER = 0.8  # the chance of a verdict that "how many seeds would tell" asks for
MOST_SEEDS = 1000  # more are not proposed
RARE = 3  # in N: what happens less often may be missing among N, in 5 % of the cases
_FLOAT32 = 2.0**-20  # a few roundings of a sum in float32


def count_seeds(seeds: int) -> str:
    return f"{seeds} seeds" if seeds > 1 else "one seed"


@dataclass(frozen=True)
class PairedDifference:
    """The differences of an objective, other less baseline, one for each seed; each a finite number.

    `resolution` is what equal figures may differ by, being float32 or a share of so many examples, by one of them;
    `comparisons` is among how many the level is shared.

    >>> found = PairedDifference.of([(0.95, 0.929), (0.96, 0.941), (0.94, 0.920)])
    >>> found.is_zero_left_out, found.is_within(0.01), found.is_within(0.03)
    (True, False, True)
    """

    differences: tuple[float, ...]
    resolution: float = 0.0
    comparisons: int = 1
    examples: int | None = None

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], comparisons: int = 1, examples: int | None = None) -> Self:
        """Make it of (baseline, other) of each seed, finite numbers; `examples` where they are shares of so many."""
        resolution = _FLOAT32 * max(abs(value) for pair in pairs for value in pair)
        resolution += 1 / examples if examples else 0.0
        return cls(tuple(other - base for base, other in pairs), resolution, comparisons, examples)

    @property
    def seeds(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def is_same(self) -> bool:
        """Return whether no seed differs by more than the resolution."""
        return all(abs(difference) <= self.resolution for difference in self.differences)

    @property
    def deviation(self) -> float | None:
        """Return that of the sample, n - 1, at least one example; None where the spread is not known: with fewer seeds
        than FEWEST_SEEDS, or where all differences are the same and how many examples they count is not known.
        """
        if self.seeds < FEWEST_SEEDS:
            return None
        found = statistics.stdev(self.differences)
        if self.examples:
            return max(found, self.resolution)
        return found if found > self.resolution else None

    def interval(self, confidence: float = 1 - LEVEL) -> tuple[float, float] | None:
        """Return that of the mean difference, by Student's t; None where the spread is not known."""
        if self.deviation is None:
            return None
        from scipy import stats

        error = self.deviation / math.sqrt(self.seeds)
        low, high = stats.t.interval(confidence, self.seeds - 1, self.mean, error)
        return float(low), float(high)

    @property
    def is_zero_left_out(self) -> bool:
        """Return whether the mean differs from 0, shown at the level: enough differences of one sign are a proof by
        themselves, whatever their spread.
        """
        level = LEVEL / self.comparisons
        if (interval := self.interval(1 - level)) is not None:
            return interval[0] > 0 or interval[1] < 0
        from scipy import stats

        return abs(self.mean) > self.resolution and float(stats.binomtest(self.seeds, self.seeds).pvalue) <= level

    def is_within(self, margin: float) -> bool:
        """Return whether seeds and examples show at the level that the mean is nearer to 0 than the margin."""
        interval = self.interval(1 - 2 * LEVEL)
        if interval is None or self.are_examples_few(margin):
            return False
        return -margin < interval[0] and interval[1] < margin

    def are_examples_few(self, margin: float) -> bool:
        """Return whether so few examples may hide a difference of more than the margin."""
        return self.examples is not None and RARE / self.examples > margin

    def seeds_to_decide(self, margin: float | None = None) -> int | None:
        """Return how many seeds would show the one or the other in POWER of the cases, if mean and spread are as they
        look.

        Without a margin only a difference counts. None where the spread is not known, or MOST_SEEDS would not do. The
        spread is taken for known, so that a few seeds look a little more powerful than they are.
        """
        if self.deviation is None:
            return None
        import numpy as np
        from scipy import stats

        counts = np.arange(self.seeds + 1, MOST_SEEDS + 1)
        error = self.deviation / np.sqrt(counts)
        shift = abs(self.mean) / error
        power = stats.norm.cdf(shift - stats.t.isf(LEVEL / self.comparisons / 2, counts - 1))
        if margin is not None and not self.are_examples_few(margin):
            limit = stats.t.isf(LEVEL, counts - 1)
            equal = [stats.norm.cdf(margin / error + side - limit) for side in (-shift, shift)]
            power = np.maximum(power, sum(equal) - 1)
        enough = counts[power >= POWER]
        return int(enough[0]) if len(enough) else None


@dataclass(frozen=True)
class FirstPlace:
    """What is shown of the first of several configurations.

    `behind` has for each of the others, in the order given, its difference to the first where at least one seed is
    shared; `not_told_apart` which of them are not told apart from the first; `seeds` how many would tell all of those,
    None where it can't be said.
    """

    behind: tuple[PairedDifference | None, ...]
    not_told_apart: tuple[int, ...]
    seeds: int | None

    @property
    def is_shown(self) -> bool:
        """Return whether the first is the best, shown at the level; never where it was compared with none."""
        return bool(self.behind) and not self.not_told_apart


Values = Mapping[str, float]  # of an objective, by seed


def judge_first_place(first: Values, others: Sequence[Values], is_ahead: Callable[[float], bool]) -> FirstPlace:
    """Compare the first with each of the others; `is_ahead` says of a difference, other less first, that the other is
    the better one. A value that is not finite is behind any that is.

    >>> steady, close = {"0": 0.95, "1": 0.96, "2": 0.94}, {"0": 0.94, "1": 0.97, "2": 0.93}
    >>> far = {"0": 0.70, "1": 0.71, "2": 0.695}
    >>> judge_first_place(steady, [close, far], lambda difference: difference > 0).not_told_apart
    (0,)
    """
    behind = tuple(_differences(first, other, len(others)) for other in others)
    not_told_apart = tuple(
        place for place, found in enumerate(behind) if not _is_lost(others[place]) and not _is_behind(found, is_ahead)
    )
    wanted = [found.seeds_to_decide() if found else None for found in (behind[place] for place in not_told_apart)]
    known = [count for count in wanted if count is not None]
    return FirstPlace(behind, not_told_apart, max(known) if known and len(known) == len(wanted) else None)


def _differences(first: Values, other: Values, comparisons: int) -> PairedDifference | None:
    pairs = [(first[seed], other[seed]) for seed in first if seed in other]
    sound = [pair for pair in pairs if all(map(math.isfinite, pair))]
    return PairedDifference.of(sound, comparisons) if sound else None


def _is_lost(values: Values) -> bool:
    return not values or not all(map(math.isfinite, values.values()))


def _is_behind(found: PairedDifference | None, is_ahead: Callable[[float], bool]) -> bool:
    return found is not None and found.is_zero_left_out and not is_ahead(found.mean)
