"""From jobs to ranked configurations: the runs that differ only in their seed are one row."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mpt_cli.errors import ConfigError
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.objective import Objective, choose_objective
from mpt_cli.sweep.plan import Plan
from mpt_cli.sweep.results import FINISHED, NOT_RUN, JobResult, read_job

SEED = "seed"


@dataclass(frozen=True)
class Configuration:
    """The jobs of one setting of the varied keys. `mean` and `deviation` are of the objective over finished jobs.

    `deviation` is that of the sample (n - 1), None for fewer than two. `rank` is None where nothing finished.
    """

    overrides: dict[str, str]
    results: list[JobResult]
    mean: float | None = None
    deviation: float | None = None
    rank: int | None = None

    @property
    def finished(self) -> list[JobResult]:
        return [result for result in self.results if result.status == FINISHED]

    @property
    def is_complete(self) -> bool:
        return len(self.finished) == len(self.results)

    @property
    def shown(self) -> list[JobResult]:
        """The jobs whose figures stand for it: those that finished, else all that left a summary."""
        return self.finished or [result for result in self.results if result.summary]


@dataclass(frozen=True)
class SweepResults:
    """A whole sweep as it stands on disk; `configurations` are in order of their rank.

    `complaint` says why they are not ranked by what was asked for.
    """

    sweep: SweepDirectory
    plan: Plan
    objective: Objective
    results: list[JobResult]
    configurations: list[Configuration]
    complaint: str = ""

    @property
    def best(self) -> JobResult | None:
        """The best job of the best configuration."""
        first = next((configuration for configuration in self.configurations if configuration.rank == 1), None)
        if first is None:
            return None
        return min(first.finished, key=lambda result: self.objective.sort_key(self.objective.value(result.summary)))

    @property
    def keys(self) -> list[str]:
        """The varied keys, without the seed that several runs of one row share."""
        return [key for key in self.plan.varied if key != SEED]

    @property
    def has_seeds(self) -> bool:
        return SEED in self.plan.varied

    @property
    def is_complete(self) -> bool:
        return not self.plan.missing and all(result.status != NOT_RUN for result in self.results)


def read_results(sweep: SweepDirectory, objective: str | None = None, is_final: bool = False) -> SweepResults:
    """Everything about a sweep from its directory alone; `objective` where not the one it was started with.

    ConfigError for an `objective` that no job reports. Where a sweep ends (`is_final`), and where it is the one on
    record, the default takes its place.
    """
    plan, facts = sweep.read_plan()
    results = [read_job(sweep, job) for job in plan.jobs]
    finished = [result.summary for result in results if result.status == FINISHED]
    try:
        chosen, complaint = choose_objective(objective or facts.get("objective"), finished), ""
    except ConfigError as error:
        if objective and not is_final:
            raise
        chosen, complaint = choose_objective(None, finished), str(error)
    return SweepResults(sweep, plan, chosen, results, rank(results, chosen), complaint)


def check_reported(sweep: SweepDirectory, objective: str | None) -> None:
    """ConfigError for an objective named anew that none of the finished jobs reports."""
    if objective is not None:
        read_results(sweep, objective)


def rank(results: Sequence[JobResult], objective: Objective) -> list[Configuration]:
    """Configurations, best first; of equals, the one that skipped less.

    One with failed jobs comes after those without: its mean is that of the survivors.
    """
    groups: dict[tuple[tuple[str, str], ...], list[JobResult]] = {}
    for result in results:
        own = tuple((key, value) for key, value in result.job.overrides.items() if key != SEED)
        groups.setdefault(own, []).append(result)
    rows = [_configuration(dict(own), members, objective) for own, members in groups.items()]
    rows.sort(key=lambda row: (row.mean is None, not row.is_complete, objective.sort_key(row.mean), _skips(row)))
    return [Configuration(row.overrides, row.results, row.mean, row.deviation, place if _counts(row) else None)
            for place, row in enumerate(rows, 1)]  # fmt: skip


def _configuration(overrides: dict[str, str], members: list[JobResult], objective: Objective) -> Configuration:
    finished = [result for result in members if result.status == FINISHED]
    values = [value for result in finished if (value := objective.value(result.summary)) is not None]
    if not values:
        return Configuration(overrides, members)
    is_sound = all(map(math.isfinite, values))
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values) if len(values) > 1 and is_sound else None
    return Configuration(overrides, members, mean, deviation)


def _skips(row: Configuration) -> float:
    return sum(result.skipped_share or 0.0 for result in row.results)


def _counts(row: Configuration) -> bool:
    return row.mean is not None and not math.isnan(row.mean)
