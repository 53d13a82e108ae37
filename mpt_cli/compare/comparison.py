"""The plan of a comparison: its jobs, round by round, its configurations and its directory.

The results, read from that directory alone: each configuration beside its baseline, with the rules for when two
results are equal and when a step is faster.
"""

import math
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

from mpt_cli.errors import DataError, Problem, config_error, raise_problems
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.directory import FINISHED, SEED, Configuration, JobResults, SweepDirectory, read_jobs
from mpt_cli.sweep.job_list import Job, Objective, SweepPlan, job_name, make_plan
from mpt_cli.sweep.overrides import Grid, load_each, override_key, read_grid, varied_values
from mpt_cli.sweep.paired import PairedDifference
from mpt_cli.telemetry.record_types import as_number, field_problem, record_from, required_fields


class CompareDirectory(SweepDirectory):
    """The directory of a comparison: its plan is compare.json, and it has the runs of its jobs, as a sweep has."""

    verb: ClassVar[str] = "compare"


POLICIES = "policy=float32,mixed_float16,mixed_bfloat16"  # what is compared if no override says so
# Only one value each: with two, the runs would not be the same training any more.
_SINGLE_VALUE_KEYS = ("conf", "data", "model", "optimizer")


@dataclass(frozen=True)
class Setup:
    """One of the compared configurations, with the settings that the table and the verdict need."""

    overrides: dict[str, str]
    policy: str
    batch_size: int


@dataclass(frozen=True)
class Script:
    """A script with its arguments, its name, and the function that reads and checks the overrides before it."""

    words: list[str]
    title: str
    settings_of: Callable[[list[str]], Settings]


def make_comparison(
    words: Sequence[str], seeds: int | None, script: Script | None = None, objective: str | None = None
) -> tuple[SweepPlan, list[Setup]]:
    """Return the jobs of a recipe or a script in rounds: one round for each seed, in which every configuration runs
    once. With several seeds, `set_random_seed` of a script uses the seed of the round.

    Every other round runs backwards, so that a machine that slows down favours no configuration. ConfigError with all
    problems.
    """
    if not any(word.startswith("policy=") for word in words) and not {*read_grid(words).varied} - {SEED}:
        words = [*words, POLICIES]
    grid = read_grid(words)
    _check(grid, seeds)
    settings_of = load_settings if script is None else script.settings_of
    settings = load_each(grid.combinations)[0] if script is None else settings_of([*next(grid.combinations)])
    if script is None or (seeds or 1) > 1:
        words = _with_seeds(
            words, grid, secrets.randbelow(2**31) if settings.seed is None else settings.seed, seeds or 1
        )
    plan = make_plan(words, objective=objective) if script is None else _script_plan(words, script)
    setups = []
    for job in {str(job.without_seed): job for job in plan.jobs}.values():
        settings = settings_of(job.words)
        setups.append(Setup(job.without_seed, settings.policy.name, 1 if script else settings.trainer.batch_size))
    if len(setups) < 2:
        raise config_error("policy", "must have at least two values to compare.", None, f"As in {POLICIES}.")
    rounds = [list(members) for _, members in groupby(plan.jobs, lambda job: job.overrides.get(SEED))]
    jobs = [job for index, members in enumerate(rounds) for job in (members[::-1] if index % 2 else members)]
    if script is not None:
        jobs = [replace(job, words=[*job.words, *script.words], verb="run") for job in jobs]
    return replace(plan, jobs=jobs), setups


def _script_plan(words: Sequence[str], script: Script) -> SweepPlan:
    grid = read_grid(words)
    jobs = []
    for number, combination in enumerate(grid.combinations, 1):
        overrides = varied_values(combination, grid.varied)
        jobs.append(Job(number, job_name(number, overrides), overrides, [*combination]))
    return SweepPlan(grid.varied, jobs, script.title)


def _check(grid: Grid, seeds: int | None) -> None:
    rule, remedy = "must have one value: what is compared must be the same training.", "`mpt sweep` ranks trainings."
    several = [key for key in grid.varied if key.split(".")[0] in _SINGLE_VALUE_KEYS]
    problems = [*grid.problems, *(Problem(key, rule, None, remedy) for key in several)]
    if seeds is not None and seeds < 1:
        problems.append(Problem("--seeds", "must be >= 1.", seeds))
    if seeds is not None and SEED in grid.varied:
        problems.append(Problem("--seeds", "must be left out where seed= has several values.", seeds))
    raise_problems(problems)


def _with_seeds(words: Sequence[str], grid: Grid, first: int, count: int) -> list[str]:
    """Return the overrides with the same seeds for all configurations. The seeds come first and so vary slowest: each
    seed is a round.
    """
    if SEED not in grid.varied:
        seed = f"{SEED}={','.join(str(first + index) for index in range(count))}"
        words = [*(word for word in words if override_key(word) != SEED), seed]
    return sorted(words, key=lambda word: override_key(word) == SEED or 2 * (override_key(word) in grid.varied))


