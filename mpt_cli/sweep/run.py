"""The story of a sweep on one screen: overrides in, processes run, results on disk."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt_cli.errors import SIGNAL_EXIT_CODES, ConfigError, Problem
from mpt_cli.jobs.capacity import core_shares, fitting_workers, thread_environment, usable_cores
from mpt_cli.jobs.launchers import Launcher
from mpt_cli.jobs.queue import GRACE_SECONDS, Command, Limits, Observer, Queue
from mpt_cli.runs.machine import visible_gpus
from mpt_cli.settings.overrides import format_override
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.median_stopping import MedianStopping
from mpt_cli.sweep.plan import (
    Job,
    SweepPlan,
    check_objective,
    check_sources,
    choose_objective,
    duplicate_lines,
    job_count,
    make_plan,
    wanted_gpus,
)
from mpt_cli.sweep.progress import Screen, SweepProgress
from mpt_cli.sweep.report import write_results
from mpt_cli.sweep.results import (
    FAILED,
    GOOD,
    JobResult,
    SweepResults,
    check_reported,
    gravest_code,
    read_job,
    read_results,
)
from mpt_cli.sweep.samplers import MOST_ASKED, SearchSettings, check_optuna
from mpt_cli.sweep.search_space import check_space, read_space

if TYPE_CHECKING:
    from mpt_cli.sweep.optuna_sampler import OptunaTrials

Launch = Callable[[Job, Path], Sequence[str]]


def train_command(job: Job, run_dir: Path) -> list[str]:
    """What runs a job. `resume=auto` begins in a directory that is not there and goes on in one that is.

    -P keeps files of the working directory from standing in for modules of Python, as the `mpt` script does.
    """
    place = format_override("run_dir", str(run_dir))
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


def split_overrides(words: Sequence[str], key: str = "sweep_dir") -> tuple[list[str], str | None]:
    """The words of the jobs, and the place that `key` among them gives."""
    places = [word.removeprefix(f"{key}=").strip("'\"") for word in words if word.startswith(f"{key}=")]
    if len(places) > 1:
        raise ConfigError(Problem(key, "must be given once.", places[-1]))
    return [word for word in words if not word.startswith(f"{key}=")], places[0] if places else None


def start_sweep(words: Sequence[str], options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """A new sweep: all configurations are checked before the first job starts. Returns results and exit code."""
    own, place = split_overrides(words)
    plan = make_plan(own, screen.say, options.is_here, options.objective)
    sweep = SweepDirectory.create(place, plan.recipe)
    with sweep.lock():
        plan = begin(sweep, plan, plan_facts(["mpt", "sweep", *words], options), options)
        return _run_grid(sweep, plan, plan.jobs, options, screen)


def resume_sweep(path: str, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """Runs what is missing or not good in an earlier sweep. A failed job starts afresh, a broken-off one goes on."""
    sweep = SweepDirectory.open(path)
    with sweep.lock():
        plan, _ = sweep.read_plan()
        check_reported(sweep, options.objective)
        return _run_grid(sweep, plan, jobs_left(sweep, plan), options, screen)


def begin(sweep: SweepDirectory, plan: SweepPlan, facts: dict[str, Any], options: Options) -> SweepPlan:
    """Write the plan, with each job's share of the cores in it; returns it so."""
    shared = share_of_cores(limits_for(plan.jobs, options).workers, options)
    plan = replace(plan, jobs=[replace(job, environment=shared) for job in plan.jobs])
    sweep.write_plan(plan, facts)
    return plan


def jobs_left(sweep: SweepDirectory, plan: SweepPlan) -> list[Job]:
    """What is not good yet; what a failed job left behind is set aside."""
    left = []
    for result in (read_job(sweep, job) for job in plan.jobs):
        if result.status not in GOOD:
            left.append(result.job)
        if result.status == FAILED:
            sweep.set_aside(result.job)
    return left


def _run_grid(
    sweep: SweepDirectory, plan: SweepPlan, jobs: Sequence[Job], options: Options, screen: Screen
) -> tuple[SweepResults, int]:
    for line in duplicate_lines(plan):
        screen.say(line)
    stopped_by = run_jobs(sweep, jobs, options, screen, median_observers(sweep, plan, options))
    found = finish(sweep, options)
    return found, exit_code(stopped_by, found.results)


