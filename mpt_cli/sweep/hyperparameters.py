"""The effect of the varied keys on the objective of a sweep: how much of the ranking each explains, and every job as a
line across all of them.
"""

import math
from collections.abc import Sequence

from mpt_cli.files import JsonObject
from mpt_cli.settings.key_type import read_number
from mpt_cli.sweep.directory import SweepResults
from mpt_cli.sweep.overrides import short_key
from mpt_cli.sweep.paired import LEVEL
from mpt_cli.telemetry.format import format_number

MOST_DRAWN_JOBS = 300  # of jobs in parallel coordinates
PARTS = 4  # that many values are put into as many groups


def _ordinals(texts: Sequence[str]) -> list[int]:
    """Return the ordinal of each among the different values, numbers in their order before other texts."""
    numbers = {text: read_number(text) for text in texts}
    order = sorted(numbers, key=lambda text: (numbers[text] is None, numbers[text] or 0, text))
    ordinal = {text: number for number, text in enumerate(order)}
    return [ordinal[text] for text in texts]


def importances(found: SweepResults) -> list[tuple[str, float | None]]:
    """Return each varied key, the seed too, with the share of the ranking of these jobs that it explains by itself,
    None if it may be chance; the largest share first. Shares leave out jobs with a seed
    that another configuration has no result for: they would count for those values of the keys that have them.

    The share is eta squared of the Kruskal-Wallis test, (H - k + 1) / (n - k) for n jobs in k groups of equal values,
    which finds a best value in the middle as well as one at an end. More than n / 3 numbers are put into quarters.
    """
    from scipy.stats import kruskal

    seeds = [{result.seed for result in row.results if result.is_good} for row in found.configurations]
    rows, common = [], set.intersection(*filter(None, seeds))
    for key in found.plan.varied:
        jobs = [
            result
            for result in found.results
            if result.is_good and key in result.job.overrides and (result.seed in common or not common)
        ]
        texts = [result.job.overrides[key] for result in jobs]
        ordinals, count = _ordinals(texts), len({*texts})
        if 3 * count > len(jobs) and all(read_number(text) is not None for text in texts):
            ordinals = [PARTS * ordinal // count for ordinal in ordinals]
        groups: dict[int, list[float]] = {}
        for result, ordinal in zip(jobs, ordinals, strict=True):
            reached = found.objective.sort_key(found.objective.value(result.summary))
            groups.setdefault(ordinal, []).append(reached)
        if len(groups) > 1 and len({value for each in groups.values() for value in each}) > 1:
            test, freedom = kruskal(*groups.values()), len(jobs) - len(groups)
            share = (float(test.statistic) - len(groups) + 1) / freedom if test.pvalue <= LEVEL else None
            rows.append((key, share))
    return sorted(rows, key=lambda row: -(row[1] or 0.0))


def parallel_chart(found: SweepResults) -> JsonObject:
    """Return the data of charts.js for a line per good job across the varied keys and the objective."""
    good = [result for row in found.configurations for result in row.results if result.is_good]
    values = [(result.job, found.objective.value(result.summary)) for result in good]
    lines = [(job, value) for job, value in values if value is not None and math.isfinite(value)][:MOST_DRAWN_JOBS]
    axes = []
    for key in found.keys:
        texts = [job.overrides.get(key, "-") for job, _ in lines]  # not every job has all keys
        axes.append(_axis(short_key(key), texts, _ordinals(texts)))
    reached = [value for _, value in lines]
    return {
        "axes": [*axes, _axis(found.objective.name, [*map(format_number, reached)], reached)],
        "names": [f"{job.number:03d}" for job, _ in lines],
        "falls": found.objective.falls,
    }


def _axis(label: str, texts: list[str], values: Sequence[float]) -> JsonObject:
    """Return where each job stands on it, from 0 to 1, by these values; the texts name them."""
    low, high = min(values, default=0), max(values, default=0)
    return {
        "label": label,
        "texts": texts,
        "at": [(value - low) / (high - low) if high > low else 0.5 for value in values],
    }
