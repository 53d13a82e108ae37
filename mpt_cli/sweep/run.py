"""The story of a sweep on one screen: overrides in, processes run, results on disk."""

import signal
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from os import environ
from pathlib import Path
from typing import Any

from mpt_cli.errors import NUMERICAL, OK, ConfigError, DataError, Problem, Say, config_error, raise_problems
from mpt_cli.jobs.cluster import Cluster
from mpt_cli.jobs.local_processes import (
    CannotStart,
    Command,
    Ending,
    Executor,
    Limits,
    LocalExecutor,
    Running,
    module_command,
)
from mpt_cli.jobs.queue import Queue
from mpt_cli.runs.provenance import code_differences, collect_environment, known_environment
from mpt_cli.runs.resume import changed_settings, stored_settings
from mpt_cli.settings.load import placed
from mpt_cli.settings.overrides import format_override, parse_overrides
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
from mpt_cli.sweep.job_list import (
    Job,
    Search,
    SweepPlan,
    choose_objective,
    job_count,
    make_plan,
    plan_lines,
    seeds_sentence,
)
from mpt_cli.sweep.overrides import load_each, override_key, values_of
from mpt_cli.sweep.progress import JobLines
from mpt_cli.sweep.report import write_results
from mpt_cli.telemetry.console import PrintableConsole

Launch = Callable[[Job, Path], Sequence[str]]


def train_command(job: Job, run_dir: Path) -> list[str]:
    """Return what runs a job. `resume=auto` starts in a directory that is not there and continues in one that is."""
    run_dir_override = format_override("run_dir", str(run_dir))
    if job.verb == "run":
        return module_command("mpt_cli", "run", run_dir_override, *job.words)
    return module_command("mpt_cli", "train", *job.words, run_dir_override, "resume=auto")


@dataclass(frozen=True)
class Options:
    """How to run a sweep; `launch` returns the command of a job, `launcher` is the place where it runs."""

    workers: int | None = None
    timeout_seconds: float | None = None
    objective: str | None = None
    grace_seconds: float = GRACE_SECONDS
    launch: Launch = field(default=train_command)
    launcher: Executor = field(default_factory=LocalExecutor)
    detach: bool = False  # all jobs are submitted at once, and nothing waits for them

    def check_detach(self, search: Search | None) -> None:
        """Raise ConfigError if the jobs can't run without this process."""
        if self.detach and not (self.launcher.can_detach and search is None and self.timeout_seconds is None):
            rule = (
                "is for a grid on Slurm, without --timeout: a search chooses each job from earlier results, "
                "and Slurm ends a job after launcher.timeout_min."
            )
            raise config_error("--detach", rule, self.launcher.name, "Give --launcher submitit.")

    def limits(self, jobs: Sequence[Job], count: int) -> Limits:
        """Return the limits for so many jobs, of which these are known."""
        wants_gpus = not jobs or any(job.gpus for job in jobs)
        workers = max(1, min(self.workers or self.launcher.workers(count, wants_gpus), count))
        return Limits(workers, self.timeout_seconds, self.grace_seconds)

    def job_environment(self, workers: int) -> dict[str, str]:
        """Return the variables that give each of several jobs at a time its share, and the folders it finds its files
        in.
        """
        folders = {CONFIG_DIR: environ[CONFIG_DIR]} if environ.get(CONFIG_DIR) else {}
        return {**self.launcher.environment(workers), **folders}


def split_overrides(overrides: Sequence[str], key: str = "sweep_dir") -> tuple[list[str], str | None]:
    """Return the overrides of the jobs, and the path that `key` among them gives."""
    own = [override for override in overrides if override.startswith(f"{key}=")]
    if len(own) > 1:
        raise config_error(key, "must be given once.", own[-1])
    return [override for override in overrides if override not in own], values_of(own).get(key)


def start_sweep(
    overrides: Sequence[str], options: Options, console: PrintableConsole, search: Search | None = None
) -> tuple[SweepResults, int]:
    """Run a new sweep; its configurations are checked before the first job starts. Return results and exit code."""
    plan, path = plan_new(overrides, options, search, console)
    sweep = SweepDirectory.create(path, plan.recipe)
    if sentence := seeds_sentence(plan.jobs):
        console.say(sentence, indent=2)
    with sweep.lock():
        return _run(sweep, begin(plan, options), options, console)


def plan_new(
    overrides: Sequence[str], options: Options, search: Search | None, console: PrintableConsole
) -> tuple[SweepPlan, str | None]:
    """Return what a new sweep would run, all checked, and the directory where one is named."""
    words, path = split_overrides(overrides)
    options.check_detach(search)
    is_here = options.launcher.is_here
    if search is None:
        plan = make_plan(words, objective=options.objective, is_here=is_here, say=console.say)
    else:
        search.check()
        from mpt_cli.sweep.search import plan_search

        plan = plan_search(words, search, options.objective, is_here, console.say)
    return replace(plan, facts=plan_facts(["mpt", "sweep", *overrides], options)), path