SHARES = ("acc", "auc", "precision", "recall", "f1", "iou", "dice", "r2")  # metrics of which 1 is the best
SHARE_TOLERANCE = 0.01  # one percentage point
RELATIVE_TOLERANCE = 0.05  # of the baseline's mean, for losses and errors
SAME, EQUAL, WORSE, BETTER, UNCLEAR, UNKNOWN = "the same", "equal", "worse", "better", "unclear", "unknown"


@dataclass(frozen=True)
class Quality:
    """The quality of a configuration: `difference` from the baseline is the mean over the seeds, `kind` one of the
    words above, `interval` the 95 % interval, or None if the spread is unknown.
    """

    kind: str
    difference: float | None = None
    margin: float = math.nan
    seeds: int = 0
    interval: tuple[float, float] | None = None


def compare_quality(
    objective: Objective, pairs: Sequence[tuple[float, float]], tolerance: float | None = None
) -> Quality:
    """Judge the quality by the (baseline, other) values of each seed.

    The same: no seed of two or more differs. Equal: the mean difference is shown to be within the tolerance. Better or
    worse: the mean difference is shown to be other than 0 and not to be within the tolerance. Otherwise, and with one
    seed, unclear. "Shown" has an error rate of at most 5 % (`mpt_cli.sweep.paired`). A value that is not finite is
    worse than any finite one.

    >>> compare_quality(Objective("val_accuracy", falls=False), [(0.98, 0.979), (0.97, 0.971), (0.98, 0.980)]).kind
    'equal'
    >>> compare_quality(Objective("val_loss", falls=True), [(0.10, 0.13), (0.11, 0.14), (0.10, 0.131)]).kind
    'worse'
    >>> compare_quality(Objective("val_loss", falls=True), [(0.10, 0.14)]).kind
    'unclear'
    """
    bases = [base for base, _ in pairs]
    if not pairs or not all(map(math.isfinite, bases)):
        return Quality(UNKNOWN)
    margin = default_tolerance(objective, bases) if tolerance is None else tolerance
    found = PairedDifference(pairs)
    if not all(math.isfinite(other) for _, other in pairs):
        return Quality(WORSE, found.mean, margin, found.seeds)
    if found.is_same:
        kind = SAME
    elif found.is_within(margin):
        kind = EQUAL
    elif not found.is_shown:
        kind = UNCLEAR
    else:
        kind = WORSE if (found.mean > 0) == objective.falls else BETTER
    return Quality(kind, found.mean, margin, found.seeds, found.shown_interval)


def default_tolerance(objective: Objective, bases: Sequence[float]) -> float:
    """Return one percentage point for a share, 5 % of the mean for anything else.

    Of a mean that is negative or near 0, such as that of a log-likelihood, a percentage means nothing: if it is below
    two standard deviations of the seeds, return this deviation. With one seed it is not known: nan.

    >>> loss, r2 = Objective("val_loss", falls=True), Objective("val_r2_score", falls=False)
    >>> default_tolerance(loss, [2.0, 2.0]), default_tolerance(loss, [-9.0, -10.0, -8.0]), default_tolerance(r2, [-5.0])
    (0.1, 1.0, 0.01)
    """
    if not objective.falls and any(word in objective.name.lower() for word in SHARES):
        return SHARE_TOLERANCE
    mean, deviation = statistics.fmean(bases), statistics.stdev(bases) if len(bases) > 1 else math.nan
    return RELATIVE_TOLERANCE * mean if mean > 2 * deviation else deviation


SMALLEST_GAIN = 0.05  # a smaller difference in speed counts as none


def compare_speed(seconds: Sequence[tuple[float, float]]) -> Quality:
    """Judge the speed as `compare_quality` judges quality, from the logarithms of the seconds per step of the baseline
    and the other in each round: their difference is the logarithm of the speed-up.

    >>> compare_speed([(2.0, 1.0), (2.2, 1.0), (2.1, 1.0)]).kind, compare_speed([(2.0, 1.0)]).kind
    ('better', 'unclear')
    """
    pairs = [(math.log(base), math.log(other)) for base, other in seconds]
    return compare_quality(Objective("seconds", falls=True), pairs, math.log1p(SMALLEST_GAIN))


_PRECISION_KEYS = ("policy", "loss_scale")


