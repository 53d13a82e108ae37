"""The story of a sweep on one screen: words in, processes run, results on disk."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpt_cli.errors import CODES_OF_SIGNALS, ConfigError, Problem
from mpt_cli.runs.machine import visible_gpus
from mpt_cli.settings.override import override_word
from mpt_cli.sweep.capacity import core_shares, fitting_workers, thread_environment, usable_cores
from mpt_cli.sweep.child import Work
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.files import write_results
from mpt_cli.sweep.launchers.launcher import Launcher
from mpt_cli.sweep.median import MedianRule
from mpt_cli.sweep.objective import choose_objective
from mpt_cli.sweep.plan import Job, Plan, duplicate_lines, job_count, make_plan
from mpt_cli.sweep.progress import Progress
from mpt_cli.sweep.queue import GRACE_SECONDS, Limits, Queue, Watch
from mpt_cli.sweep.ranking import SweepResults, check_reported, read_results
from mpt_cli.sweep.results import FAILED, GOOD, JobResult, gravest_code, read_job
from mpt_cli.sweep.screen import Screen

Launch = Callable[[Job, Path], Sequence[str]]


def train_command(job: Job, run_dir: Path) -> list[str]:
    """What runs a job. `resume=auto` begins in a directory that is not there and goes on in one that is.

    -P keeps files of the working directory from standing in for modules of Python, as the `mpt` script does.
    """
    place = override_word("run_dir", str(run_dir))
    return [sys.executable, "-P", "-m", "mpt_cli", "train", *job.words, place, "resume=auto", "--json"]


@dataclass(frozen=True)
class Options:
    """How a sweep is run; `launch` gives the command of a job's process, `launcher` the place where it runs."""

    workers: int | None = None
    timeout_seconds: float | None = None
    objective: str | None = None
    stop_behind_median: bool = False
    grace_seconds: float = GRACE_SECONDS
    launch: Launch = field(default=train_command)
    launcher: Launcher | None = None

    @property
    def is_here(self) -> bool:
        """Whether the jobs run on this machine."""
        return self.launcher is None or self.launcher.is_here


def split_words(words: Sequence[str], key: str = "sweep_dir") -> tuple[list[str], str | None]:
    """The words of the jobs, and the place that `key` among them gives."""
    places = [word.removeprefix(f"{key}=").strip("'\"") for word in words if word.startswith(f"{key}=")]
    if len(places) > 1:
        raise ConfigError(Problem(key, "must be given once.", places[-1]))
    return [word for word in words if not word.startswith(f"{key}=")], places[0] if places else None