def begin(plan: SweepPlan, options: Options, begun: int = 0) -> SweepPlan:
    """Return the plan with a share of the cores for each job after those that have `begun`."""
    shared = options.job_environment(options.limits(plan.jobs, plan.wanted - begun).workers)
    new = [replace(job, environment=shared) for job in plan.jobs[begun:]]
    return replace(plan, jobs=[*plan.jobs[:begun], *new])


def resume_sweep(
    path: str, options: Options, console: PrintableConsole, trials: int | None = None, words: Sequence[str] = ()
) -> tuple[SweepResults, int]:
    """Run the missing and failed jobs of an earlier sweep. A failed job starts fresh, an interrupted one continues."""
    sweep = SweepDirectory.open(path)
    with sweep.lock():
        before = sweep.read_plan()
        plan = changed_plan(before, options, console, trials, words)
        if words:
            console.say("these jobs are added; a key that is not given has the values of the first command:")
            for line in plan_lines(plan, plan.jobs[len(before.jobs) :]):
                console.say(line, indent=2)
        return _run(sweep, begin(plan, options, len(before.jobs)), options, console, is_grown=bool(words))


def changed_plan(
    plan: SweepPlan, options: Options, console: PrintableConsole, trials: int | None, words: Sequence[str]
) -> SweepPlan:
    """Return the plan with the changes of the command line: the number of `trials` of a search in all; of a grid the
    objective, or further overrides, each replacing that of the same key. ConfigError where it can't be run.
    """
    options.check_detach(plan.search)
    if plan.search is not None:
        plan.search.check()
        if changes := [*words, *filter(None, [options.objective])]:
            rule = "must be given without overrides and --objective if the sweep is a search: its jobs came of them."
            raise config_error("--resume", rule, " ".join(changes), "--trials N makes it longer.")
    if options.objective is not None:
        plan = replace(plan, facts={**plan.facts, "objective": options.objective})
    if trials is not None:
        if plan.search is None:
            raise config_error("--trials", "is for a sweep that was started with it.", trials)
        plan = replace(plan, search=replace(plan.search, trials=trials))
    if not words:
        return plan
    given = {*map(override_key, words)}
    own = split_overrides(plan.facts["command_line"][2:])[0]
    order = [*map(override_key, own)]  # that of a key stays, as the order of groups orders the keys that they give
    asked = [*(word for word in own if override_key(word) not in given), *words]
    asked.sort(key=lambda word: order.index(key) if (key := override_key(word)) in order else len(order))
    with chdir(plan.facts["working_directory"]):
        grown = make_plan(asked, is_here=options.launcher.is_here, say=console.say, before=plan.jobs)
    return replace(plan, varied=grown.varied, jobs=grown.jobs, unlike=grown.unlike)


def jobs_left(results: Sequence[JobResult], is_grown: bool) -> list[Job]:
    """Return the jobs to run: those that are not good; of a sweep that has grown, without numerical failures, which
    fail again.
    """
    left = [result for result in results if not result.is_good]
    return [result.job for result in left if not (is_grown and result.exit_code == NUMERICAL)]


def _run(
    sweep: SweepDirectory, plan: SweepPlan, options: Options, console: PrintableConsole, is_grown: bool = False
) -> tuple[SweepResults, int]:
    """Run what is left, then what a search makes. Write the results."""
    stopped_by = SweepRun(sweep, plan, options, console, is_grown).run()
    found = read_results(sweep)
    write_results(found)
    return found, OK if options.detach else exit_code(stopped_by, found.results)


def check_unchanged(sweep: SweepDirectory, plan: SweepPlan, results: Sequence[JobResult], say: Say) -> None:
    """Raise ConfigError where those of these jobs that have begun ran under other settings than their words stand for
    by now, and say which code has changed. Of those that name the same files one stands for all.
    """
    jobs = [result.job for result in results if result.status != FAILED and result.job.verb == "train"]
    begun = [job for job in jobs if sweep.run(job).config_yaml.is_file()]
    with chdir(plan.facts["working_directory"]):
        kinds = {repr(parse_overrides(job.words).choices): job for job in begun}.values()
        now, environment = load_each(job.words for job in kinds), collect_environment({})
    changes = (line for job in begun for line in code_differences(known_environment(sweep.run(job)), environment))
    for line in dict.fromkeys(changes):
        say(f"changed since jobs ran: {line}")
    for job, settings in zip(kinds, now, strict=True):
        with suppress(DataError):  # its record is damaged
            changed = changed_settings(stored_settings(sweep.run(job), settings), settings)
            rule, remedy = f"must be as it was when {job.name} ran:", "Put the file back, or start anew."
            with chdir(plan.facts["working_directory"]), placed(job.words):
                raise_problems(Problem(key, f"{rule} {old!r}.", new, remedy) for key, (old, new) in changed.items())


