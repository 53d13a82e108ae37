"""The story of a sweep on one screen: overrides in, processes run, results on disk."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from os import environ
from pathlib import Path
from typing import Any

from mpt_cli.errors import OK, DataError, config_error
from mpt_cli.jobs.capacity import cores_each
from mpt_cli.jobs.cluster import Cluster
from mpt_cli.jobs.launchers import Launcher, LocalLauncher
from mpt_cli.jobs.local_processes import CannotStart, Command, Ending, Executor, Limits, mpt_command
from mpt_cli.jobs.queue import Queue
from mpt_cli.machine import visible_gpus
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import CONFIG_DIR, shell_command
from mpt_cli.signals import GRACE_SECONDS, SIGNAL_EXIT_CODES
from mpt_cli.sweep.directory import (
    FAILED,
    FINISHED,
    JobResult,
    SweepDirectory,
    SweepResults,
    read_job,
    read_results,
    sweep_exit_code,
)
from mpt_cli.sweep.job_list import Job, Search, SweepPlan, choose_objective, job_count, make_plan
from mpt_cli.sweep.overrides import override_key, values_of
from mpt_cli.sweep.progress import Screen, SweepProgress
from mpt_cli.sweep.report import write_results

NO_METRIC = "the first training of the script reported no metric, as a loop without fit"
Launch = Callable[[Job, Path], Sequence[str]]


def train_command(job: Job, run_dir: Path) -> list[str]:
    """Return what runs a job. `resume=auto` starts in a directory that is not there and continues in one that is."""
    place = format_override("run_dir", str(run_dir))
    if job.verb == "run":
        return mpt_command("run", place, *job.words)
    return mpt_command("train", *job.words, place, "resume=auto", "--json")


@dataclass(frozen=True)
class Options:
    """How a sweep is run; `launch` gives the command of a job's process, `launcher` is the place where it runs."""

    workers: int | None = None
    timeout_seconds: float | None = None
    objective: str | None = None
    grace_seconds: float = GRACE_SECONDS
    launch: Launch = field(default=train_command)
    launcher: Launcher = field(default_factory=LocalLauncher)
    detach: bool = False  # the jobs are handed over at once, and nobody waits for them

    def check_detach(self, search: Search | None) -> None:
        """Raise ConfigError where nobody may leave the jobs alone."""
        can_be_left = self.launcher.can_detach and search is None and self.timeout_seconds is None
        if self.detach and not can_be_left:
            rule = (
                "is for a grid on Slurm, without --timeout: a search makes each job by what came before, "
                "and Slurm ends a job after launcher.timeout_min."
            )
            raise config_error("--detach", rule, self.launcher.name, "Give --launcher submitit.")

    def limits(self, jobs: Sequence[Job], count: int) -> Limits:
        """Return the limits for so many jobs, of which these are known."""
        has_pool = self.launcher.is_here and (not jobs or any(job.gpus for job in jobs))
        gpus = visible_gpus(environ) if has_pool else []
        workers = max(1, min(self.workers or self.launcher.workers(count, len(gpus)), count))
        cores = cores_each(workers) if self.launcher.is_here else None
        return Limits(workers, gpus, cores, self.timeout_seconds, self.grace_seconds)

    def job_environment(self, workers: int) -> dict[str, str]:
        """Return the variables that give each of several jobs at a time its share, and the folders it finds its files
        in.
        """
        folders = {CONFIG_DIR: environ[CONFIG_DIR]} if environ.get(CONFIG_DIR) else {}
        return {**self.launcher.environment(workers, environ), **folders}


def split_overrides(overrides: Sequence[str], key: str = "sweep_dir") -> tuple[list[str], str | None]:
    """Return the overrides of the jobs, and the path that `key` among them gives."""
    own = [override for override in overrides if override.startswith(f"{key}=")]
    if len(own) > 1:
        raise config_error(key, "must be given once.", own[-1])
    return [override for override in overrides if override not in own], values_of(own).get(key)


def start_sweep(
    overrides: Sequence[str], options: Options, screen: Screen, search: Search | None = None
) -> tuple[SweepResults, int]:
    """Run a new sweep; its configurations are checked before the first job starts. Return results and exit code."""
    plan, path = plan_new(overrides, options, search, screen)
    sweep = SweepDirectory.create(path, plan.recipe)
    with sweep.lock():
        return _run(sweep, begin(sweep, plan, options), options, screen)


