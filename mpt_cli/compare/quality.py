"""When the result of one precision counts as equal to that of another: the rule, and what it found."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mpt_cli.sweep.objective import Objective
from mpt_cli.telemetry.console.words import number_words

SHARES = ("acc", "auc", "precision", "recall", "f1", "iou", "dice")  # metrics between 0 and 1
SHARE_TOLERANCE = 0.01  # one percentage point
RELATIVE_TOLERANCE = 0.05  # of the baseline's value, for losses and errors
EQUAL, WORSE, BETTER, UNCLEAR, UNKNOWN = "equal", "worse", "better", "unclear", "unknown"
ONE_SEED_FACTOR = 5.0  # with one seed, only a difference of this many tolerances is taken for an effect


@dataclass(frozen=True)
class Quality:
    """`difference` is to the baseline, the mean over the seeds; `kind` one of the five words above."""

    kind: str
    difference: float | None
    margin: float
    seeds: int


def compare_quality(
    objective: Objective, pairs: Sequence[tuple[float, float]], tolerance: float | None = None
) -> Quality:
    """From the (baseline, other) values of each seed.

    Equal: the mean difference is within the margin, which is the tolerance or, where that is more, the range of the
    baseline's own values over the seeds. With one seed a difference beyond it is unclear until it is ONE_SEED_FACTOR
    times as large. A value that is not finite is worse than any that is.

    >>> compare_quality(Objective("val_accuracy", falls=False), [(0.98, 0.975)]).kind
    'equal'
    >>> compare_quality(Objective("val_loss", falls=True), [(0.10, 0.12), (0.11, 0.12)]).kind
    'worse'
    """
    if not pairs:
        return Quality(UNKNOWN, None, 0.0, 0)
    bases = [base for base, _ in pairs]
    difference = statistics.fmean(other - base for base, other in pairs)
    if not all(map(math.isfinite, bases)):
        return Quality(UNKNOWN, difference, math.nan, len(pairs))
    margin = max(default_tolerance(objective, bases) if tolerance is None else tolerance, max(bases) - min(bases))
    if not math.isfinite(difference):
        return Quality(WORSE, difference, margin, len(pairs))
    return Quality(_kind(objective, difference, margin, len(pairs)), difference, margin, len(pairs))


def _kind(objective: Objective, difference: float, margin: float, seeds: int) -> str:
    if abs(difference) <= margin:
        return EQUAL
    if seeds == 1 and abs(difference) <= ONE_SEED_FACTOR * margin:
        return UNCLEAR
    return WORSE if (difference > 0) == objective.falls else BETTER


def default_tolerance(objective: Objective, bases: Sequence[float]) -> float:
    """One percentage point of a share, 5 % of anything else."""
    is_share = not objective.falls and any(word in objective.name.lower() for word in SHARES)
    return SHARE_TOLERANCE if is_share else RELATIVE_TOLERANCE * abs(statistics.fmean(bases))


def rule_words(objective: Objective, margins: Sequence[float], seeds: int) -> str:
    """The rule, and what so many seeds can show."""
    margin = number_words(max((margin for margin in margins if math.isfinite(margin)), default=None))
    words = f"Equal quality: {objective.name} within {margin} of the baseline"
    if seeds > 1:
        return f"{words} in the mean over {seeds} seeds, or within the range of the baseline's own seeds."
    return f"{words}. One seed can't tell the effect of a precision from chance: --seeds 3 can."