def start_sweep(words: Sequence[str], options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """A new sweep: all configurations are checked before the first job starts. Returns results and exit code."""
    own, place = split_words(words)
    plan = make_plan(own, screen.say, options.is_here, options.objective)
    sweep = SweepDirectory.create(place, plan.recipe)
    with sweep.lock():
        plan = begin(sweep, plan, plan_facts(["mpt", "sweep", *words], options), options)
        return _run(sweep, plan, plan.jobs, options, screen)


def resume_sweep(path: str, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """Runs what is missing or not good in an earlier sweep. A failed job starts afresh, a broken-off one goes on."""
    sweep = SweepDirectory.open(path)
    with sweep.lock():
        plan, _ = sweep.read_plan()
        check_reported(sweep, options.objective)
        return _run(sweep, plan, jobs_left(sweep, plan), options, screen)


def begin(sweep: SweepDirectory, plan: Plan, facts: dict[str, Any], options: Options) -> Plan:
    """Write the plan, with each job's share of the cores in it; returns it so."""
    shared = share_of_cores(limits_for(plan.jobs, options).workers, options)
    plan = replace(plan, jobs=[replace(job, environment=shared) for job in plan.jobs])
    sweep.write_plan(plan, facts)
    return plan


def jobs_left(sweep: SweepDirectory, plan: Plan) -> list[Job]:
    """What is not good yet; what a failed job left behind is set aside."""
    left = []
    for result in (read_job(sweep, job) for job in plan.jobs):
        if result.status not in GOOD:
            left.append(result.job)
        if result.status == FAILED:
            sweep.set_aside(result.job)
    return left


def _run(
    sweep: SweepDirectory, plan: Plan, jobs: Sequence[Job], options: Options, screen: Screen
) -> tuple[SweepResults, int]:
    for line in duplicate_lines(plan):
        screen.say(line)
    stopped_by = run_jobs(sweep, jobs, options, screen, median_watches(sweep, plan, options))
    found = finish(sweep, options)
    return found, exit_code(stopped_by, found.results)


def finish(sweep: SweepDirectory, options: Options) -> SweepResults:
    """Write the results as they stand: they are there whatever the objective was to be."""
    found = read_results(sweep, options.objective, is_final=True)
    write_results(found)
    return found


def median_watches(sweep: SweepDirectory, plan: Plan, options: Options) -> list[Watch]:
    if not options.stop_behind_median:
        return []
    objective = options.objective or sweep.read_plan()[1]["objective"]
    return [MedianRule(sweep, plan.jobs, choose_objective(objective, []) if objective else None)]


def run_jobs(
    sweep: SweepDirectory, jobs: Sequence[Job], options: Options, screen: Screen, watches: Sequence[Watch] = ()
) -> signal.Signals | None:
    """Run these jobs of the sweep, each as a process of its own; returns the signal that ended it before its time."""
    limits = limits_for(jobs, options)
    screen.say(_opening(sweep, jobs, limits, options))
    if not jobs:
        return None
    with session(options, limits.workers) as opened:
        cwd = Path(sweep.read_plan()[1]["working_directory"])
        work = [make_work(sweep, job, opened, cwd) for job in jobs]
        return run_work(sweep, work, Progress(screen, sweep, len(jobs), limits.workers), limits, watches)


def run_work(
    sweep: SweepDirectory, work: Iterable[Work], progress: Progress, limits: Limits, watches: Sequence[Watch]
) -> signal.Signals | None:
    """Run it to its end, each ending on record before anyone else hears of it."""
    with progress:
        queue = Queue(limits, lambda done, ending: sweep.write_ending(done.job, ending), [progress, *watches])
        return queue.run(work)


@contextmanager
def session(options: Options, workers: int) -> Iterator[Options]:
    """The options with the launcher ready to take jobs."""
    if options.launcher is None:
        yield options
        return
    with options.launcher.session(workers) as launcher:
        yield replace(options, launcher=launcher)


def exit_code(stopped_by: signal.Signals | None, results: Sequence[JobResult]) -> int:
    """130 or 143 where a signal ended it, else what its jobs came to."""
    return CODES_OF_SIGNALS[stopped_by] if stopped_by is not None else gravest_code(list(results))


def limits_for(jobs: Sequence[Job], options: Options, most: int | None = None) -> Limits:
    """What runs at a time; `most` is how many jobs there will be where not these are all."""
    launcher, count = options.launcher, most or len(jobs)
    has_pool = launcher is None or not launcher.gives_gpus
    gpus = visible_gpus(os.environ) if has_pool and any(job.gpus for job in jobs) else []
    fitting = fitting_workers(count, len(gpus)) if launcher is None or launcher.is_here else launcher.workers(count)
    workers = max(1, min(options.workers or fitting, count))
    cores = core_shares(workers) if launcher is None else []
    return Limits(workers, gpus, cores, options.timeout_seconds, options.grace_seconds)


def share_of_cores(workers: int, options: Options) -> dict[str, str]:
    if options.launcher is not None:
        return options.launcher.environment(workers, os.environ)
    return thread_environment(workers, os.environ)


def _opening(sweep: SweepDirectory, jobs: Sequence[Job], limits: Limits, options: Options) -> str:
    """What is about to happen, and on how much of the machine."""
    if not jobs:
        return f"{sweep.path}: nothing is left to run"
    return f"{job_count(jobs)}, {share_words(jobs[0], limits, options)}, in {sweep.path}"


def share_words(job: Job, limits: Limits, options: Options) -> str:
    """How many at a time, on how much of the machine."""
    threads = next(iter(job.environment.values()), None)
    share = f", {threads}{f' of {usable_cores()}' if options.is_here else ''} cores each" if threads else ""
    gpus = f", {len(limits.gpus)} GPU{'s' if len(limits.gpus) > 1 else ''}" if limits.gpus else ""
    where = f" {options.launcher.words}" if options.launcher is not None else ""
    return f"{limits.workers} at a time{where}{share}{gpus}"


def make_work(sweep: SweepDirectory, job: Job, options: Options, cwd: Path) -> Work:
    """`cwd` is the directory that the sweep was started in."""
    earlier = sweep.read_ending(job)
    sweep.ending_json(job).unlink(missing_ok=True)  # from here on the job counts as not run
    path = sweep.path if cwd == Path.cwd() else sweep.path.resolve()
    attempt = earlier.attempt + 1 if earlier else 1
    work = Work(job, options.launch(job, path / job.name), sweep.log(job), cwd, attempt=attempt)
    if options.launcher is None:
        return work
    command = options.launcher.command(work.command, sweep, job)
    return replace(work, command=command, began=options.launcher.began(sweep, job))


def plan_facts(command_line: Sequence[str], options: Options) -> dict[str, Any]:
    """What stands beside the plan: how and where it was started."""
    return {
        "command_line": [*command_line], "working_directory": str(Path.cwd()),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"), "objective": options.objective,
        "launcher": None if options.launcher is None else options.launcher.facts,
    }  # fmt: skip
