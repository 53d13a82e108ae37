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


def numbered_label(result: JobResult) -> str:
    return f"{result.job.number:03d} {job_label(result)}".rstrip()


def _reached(found: SweepResults, result: JobResult) -> float:
    value = found.objective.value(result.summary)
    return math.nan if value is None or not result.is_good else value


def _number(result: JobResult, key: str) -> float | None:
    number = read_number(result.job.overrides.get(key, ""))  # not every point has all keys
    return None if number is None else float(number)


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
    which finds a best value in the middle as well as one at an end. More than n / 3 values are put into quarters.
    """
    every = [_importance(found, key) for key in found.keys]
    return sorted(every, key=lambda each: -1.0 if each.share is None else each.share, reverse=True)


def _importance(found: SweepResults, key: str) -> Importance:
    from scipy.stats import kruskal

    jobs = [result for result in found.results if result.is_good and key in result.job.overrides]
    groups: dict[Any, list[float]] = {}
    for result, group in zip(jobs, _groups(jobs, key), strict=True):
        groups.setdefault(group, []).append(found.objective.sort_key(_reached(found, result)))
    freedom = len(jobs) - len(groups)
    if len(groups) < 2 or freedom < 1 or len({value for each in groups.values() for value in each}) < 2:
        return Importance(key)
    statistic, p = kruskal(*groups.values())
    return Importance(key, max(0.0, (float(statistic) - len(groups) + 1) / freedom), float(p))


def _groups(jobs: Sequence[JobResult], key: str) -> list[Any]:
    """Return the group of each job: its value, or which quarter of the values it lies in."""
    texts, numbers = [result.job.overrides[key] for result in jobs], [_number(result, key) for result in jobs]
    if None in numbers or 3 * len({*numbers}) <= len(jobs):
        return texts
    order = sorted({number for number in numbers if number is not None})
    return [PARTS * order.index(number) // len(order) for number in numbers if number is not None]


def parallel_chart(found: SweepResults) -> dict[str, Any]:
    """Return the data of charts.js for a line per good job across the varied keys and the objective."""
    ranked = [result for row in found.configurations for result in row.results]
    jobs = [result for result in ranked if math.isfinite(_reached(found, result))][:MOST_LINES]
    reached = [_reached(found, result) for result in jobs]
    keys = [
        _axis(
            key.rpartition(".")[2],
            [result.job.overrides.get(key, "-") for result in jobs],
            [_number(result, key) for result in jobs],
        )
        for key in found.keys
    ]
    return {
        "axes": [*keys, _axis(found.objective.name, [*map(format_number, reached)], reached)],
        "names": [f"{result.job.number:03d}" for result in jobs],
        "falls": found.objective.falls,
    }


def _axis(label: str, texts: list[str], numbers: Sequence[float | None]) -> dict[str, Any]:
    """Return where each job stands on it, from 0 to 1: by its number or the logarithm of that, else by its text."""
    order, known = sorted({*texts}), [value for value in numbers if value is not None]
    if len(known) < len(texts):
        known = [float(order.index(each)) for each in texts]
    elif known and min(known) > 0 and max(known) >= 20 * min(known):
        known = [math.log2(value) for value in known]
    low, high = min(known, default=0.0), max(known, default=0.0)
    named = dict(zip(known, texts, strict=True))
    return {
        "label": label,
        "texts": texts,
        "low": named.get(low, ""),
        "high": named.get(high, ""),
        "at": [(value - low) / (high - low) if high > low else 0.5 for value in known],
    }