def finish(sweep: SweepDirectory, options: Options) -> SweepResults:
    """Write the results as they stand: they are there whatever the objective was to be."""
    found = read_results(sweep, options.objective, is_final=True)
    write_results(found)
    return found


def median_observers(sweep: SweepDirectory, plan: SweepPlan, options: Options) -> list[Observer]:
    if not options.stop_behind_median:
        return []
    objective = options.objective or sweep.read_plan()[1]["objective"]
    return [MedianStopping(sweep, plan.jobs, choose_objective(objective, []) if objective else None)]


def run_jobs(
    sweep: SweepDirectory, jobs: Sequence[Job], options: Options, screen: Screen, watches: Sequence[Observer] = ()
) -> signal.Signals | None:
    """Run these jobs of the sweep, each as a process of its own; returns the signal that ended it before its time."""
    limits = limits_for(jobs, options)
    screen.say(_opening(sweep, jobs, limits, options))
    if not jobs:
        return None
    with launcher_session(options, limits.workers) as opened:
        cwd = Path(sweep.read_plan()[1]["working_directory"])
        work = [make_command(sweep, job, opened, cwd) for job in jobs]
        return run_queue(sweep, work, SweepProgress(screen, sweep, len(jobs), limits.workers), limits, watches)


def run_queue(
    sweep: SweepDirectory, work: Iterable[Command], progress: SweepProgress, limits: Limits, watches: Sequence[Observer]
) -> signal.Signals | None:
    """Run it to its end, each ending on record before anyone else hears of it."""
    with progress:
        queue = Queue(limits, lambda done, ending: sweep.write_ending(done.job, ending), [progress, *watches])
        return queue.run(work)


@contextmanager
def launcher_session(options: Options, workers: int) -> Iterator[Options]:
    """The options with the launcher ready to take jobs."""
    if options.launcher is None:
        yield options
        return
    with options.launcher.session(workers) as launcher:
        yield replace(options, launcher=launcher)


def exit_code(stopped_by: signal.Signals | None, results: Sequence[JobResult]) -> int:
    """130 or 143 where a signal ended it, else what its jobs came to."""
    return SIGNAL_EXIT_CODES[stopped_by] if stopped_by is not None else gravest_code(list(results))


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
    return f"{job_count(jobs)}, {format_machine_share(jobs[0], limits, options)}, in {sweep.path}"


def format_machine_share(job: Job, limits: Limits, options: Options) -> str:
    """How many at a time, on how much of the machine."""
    threads = next(iter(job.environment.values()), None)
    share = f", {threads}{f' of {usable_cores()}' if options.is_here else ''} cores each" if threads else ""
    gpus = f", {len(limits.gpus)} GPU{'s' if len(limits.gpus) > 1 else ''}" if limits.gpus else ""
    where = f" {options.launcher.words}" if options.launcher is not None else ""
    return f"{limits.workers} at a time{where}{share}{gpus}"


def make_command(sweep: SweepDirectory, job: Job, options: Options, cwd: Path) -> Command:
    """`cwd` is the directory that the sweep was started in."""
    earlier = sweep.read_ending(job)
    sweep.ending_json(job).unlink(missing_ok=True)  # from here on the job counts as not run
    path = sweep.path if cwd == Path.cwd() else sweep.path.resolve()
    attempt = earlier.attempt + 1 if earlier else 1
    work = Command(job, options.launch(job, path / job.name), sweep.log(job), cwd, attempt=attempt)
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


def start_search(
    words: Sequence[str], search: SearchSettings, options: Options, screen: Screen
) -> tuple[SweepResults, int]:
    """A new search: the edges of its space are checked before the first job starts. Returns results and exit code."""
    check_optuna()
    own, place = split_overrides(words)
    space = read_space(own)
    settings, *others = check_space(space)
    check_objective(options.objective, [settings, *others])
    if options.is_here:
        check_sources([settings.data])
    sweep = SweepDirectory.create(place, settings.recipe)
    with sweep.lock():
        facts = plan_facts(["mpt", "sweep", *words], options)
        sweep.write_plan(
            SweepPlan(space.keys, [], settings.recipe), {**facts, "search": asdict(replace(search, words=own))}
        )
        return _run_search(sweep, options, screen)


