"""The sweep directory: the only place that knows its file names; and the result of each job, read from the directory
alone, with the configurations in order of rank.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from mpt_cli.errors import BAD_DATA, OK, TERMINATED, DataError, naming, worst_code
from mpt_cli.files import JsonObject, read_file, write_json
from mpt_cli.jobs.local_processes import Ending
from mpt_cli.runs.directory import (
    LOCK_FILE,
    RunDirectory,
    default_parent,
    random_name,
    read_holder,
    read_json,
)
from mpt_cli.runs.resume import past_attempts
from mpt_cli.settings.search_path import expanded, shell_command
from mpt_cli.signals import SIGNAL_EXIT_CODES, signal_name
from mpt_cli.sweep.job_list import LOSS_KEYS, Job, Objective, Search, SweepPlan, choose_objective, plan_dict
from mpt_cli.sweep.paired import FEWEST_SEEDS, PairedDifference
from mpt_cli.telemetry.format import format_seconds
from mpt_cli.telemetry.record_types import as_number, field_problem, record_from
from mpt_cli.telemetry.sink_interface import File


@dataclass(frozen=True)
class SweepDirectory:
    """A directory made by `create` or found by `open`, and the paths in it (a contract: scripts read them)."""

    path: Path
    verb: ClassVar[str] = "sweep"  # that wrote it: names the file of its plan, and the folder above

    @classmethod
    def create(cls, path: str | None, recipe: str) -> Self:
        """Make a new directory: `path`, or sweeps/<recipe>/<time>-<id>. DataError when it holds anything already."""
        found = cls(expanded(path) if path else Path(f"{cls.verb}s") / default_parent(recipe).name / random_name())
        named = f"{cls.verb}_dir {found.path}"
        with naming(named, "Choose another."):
            found.path.mkdir(parents=True, exist_ok=True)
            taken = any(entry.name != LOCK_FILE for entry in found.path.iterdir())
        if taken:
            raise DataError(
                f"{named} already exists and is not empty. Nothing in it was changed; go on with it by "
                f"`{shell_command(cls.verb, '--resume', found.path)}`, or choose another."
            )
        return found

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return the directory of an earlier sweep; DataError when there is none or it isn't one."""
        found = cls(expanded(path))
        if not found.plan_json.is_file():
            raise DataError(f"{found.plan_json} does not exist. Give the folder that `mpt {cls.verb}` wrote.")
        return found

    def lock(self) -> AbstractContextManager[None]:
        """Hold the directory for this process; DataError when another sweep is writing in it."""
        return RunDirectory(self.path).lock(f"{self.verb}_dir")

    @property
    def plan_json(self) -> Path:
        return self.path / f"{self.verb}.json"

    results_json = File("results.json")
    report_html = File("report.html")
    study = File("study.journal")  # of a search: Optuna's

    def run(self, job: Job) -> RunDirectory:
        return RunDirectory(self.path / job.name)

    def log(self, job: Job) -> Path:
        """Return the path of what the job's process printed, attempt after attempt."""
        return self.path / "logs" / f"{job.name}.log"

    def ending_json(self, job: Job) -> Path:
        return self.path / "logs" / f"{job.name}.json"

    def set_aside(self, job: Job) -> None:
        """Move the run directory of a failed attempt to earlier/: the job starts fresh, and nothing is lost."""
        old = self.path / job.name
        if old.exists():
            parent = self.path / "earlier"
            parent.mkdir(exist_ok=True)
            count = sum(entry.name.startswith(f"{job.name}.") for entry in parent.iterdir())
            old.rename(parent / f"{job.name}.{count + 1}")

    def write_plan(self, plan: SweepPlan) -> None:
        (self.path / "logs").mkdir(exist_ok=True)
        content = {
            **plan.facts,
            "recipe": plan.recipe,  # name of the recipe, or several names
            "unlike": plan.unlike,  # keys of loss, data and length of training that differ between the jobs
            "varied": plan.varied,  # the varied keys, in their order
            **plan_dict(plan),
        }
        write_json(self.plan_json, content)

    def read_plan(self) -> SweepPlan:
        """Return the plan; DataError when it is damaged."""
        facts = read_json(self.plan_json, _PLAN)
        try:
            jobs = [_read_job(entry) for entry in facts.pop("jobs")]
            found = facts.pop("search")
            search = None if found is None else Search(**found)
            if search is not None and (wrong := field_problem(Search, found)):
                raise ValueError(wrong)
            return SweepPlan(facts.pop("varied"), jobs, facts.pop("recipe"), search, facts.pop("unlike", []), facts)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.plan_json} is damaged: {error}.") from error

    def write_ending(self, job: Job, ending: Ending) -> None:
        write_json(self.ending_json(job), asdict(ending))

    def read_ending(self, job: Job) -> Ending | None:
        """Return how the job ended; None before it ends, or if the file is damaged, when the job counts as not run."""
        try:
            ending = record_from(Ending, read_json(self.ending_json(job), Ending))
            return ending if math.isfinite(ending.seconds) else None
        except (DataError, TypeError):
            return None


