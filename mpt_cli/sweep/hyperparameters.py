"""What the varied keys do to the objective of a sweep: how much of the ranking each explains, and every job as a line
across all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpt_cli.settings.key_type import read_number
from mpt_cli.sweep.directory import JobResult, SweepResults
from mpt_cli.telemetry.format import format_number

MOST_LINES = 300  # of jobs in parallel coordinates
PARTS = 4  # that many values are put into as many groups


def job_label(result: JobResult, *left_out: str) -> str:
    """Return what the job varies, without these keys: "initial_scale 2**8, epochs 3"."""
    others = {name: text for name, text in result.job.overrides.items() if name not in left_out}
    return ", ".join(f"{name.rpartition('.')[2]} {text}" for name, text in others.items())


def _reached(found: SweepResults, result: JobResult) -> float:
    value = found.objective.value(result.summary)
    return math.nan if value is None or not result.is_good else value


def _places(texts: Sequence[str]) -> list[int]:
    """Return the place of each among the different values, numbers in their order before other texts."""
    numbers = {text: read_number(text) for text in texts}
    order = sorted(numbers, key=lambda text: (numbers[text] is None, numbers[text] or 0, text))
    place = {text: number for number, text in enumerate(order)}
    return [place[text] for text in texts]


@dataclass(frozen=True)
class Importance:
    """`share` of the jobs' ranking that a key explains by itself, 0 where it says no more than chance would; `p` is how
    often chance alone would show as much. Both are None where its values tell nothing.
    """

    key: str
    share: float | None = None
    p: float | None = None


def importances(found: SweepResults) -> list[Importance]:
    """Return that of each varied key, the largest first.

    The share is eta squared of the Kruskal-Wallis test, (H - k + 1) / (n - k) for n jobs in k groups of equal values,
    which finds a best value in the middle as well as one at an end. More than n / 3 numbers are put into quarters.
    """
    every = [_importance(found, key) for key in found.keys]
    return sorted(every, key=lambda each: -1.0 if each.share is None else each.share, reverse=True)


def _importance(found: SweepResults, key: str) -> Importance:
    from scipy.stats import kruskal

    jobs = [result for result in found.results if result.is_good and key in result.job.overrides]
    texts = [result.job.overrides[key] for result in jobs]
    places, count = _places(texts), len({*texts})
    if 3 * count > len(jobs) and all(read_number(text) is not None for text in texts):
        places = [PARTS * place // count for place in places]
    groups: dict[int, list[float]] = {}
    for result, place in zip(jobs, places, strict=True):
        groups.setdefault(place, []).append(found.objective.sort_key(_reached(found, result)))
    freedom = len(jobs) - len(groups)
    if len(groups) < 2 or freedom < 1 or len({value for each in groups.values() for value in each}) < 2:
        return Importance(key)
    statistic, p = kruskal(*groups.values())
    return Importance(key, max(0.0, (float(statistic) - len(groups) + 1) / freedom), float(p))


def parallel_chart(found: SweepResults) -> dict[str, Any]:
    """Return the data of charts.js for a line per good job across the varied keys and the objective."""
    ranked = [result for row in found.configurations for result in row.results]
    jobs = [result for result in ranked if math.isfinite(_reached(found, result))][:MOST_LINES]
    reached = [_reached(found, result) for result in jobs]
    axes = []
    for key in found.keys:
        texts = [result.job.overrides.get(key, "-") for result in jobs]  # not every job has all keys
        axes.append(_axis(key.rpartition(".")[2], texts, _places(texts)))
    return {
        "axes": [*axes, _axis(found.objective.name, [*map(format_number, reached)], reached)],
        "names": [f"{result.job.number:03d}" for result in jobs],
        "falls": found.objective.falls,
    }


def _axis(label: str, texts: list[str], values: Sequence[float]) -> dict[str, Any]:
    """Return where each job stands on it, from 0 to 1, by these values; the texts name them."""
    low, high, named = min(values, default=0), max(values, default=0), dict(zip(values, texts, strict=True))
    return {
        "label": label,
        "texts": texts,
        "low": named.get(low, ""),
        "high": named.get(high, ""),
        "at": [(value - low) / (high - low) if high > low else 0.5 for value in values],
    }