@dataclass(frozen=True, kw_only=True)
class Entry(Configuration):
    """One of the compared configurations. `label` names the compared keys, `seconds` the seconds per step by seed."""

    policy: str
    label: str
    seconds: dict[str, float]
    baseline: "Entry | None" = None  # None for a baseline itself
    quality: Quality = Quality(UNKNOWN)
    speed: Quality = Quality(UNKNOWN)

    @property
    def ignores_seed(self) -> bool:
        """Return whether runs with several seeds have the same metrics, as if a script sets its own seed."""
        return len({str(job.summary.get("metrics")) for job in self.finished}) == 1 < len(self.finished)

    @property
    def factors(self) -> list[float]:
        """Return the speed-up over the baseline and the ends of its interval, each if it is known.

        None where some runs measured no speed: those are the fastest, which end before it can be measured.
        """
        difference, interval = self.speed.difference, self.speed.interval
        if difference is None or self.baseline is None:
            return []
        if any(len(each.seconds) < len(each.finished) for each in (self, self.baseline)):
            return []
        return [math.exp(-value) for value in (difference, *reversed(interval or ()))]

    @property
    def step_seconds(self) -> float | None:
        """Return the geometric mean over the seeds: with all of them, the speed-up is the ratio of two such means."""
        return statistics.geometric_mean(self.seconds.values()) if self.seconds else None


@dataclass(frozen=True)
class Comparison(JobResults):
    """A whole comparison."""

    entries: list[Entry]

    @property
    def seeds(self) -> int:
        return max(len(entry.results) for entry in self.entries)

    @property
    def workers(self) -> int:
        return int(self.plan.facts["workers"])

    @property
    def has_best(self) -> bool:
        """Return whether the objective is the last value of a metric, of which runs also report the best."""
        return any(self.objective.name in job.summary.get("best_metrics", ()) for job in self.results)

    @property
    def compared(self) -> list[Entry]:
        """Return all entries but the baselines."""
        return [entry for entry in self.entries if entry.baseline is not None]


_FACTS = {"setups": list[dict[str, Any]], "tolerance": float | None, "workers": int}  # further keys of compare.json


def read_comparison(directory: CompareDirectory, objective: str | None = None) -> Comparison:
    """Read everything from the directory; DataError where its plan is damaged, ConfigError for an unknown objective."""
    found = read_jobs(directory, objective)
    facts, required = found.plan.facts, required_fields(Setup)
    wrong = field_problem(_FACTS, facts, [*_FACTS]) or next(
        filter(None, (field_problem(Setup, entry, required) for entry in facts["setups"])), None
    )
    setups = [] if wrong else [record_from(Setup, entry) for entry in facts["setups"]]
    entries = [_entry(setup, found) for setup in setups]
    if wrong is not None or not entries or not all(entry.results for entry in entries):
        raise DataError(f"{directory.plan_json} is damaged: {wrong or 'its setups do not fit its jobs'}.")
    tolerance = as_number(facts["tolerance"])
    compared = [_with_baseline(entry, entries, found.objective, tolerance) for entry in entries]
    return Comparison(**vars(found), entries=compared)


def _entry(setup: Setup, found: JobResults) -> Entry:
    own = [result for result in found.results if result.job.without_seed == setup.overrides]
    label = ", ".join(
        value if key == "policy" else f"{key.removesuffix('.name')} {value}" for key, value in setup.overrides.items()
    )
    seconds = {
        job.seed: setup.batch_size / rate
        for job in own
        if job.status == FINISHED
        and found.plan.facts["workers"] == 1  # else jobs slow each other
        and (rate := job.number("examples_per_second") or job.number("steps_per_second"))
        and 0 < setup.batch_size / rate < math.inf  # a damaged file has anything
    }
    return Entry(
        setup.overrides, own, found.objective, policy=setup.policy, label=label or setup.policy, seconds=seconds
    )


def _with_baseline(entry: Entry, entries: list[Entry], objective: Objective, tolerance: float | None) -> Entry:
    """Return the entry compared with its baseline; a baseline itself is returned as it is.

    The baseline is the float32 one among the entries that differ only in precision, else the first of these.
    """
    group = [other for other in entries if _other_overrides(other) == _other_overrides(entry)]
    baseline = next((other for other in group if other.policy == "float32"), group[0])
    if baseline is entry:
        return entry
    theirs, own = dict(baseline.values[: 1 if baseline.ignores_seed else None]), dict(entry.values)
    pairs = [(theirs[seed], own[seed]) for seed in own if seed in theirs]
    seconds = [(baseline.seconds[seed], mine) for seed, mine in entry.seconds.items() if seed in baseline.seconds]
    return replace(
        entry,
        baseline=baseline,
        speed=compare_speed(seconds),
        quality=compare_quality(objective, pairs, tolerance),
    )


def _other_overrides(entry: Entry) -> dict[str, str]:
    """Return the overrides that vary beside the precision: each backend, for example, has a separate baseline."""
    return {key: value for key, value in entry.overrides.items() if key.partition(".")[0] not in _PRECISION_KEYS}