_PLAN = {  # the types of what stands beside the jobs
    "objective": str | None,
    "command_line": list[str],
    "search": JsonObject | None,
    "varied": list[str],
    "recipe": str,
    "working_directory": str,
    "launcher": JsonObject | None,
}


def _read_job(entry: Any) -> Job:
    """Return the job; ValueError where it is damaged, or its runs and logs would lie outside of the directory."""
    wrong = field_problem(Job, entry) if isinstance(entry, dict) else "a job must be an object"
    if wrong is not None:
        raise ValueError(wrong)
    job = Job(**{name: value for name, value in entry.items() if name != "command"})
    if job.name in ("", ".", "..") or "/" in job.name or "\0" in job.name:
        raise ValueError(f"the name of a job must be that of a folder in it, not {job.name!r}")
    return job


FINISHED, FAILED, KILLED, TIMED_OUT = "finished", "failed", "killed", "timed out"
STOPPED_EARLY, JOB_INTERRUPTED, NOT_RUN = "stopped early", "interrupted", "not run"
RUNNING, WAITING = "running", "waiting"  # the latter of one that is watched
NOT_ENDED = (JOB_INTERRUPTED, NOT_RUN, RUNNING)
GOOD = (FINISHED, STOPPED_EARLY)
SEED = "seed"
_SIGNALLED = {code: number for number, code in SIGNAL_EXIT_CODES.items()}  # by the exit code of a job that has saved
_BUG_NOTE = "This is a bug in mpt"
_SPEAKER = re.compile(r"mpt (train|run|sweep): ")  # the job; in old logs also what stood in for one that ran elsewhere


@dataclass(frozen=True)
class JobResult:
    """A job and its result. `summary` is the summary.json of the last attempt, if any, `reason` says why it failed.

    `seconds` adds the time of the last process to the training of earlier attempts up to the checkpoint it continued
    from; `summary` has the same seconds, which an objective of this name ranks by. `exit_code` is the code that the job
    counts with (143 if a signal ended it).
    """

    job: Job
    run_dir: Path
    status: str
    exit_code: int | None = None
    reason: str = ""
    seconds: float | None = None
    summary: JsonObject = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.status in GOOD

    @property
    def seed(self) -> str:
        return self.job.overrides.get(SEED, "")

    def number(self, name: str) -> float | None:
        """Return a field of the summary as a number; None where there is none."""
        return as_number(self.summary.get(name))

    @property
    def skipped_share(self) -> float | None:
        seen = self.number("steps_seen")
        return (self.number("skipped_steps") or 0.0) / seen if seen else None


def read_job(sweep: SweepDirectory, job: Job) -> JobResult:
    """Return the state of one job. Never fails, whatever a killed process left behind."""
    ending, run = sweep.read_ending(job), sweep.run(job)
    if ending is None:
        holder = read_holder(run.lock_file)
        status = NOT_RUN if holder is None else JOB_INTERRUPTED if holder.is_gone else RUNNING
        return JobResult(job, run.path, status)
    summary = run.summary_for(ending.exit_code)
    status, exit_code, reason = _judge(ending, summary, sweep, job)
    attempts = past_attempts(run)  # the last one found the training of the others in the checkpoint
    seconds = ending.seconds + (float(attempts[-1].get("earlier_seconds", 0.0)) if attempts else 0.0)
    if summary:
        seconds = max(seconds, as_number(summary.get("seconds")) or 0.0)
        summary = {**summary, "seconds": seconds}
    return JobResult(job, run.path, status, exit_code, reason, seconds, summary)