@dataclass(frozen=True)
class SweepRun:
    """The jobs of a plan, run in its directory and shown on a console."""

    sweep: SweepDirectory
    plan: SweepPlan
    options: Options
    console: PrintableConsole
    is_grown: bool = False

    def run(self) -> signal.Signals | None:
        """Run the jobs of the plan that are not good yet, and those that its search makes after them, each as a process
        of its own; return the signal that ended it before its time.
        """
        sweep, plan, say = self.sweep, self.plan, self.console.say
        results = [read_job(sweep, job) for job in plan.jobs]
        left = jobs_left(results, self.is_grown)
        count = len(left) + plan.missing
        limits = self.options.limits(left, max(count, 1))
        search = None
        if plan.search is not None:
            from mpt_cli.sweep.search import SearchJobs

            search = SearchJobs(sweep, plan, plan.search, self.options.job_environment(limits.workers), say)
            search.tell_ended_jobs()
        if not count:
            sweep.write_plan(plan)  # its objective may be new
            say(f"{sweep.path}: nothing is left to run")
            return None
        executor = self.options.launcher
        executor.open(sweep.path / "logs", limits.workers)
        under_way = executor.under_way([sweep.log(job) for job in left if sweep.read_ending(job) is None])
        left.sort(key=lambda job: sweep.log(job) not in under_way)
        fresh = left[len(under_way) :]
        if fresh or plan.missing:
            check_unchanged(sweep, plan, results, say)
        sweep.write_plan(plan)
        self._make_way(fresh)
        say(f"{job_count(count)}, {limits.workers} at a time, in {sweep.path}")
        if under_way:
            say(f"{job_count(len(under_way))} of them were submitted before and are waited for")
        if self.options.detach and isinstance(executor, Cluster):
            say(self._hand_over([*map(self._command, fresh)], limits, executor))
            return None
        limits = replace(limits, workers=max(limits.workers, len(under_way)))
        jobs = chain(left, search.new_jobs() if search else ())
        unproven = [plan.facts["objective"]]  # until a job has finished, the metrics of a user's model are not known
        with JobLines(self.console, sweep, count, plan.facts["objective"]) as lines:

            def record(command: Command, ending: Ending) -> None:
                sweep.write_ending(command.subject, ending)
                result = read_job(sweep, command.subject)
                lines.tell(result)
                if search:
                    search.tell(result)
                elif result.status == FINISHED and unproven:
                    try:
                        choose_objective(unproven.pop(), [result.summary])
                    except ConfigError as error:
                        say(f"{error} The jobs go on; `mpt report` ranks them by another.", "red", 2)

            def tick(running: Sequence[Running]) -> None:
                lines.tick(running)
                if search:
                    search.prune(running)

            return Queue(limits, executor, record, tick).run(map(self._command, jobs))

    def _make_way(self, jobs: Sequence[Job]) -> None:
        """Mark these jobs as not run, and set the runs of failed ones aside. DataError if one of them is still running
        elsewhere.
        """
        sweep = self.sweep
        for run in map(sweep.run, jobs):
            if run.lock_file.exists():
                with run.lock():
                    pass
        for job in jobs:
            if read_job(sweep, job).status == FAILED:
                sweep.set_aside(job)
            sweep.ending_json(job).unlink(missing_ok=True)

    def _command(self, job: Job) -> Command:
        """Return the command of a job, run in the directory that the sweep was started in."""
        sweep, cwd = self.sweep, Path(self.plan.facts["working_directory"])
        run_dir = (sweep.path if cwd == Path.cwd() else sweep.path.resolve()) / job.name
        arguments = self.options.launch(job, run_dir)
        return Command(job.name, arguments, job, sweep.log(job), cwd, job.environment, job.gpus)

    def _hand_over(self, commands: Sequence[Command], limits: Limits, cluster: Cluster) -> str:
        """Submit them; return the name of their job, and the command that shows them."""
        try:
            job_ids = cluster.submit(commands, limits.workers)
        except CannotStart as error:
            raise DataError(f"The jobs could not be submitted: {error}") from error
        names = ", ".join(dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids))
        watch, again = shell_command("watch", self.sweep.path), shell_command("sweep", "--resume", self.sweep.path)
        return (
            f"{job_count(len(commands))} submitted as {names}, {limits.workers} at a time. `{watch}` shows them, "
            f"`{again}` waits for them and ranks them."
        )


def exit_code(stopped_by: signal.Signals | None, results: Sequence[JobResult]) -> int:
    """Return 130 or 143 if a signal ended it, else the code that its jobs result in."""
    return SIGNAL_EXIT_CODES[stopped_by] if stopped_by is not None else sweep_exit_code(results)


def plan_facts(command_line: Sequence[str], options: Options) -> dict[str, Any]:
    """Return the facts stored with the plan: how and where the sweep was started."""
    return {
        "command_line": [*command_line],  # the command, without options
        "working_directory": str(Path.cwd()),  # that of the jobs, too
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),  # time, in UTC
        "objective": options.objective,  # value of --objective; null if it was not given
        "launcher": options.launcher.facts,  # name and settings; null on this machine
    }