def plan_new(
    overrides: Sequence[str], options: Options, search: Search | None, screen: Screen
) -> tuple[SweepPlan, str | None]:
    """Return what a new sweep would run, all checked, and the directory where one is named."""
    words, path = split_overrides(overrides)
    options.check_detach(search)
    is_here = options.launcher.is_here
    if search is None:
        plan = make_plan(words, objective=options.objective, is_here=is_here, say=screen.say)
    else:
        search.check()
        from mpt_cli.sweep.search import plan_search

        plan = plan_search(words, search, options.objective, is_here, screen.say)
    return replace(plan, facts=plan_facts(["mpt", "sweep", *overrides], options)), path


def resume_sweep(
    path: str, options: Options, screen: Screen, trials: int | None = None, words: Sequence[str] = ()
) -> tuple[SweepResults, int]:
    """Run what is missing or not good in an earlier sweep. A failed job starts afresh, an interrupted one continues.

    `trials` is how many a search is to have in all; `words` say what a grid is to vary besides: each in place of the
    sweep's own of that key.
    """
    sweep = SweepDirectory.open(path)
    with sweep.lock():
        before = sweep.read_plan()
        plan = changed_plan(sweep, before, options, screen, trials, words)
        options.check_detach(plan.search)
        if plan.search is not None:
            plan.search.check()
        return _run(sweep, begin(sweep, plan, options, len(before.jobs)), options, screen)


def changed_plan(
    sweep: SweepDirectory,
    plan: SweepPlan,
    options: Options,
    screen: Screen,
    trials: int | None = None,
    words: Sequence[str] = (),
) -> SweepPlan:
    """Return the plan with what the command line changes in it."""
    if options.objective is not None:
        plan = _with_objective(sweep, plan, options.objective)
    if plan.search is not None and words:
        rule = "must be given without words where the sweep is a search: it continues in its original space."
        raise config_error("--resume", rule, " ".join(words), "--trials N makes it longer.")
    if trials is not None:
        if plan.search is None:
            raise config_error("--trials", "is for a sweep that was begun with it.", trials)
        plan = replace(plan, search=replace(plan.search, trials=trials))
    if not words:
        return plan
    given = {*map(override_key, words)}
    own = split_overrides(plan.facts["command_line"][2:])[0]
    asked = [*(word for word in own if override_key(word) not in given), *words]
    grown = make_plan(asked, is_here=options.launcher.is_here, say=screen.say, before=plan.jobs)
    return replace(plan, varied=grown.varied, jobs=grown.jobs)


def _with_objective(sweep: SweepDirectory, plan: SweepPlan, objective: str) -> SweepPlan:
    """Return the plan ranked by another objective; ConfigError where no job reports it, and for a search that has used
    one already.
    """
    results = read_results(sweep, objective).results
    used = choose_objective(plan.facts["objective"], [])
    if plan.search is not None and any(used.value(result.summary) is not None for result in results):
        rule, again = f"must stay {used.name} where a search goes on.", shell_command("report", sweep.path)
        raise config_error("--objective", rule, objective, f"`{again} --objective …` ranks by another.")
    return replace(plan, facts={**plan.facts, "objective": objective})


def begin(sweep: SweepDirectory, plan: SweepPlan, options: Options, begun: int = 0) -> SweepPlan:
    """Write the plan, with the share of the cores of each job behind those that have `begun`; return it so."""
    shared = options.job_environment(options.limits(plan.jobs, plan.wanted - begun).workers)
    new = [replace(job, environment=shared) for job in plan.jobs[begun:]]
    plan = replace(plan, jobs=[*plan.jobs[:begun], *new])
    sweep.write_plan(plan)
    return plan