def _judge(ending: Ending, summary: JsonObject, sweep: SweepDirectory, job: Job) -> tuple[str, int | None, str]:
    code, after = ending.exit_code, format_seconds(ending.seconds)
    if code == OK and summary:
        return FINISHED, OK, ""
    if ending.cause == "pruner":
        return STOPPED_EARLY, OK, "its objective was behind that of others at the same epoch (--pruner)"
    if ending.cause == "interrupt":
        return JOB_INTERRUPTED, TERMINATED, "it was interrupted"
    if ending.cause == "timeout":
        return TIMED_OUT, TERMINATED, f"it was ended after {after} (--timeout)"
    if code is None:
        return FAILED, BAD_DATA, ending.note
    if code < 0 or code in _SIGNALLED:
        return KILLED, TERMINATED, ending.note or f"{signal_name(_SIGNALLED.get(code, -code))} ended it after {after}"
    said = last_sentence(sweep.log(job)) or f"exit code {code}"
    if code == OK:
        return FAILED, BAD_DATA, f"it left no summary.json: {said}"
    return FAILED, code, summary.get("explanation") or said


def last_sentence(log: Path) -> str:
    """Return the last message of mpt in the log, else its last line; empty if the log is."""
    try:
        lines = [line for line in read_file(log, errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    said = [_SPEAKER.sub("", line) for line in lines if _SPEAKER.match(line)]
    lines = [line for line in lines if not line.startswith(_BUG_NOTE)]
    return (said or lines or [""])[-1].strip()


def sweep_exit_code(results: Iterable[JobResult]) -> int:
    """Return the exit code of the sweep; a job that was killed, timed out or was not run counts as 143."""
    bad = (result.exit_code for result in results if not result.is_good)
    return worst_code(TERMINATED if code is None else code for code in bad)


@dataclass(frozen=True)
class Configuration:
    """The jobs of one setting of the varied keys. `rank` is None where nothing finished."""

    overrides: dict[str, str]
    results: list[JobResult]
    objective: Objective
    rank: int | None = None  # that of the first of those with the same mean
    first: "Configuration | None" = None  # of those with a rank; None for itself
    comparisons: int = 1  # how many have enough seeds to be told from the first

    @cached_property
    def values(self) -> list[tuple[str, float]]:
        """Return the seed and the objective of each finished job that reports it."""
        found = [(result.seed, self.objective.value(result.summary)) for result in self.finished]
        return [(seed, value) for seed, value in found if value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(value for _, value in self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Return the sample deviation (n - 1); None for fewer than two values, or if one is not finite."""
        values = [value for _, value in self.values]
        return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None

    @property
    def sort_key(self) -> tuple[bool, bool, float]:
        """Return a key that sorts the best first. Means that differ only by float32 rounding are equal."""
        mean = None if self.mean is None else float(f"{self.mean:.6g}")
        return mean is None, not self.is_complete, self.objective.sort_key(mean)

    @cached_property
    def difference(self) -> PairedDifference | None:
        """Return the difference to the first configuration, over the seeds of both; None if they share no seed."""
        first, own = dict(self.first.values if self.first else ()), dict(self.values)
        pairs = [(first[seed], own[seed]) for seed in first if seed in own]
        sound = [pair for pair in pairs if all(map(math.isfinite, pair))]
        return PairedDifference(sound, self.comparisons) if sound else None

    @cached_property
    def is_behind(self) -> bool:
        """Return whether the seeds show that it is worse than the first; a value that is not finite always does."""
        found = self.difference
        is_shown = found is not None and found.is_shown and (found.mean > 0) == self.objective.falls
        return is_shown or not all(math.isfinite(value) for _, value in self.values)

    def figures(self, value: Callable[[JobResult], float | None]) -> list[float]:
        """Return the values of the jobs that finished, else of all."""
        return [found for result in self.finished or self.results if (found := value(result)) is not None]

    @property
    def finished(self) -> list[JobResult]:
        return [result for result in self.results if result.status == FINISHED]

    @property
    def is_complete(self) -> bool:
        return len(self.finished) == len(self.results)


@dataclass(frozen=True)
class JobResults:
    """What became of all jobs, as it stands in a directory."""

    directory: SweepDirectory
    plan: SweepPlan
    objective: Objective
    results: list[JobResult]


@dataclass(frozen=True)
class SweepResults(JobResults):
    """A whole sweep; `configurations` are in order of their rank."""

    configurations: list[Configuration]

    @property
    def best(self) -> JobResult | None:
        """Return the best job of the best configuration."""
        first = next((configuration for configuration in self.configurations if configuration.rank == 1), None)
        if first is None:
            return None
        return min(first.finished, key=lambda result: self.objective.sort_key(self.objective.value(result.summary)))

    @property
    def ranked(self) -> list[Configuration]:
        return [row for row in self.configurations if row.rank is not None]

    @property
    def rivals(self) -> list[Configuration]:
        """Return the configurations that the first is compared with, at the end none of which a job failed."""
        return [row for row in self.ranked[1:] if row.is_complete or not self.is_complete]

    @property
    def not_told_apart(self) -> list[Configuration]:
        """Return the configurations that the seeds do not show to be worse than the first."""
        return [row for row in self.rivals if not row.is_behind]

    @property
    def best_is_shown(self) -> bool:
        """Return whether the seeds show the first to be the best; False if there is no other."""
        return bool(self.rivals) and not (self.mixes_losses or self.not_told_apart)

    @property
    def mixes_losses(self) -> bool:
        """Return whether the objective is a loss and the jobs have different ones."""
        return "loss" in self.objective.name and any(key.startswith(LOSS_KEYS) for key in self.plan.unlike)

    @property
    def keys(self) -> list[str]:
        """Return the varied keys, without the seed that several runs of one row share."""
        return [key for key in self.plan.varied if key != SEED]

    @property
    def is_complete(self) -> bool:
        return not self.plan.missing and all(result.status not in (NOT_RUN, RUNNING) for result in self.results)


def read_jobs(sweep: SweepDirectory, objective: str | None) -> JobResults:
    """Return the results of all jobs from the directory alone, to be ranked by `objective` or that of the sweep;
    ConfigError for an objective that no job reports.
    """
    plan = sweep.read_plan()
    results = [read_job(sweep, job) for job in plan.jobs]
    finished = [result.summary for result in results if result.status == FINISHED]
    return JobResults(sweep, plan, choose_objective(objective or plan.facts["objective"], finished), results)


def read_results(sweep: SweepDirectory, objective: str | None = None) -> SweepResults:
    """Return all results, ranked."""
    found = read_jobs(sweep, objective)
    return SweepResults(**vars(found), configurations=rank(found.results, found.objective))


def rank(results: Sequence[JobResult], objective: Objective) -> list[Configuration]:
    """Return the configurations, best first. Equal means share a rank, as 1, 2, 2, 4, ordered by fewer skips.

    A configuration with failed jobs comes after those without, because its mean is that of the survivors.
    """
    groups: dict[tuple[tuple[str, str], ...], list[JobResult]] = {}
    for result in results:
        groups.setdefault(tuple(result.job.without_seed.items()), []).append(result)
    rows = [Configuration(dict(own), members, objective) for own, members in groups.items()]
    rows.sort(key=lambda row: (*row.sort_key, sum(result.skipped_share or 0.0 for result in row.results)))
    first_ranks = dict[tuple[bool, bool, float], int]()
    found = [
        row
        if row.mean is None or math.isnan(row.mean)
        else replace(row, rank=first_ranks.setdefault(row.sort_key, number))
        for number, row in enumerate(rows, 1)
    ]
    first = next((row for row in found if row.rank), None)
    found = [replace(row, first=first) if row.rank and row is not first else row for row in found]
    compared = len([row for row in found if row.difference and row.difference.seeds >= FEWEST_SEEDS])
    return [replace(row, comparisons=compared) for row in found]
