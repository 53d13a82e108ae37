"""Step times without compiling, and when one is shorter than another."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpt_cli.report.story import as_number
from mpt_cli.report.traces import read_lines

FEWEST_WINDOWS = 5  # lines of metrics.jsonl with a speed; of fewer, the mean of the run says more than their median
SMALLEST_GAIN = 0.05  # a difference below this is none, however still the machine
ONE_ROUND = 0.10  # what two equal processes one after another may differ by; several rounds show it themselves


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step, compiling left out. `spread` is half the range of the middle half of the run's
    windows, as a share of their median: how much the speed moved within the run.
    """

    seconds: float
    spread: float


def step_time(metrics_jsonl: Path, mean_rate: float | None, batch_size: int) -> StepTime | None:
    """From the median of the speeds logged, which a busy moment doesn't move; None where nothing was timed."""
    lines = (line for line in read_lines(metrics_jsonl) if not line.get("epoch_end"))
    rates = [rate for line in lines if (rate := as_number(line.get("examples_per_second")))]
    if len(rates) >= FEWEST_WINDOWS:
        low, middle, high = statistics.quantiles(rates, n=4)
        return StepTime(batch_size / middle, (high - low) / (2 * middle))
    return StepTime(batch_size / mean_rate, 0.0) if mean_rate else None


@dataclass(frozen=True)
class SpeedUp:
    """How many times as fast as the baseline: the median over the rounds, the lowest and the highest, and the share
    that may be chance.
    """

    factor: float
    lowest: float
    highest: float
    noise: float

    @property
    def is_faster(self) -> bool:
        return self.factor > 1 + self.noise and self.lowest > 1

    @property
    def is_slower(self) -> bool:
        return self.factor < 1 - self.noise and self.highest < 1


def speed_up(pairs: Sequence[tuple[StepTime, StepTime]]) -> SpeedUp | None:
    """From (baseline, other) of each round; None without any.

    >>> found = speed_up([(StepTime(0.2, 0.0), StepTime(0.1, 0.0))])
    >>> found.factor, found.noise, found.is_faster
    (2.0, 0.1, True)
    """
    factors = [baseline.seconds / other.seconds for baseline, other in pairs]
    if not factors:
        return None
    if len(factors) == 1:
        noise = max(ONE_ROUND, pairs[0][0].spread + pairs[0][1].spread)
    else:
        noise = max(SMALLEST_GAIN, (max(factors) - min(factors)) / 2)
    return SpeedUp(statistics.median(factors), min(factors), max(factors), noise)