def resume_search(path: str, trials: int | None, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """Runs what is missing or not good in an earlier search; `trials` is how many it is to have in all."""
    check_optuna()
    sweep = SweepDirectory.open(path)
    with sweep.lock():
        plan, facts = sweep.read_plan()
        check_reported(sweep, options.objective)
        if trials is not None:
            facts["search"]["trials"] = trials
        if options.objective is not None and "objective" not in facts["search"]:  # none of its values has been told yet
            facts["objective"] = options.objective
        sweep.write_plan(plan, facts)
        return _run_search(sweep, options, screen)


def space_lines(words: Sequence[str], search: SearchSettings, objective: str | None) -> list[str]:
    """What is varied, as --dry-run lists it."""
    space = read_space(split_overrides(words)[0])
    check_objective(objective, check_space(space))
    width = max(map(len, space.keys))
    lines = [f"{dimension.key:<{width}}  {dimension}" for dimension in space.dimensions]
    return [*lines, f"{search.trials} trials, {search.sampler}"]


def _run_search(sweep: SweepDirectory, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    plan, facts = sweep.read_plan()
    left = jobs_left(sweep, plan)
    count = len(left) + plan.missing
    trials = _open_study(sweep, plan, options, max(count, 1))
    limits = limits_for([trials.template], options, most=max(count, 1))
    screen.say(
        f"{count} trials, {format_machine_share(trials.template, limits, options)}, in {sweep.path}"
        if count
        else f"{sweep.path}: nothing is left to run"
    )
    trials.catch_up()
    progress = SweepProgress(screen, sweep, count, limits.workers)
    with launcher_session(options, limits.workers) as opened:
        work = _commands_of(trials, left, opened, Path(facts["working_directory"]))
        watches = [trials, *median_observers(sweep, plan, options)]
        try:
            stopped_by = run_queue(sweep, work, progress, limits, watches)
        except ConfigError:  # no job reports what the search is for
            finish(sweep, options)
            raise
    if stopped_by is None and len(trials.plan.jobs) < plan.trials:
        screen.say(_why_fewer(trials.plan, plan.trials))
    found = finish(sweep, options)
    return found, exit_code(stopped_by, found.results)


def _why_fewer(plan: SweepPlan, wanted: int) -> str:
    """Why a search that nobody stopped made fewer trials than were wanted."""
    if not plan.missing:
        return f"all {plan.trials} combinations have been tried"
    made = f"{plan.missing} of {wanted} trials were not made"
    return f"no new combination came up in {MOST_ASKED} proposals: {made}. Widen the space, or ask for fewer trials."


def _open_study(sweep: SweepDirectory, plan: SweepPlan, options: Options, count: int) -> "OptunaTrials":
    from mpt_cli.sweep.optuna_sampler import OptunaStudy, OptunaTrials

    facts = sweep.read_plan()[1]
    search = SearchSettings(**{name: facts["search"][name] for name in SearchSettings.__dataclass_fields__})
    space = read_space(search.words)
    first = Job(0, "", {}, search.words, wanted_gpus(check_space(space)[0]))
    workers = limits_for([first], options, most=count).workers
    named = facts["objective"]
    study = OptunaStudy(sweep.study, space, search, choose_objective(named, []) if named else None)
    return OptunaTrials(sweep, plan, facts, space, study, replace(first, environment=share_of_cores(workers, options)))


def _commands_of(trials: "OptunaTrials", left: Sequence[Job], options: Options, cwd: Path) -> Iterator[Command]:
    """What is left of earlier goes first; from then on those jobs count as not run."""
    earlier = [make_command(trials.sweep, job, options, cwd) for job in left]
    return chain(earlier, (make_command(trials.sweep, job, options, cwd) for job in trials.new_jobs()))