def _run(sweep: SweepDirectory, plan: SweepPlan, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """Run what is left, then what a search makes. Write the results however it ends."""
    try:
        stopped_by = SweepRun(sweep, plan, options, screen).run()
    finally:
        found = read_results(sweep)
        write_results(found)
    if options.detach:
        return found, OK
    return found, exit_code(stopped_by, found.results)


@dataclass(frozen=True)
class SweepRun:
    """The jobs of a plan, run in its directory and shown on a screen."""

    sweep: SweepDirectory
    plan: SweepPlan
    options: Options
    screen: Screen

    @property
    def working_directory(self) -> Path:
        """Return the directory that the sweep was started in."""
        return Path(self.plan.facts["working_directory"])

    def run(self) -> signal.Signals | None:
        """Run the jobs of the plan that are not good yet, and those that its search makes after them, each as a process
        of its own; return the signal that ended it before its time.
        """
        sweep, plan, say = self.sweep, self.plan, self.screen.say
        left = [job for job in plan.jobs if not read_job(sweep, job).is_good]
        count = len(left) + plan.missing
        limits = self.options.limits(left, max(count, 1))
        search = None
        if plan.search is not None:
            from mpt_cli.sweep.search import SearchJobs

            shared = left[0].environment if left else self.options.job_environment(limits.workers)
            search = SearchJobs(sweep, plan, plan.search, shared, say)
            search.tell_ended_jobs()
        if not count:
            say(f"{sweep.path}: nothing is left to run")
            return None
        say(f"{job_count(count)}, {limits.workers} at a time, in {sweep.path}")
        executor = self.options.launcher.executor(sweep.path / "logs")
        known = self._commands_of(left, executor)
        going_on = sum(command.is_submitted for command in known)
        if going_on:
            say(f"{job_count(going_on)} of them were submitted before and are waited for")
        if self.options.detach and isinstance(executor, Cluster):
            say(self._hand_over([command for command in known if not command.is_submitted], limits, executor))
            return None
        limits = replace(limits, workers=max(limits.workers, going_on))
        with SweepProgress(self.screen, sweep, count, limits.workers) as progress:
            queue = Queue(limits, executor, self._record, [progress, *([search] if search else [])])
            return queue.run(chain(known, map(self._command, search.new_jobs() if search else ())))

    def _commands_of(self, jobs: Sequence[Job], executor: Executor) -> list[Command[Job]]:
        """Return the commands of these jobs. Those that a cluster still has are only waited for; the runs of failed
        ones are set aside. DataError where one runs that the cluster does not have.
        """
        sweep = self.sweep
        under_way = executor.under_way([sweep.log(job) for job in jobs if sweep.read_ending(job) is None])
        fresh = [job for job in jobs if sweep.log(job) not in under_way]
        for run in map(sweep.run, fresh):
            if run.lock_file.exists():
                with run.lock():
                    pass
        for job in fresh:
            if read_job(sweep, job).status == FAILED:
                sweep.set_aside(job)
        made = [self._command(job, is_submitted=sweep.log(job) in under_way) for job in jobs]
        return sorted(made, key=lambda command: not command.is_submitted)

    def _command(self, job: Job, is_submitted: bool = False) -> Command[Job]:
        sweep, cwd = self.sweep, self.working_directory
        if not is_submitted:
            sweep.ending_json(job).unlink(missing_ok=True)  # from here on the job counts as not run
        run_dir = (sweep.path if cwd == Path.cwd() else sweep.path.resolve()) / job.name
        arguments, log = self.options.launch(job, run_dir), sweep.log(job)
        return Command(job.name, arguments, job, log, cwd, job.environment, job.gpus, is_submitted=is_submitted)

    def _record(self, command: Command[Job], ending: Ending) -> None:
        self.sweep.write_ending(command.subject, ending)
        if command.subject.verb == "run":
            self._check_objective(read_job(self.sweep, command.subject))

    def _check_objective(self, result: JobResult) -> None:
        """Raise ConfigError for an objective that a script does not report; say so where none was asked for. What it
        reports is known once it has run."""
        if result.status != FINISHED:
            return
        objective = choose_objective(self.plan.facts["objective"], [result.summary])
        if objective.value(result.summary) is None and result.job == self.plan.jobs[0]:
            self.screen.say(f"quality can't be compared: {NO_METRIC}. The rest is: speed, memory, skips")

    def _hand_over(self, commands: Sequence[Command[Job]], limits: Limits, cluster: Cluster) -> str:
        """Submit them; return as what, and how to see them."""
        try:
            job_ids = cluster.submit(commands, limits.workers) if commands else []
        except CannotStart as error:
            raise DataError(f"The jobs could not be submitted: {error}") from error
        names = ", ".join(dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids)) or "none"
        watch, again = shell_command("watch", self.sweep.path), shell_command("sweep", "--resume", self.sweep.path)
        return (
            f"{job_count(len(commands))} submitted as {names}, {limits.workers} at a time. `{watch}` shows them, "
            f"`{again}` waits for them and ranks them."
        )


def exit_code(stopped_by: signal.Signals | None, results: Sequence[JobResult]) -> int:
    """Return 130 or 143 where a signal ended it, else what its jobs came to."""
    return SIGNAL_EXIT_CODES[stopped_by] if stopped_by is not None else sweep_exit_code(results)


def plan_facts(command_line: Sequence[str], options: Options) -> dict[str, Any]:
    """Return what stands beside the plan: how and where it was started."""
    return {
        "command_line": [*command_line],  # without options
        "working_directory": str(Path.cwd()),  # the jobs' too
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),  # in UTC
        "objective": options.objective,  # as --objective has it; null where nothing was said
        "launcher": options.launcher.facts,  # name and settings; null on this machine
    }
