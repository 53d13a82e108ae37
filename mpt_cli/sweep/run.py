"""The story of a sweep on one screen: overrides in, processes run, results on disk."""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from os import environ
from pathlib import Path
from typing import Any, Self

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.jobs.capacity import usable_cores
from mpt_cli.jobs.executor import Command, mpt_command
from mpt_cli.jobs.launchers import Launcher, LocalLauncher, choose_launcher
from mpt_cli.jobs.queue import Limits, Observer, Queue
from mpt_cli.machine import visible_gpus
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.search_path import CONFIG_DIR, expanded
from mpt_cli.signals import GRACE_SECONDS, SIGNAL_EXIT_CODES
from mpt_cli.sweep.block import read_block, with_more_values
from mpt_cli.sweep.directory import (
    FAILED,
    GOOD,
    NOT_RUN,
    JobResult,
    SweepDirectory,
    SweepResults,
    check_reported,
    gravest_code,
    read_job,
    read_results,
    wanted_runs,
)
from mpt_cli.sweep.median_stopping import MedianStopping
from mpt_cli.sweep.plan import (
    Job,
    SweepPlan,
    choose_objectives,
    grow_plan,
    job_count,
    plan_dict,
    plan_lines,
)
from mpt_cli.sweep.progress import Screen, SweepProgress, standing_line
from mpt_cli.sweep.report import write_results
from mpt_cli.sweep.samplers import (
    GridSampler,
    GridSettings,
    Sampler,
    SamplerSettings,
    choose_kind,
    settings_from_facts,
    words_of_search,
)
from mpt_cli.telemetry.records import misfit

GRID = GridSettings()
Launch = Callable[[Job, Path], Sequence[str]]


def train_command(job: Job, run_dir: Path) -> list[str]:
    """What runs a job. `resume=auto` begins in a directory that is not there and goes on in one that is."""
    return mpt_command("train", *job.words, format_override("run_dir", str(run_dir)), "resume=auto", "--json")


@dataclass(frozen=True)
class Options:
    """How a sweep is run; `launch` gives the command of a job's process, `launcher` is the place where it runs."""

    workers: int | None = None
    timeout_seconds: float | None = None
    objective: str | None = None
    stop_behind_median: bool | None = None
    grace_seconds: float = GRACE_SECONDS
    launch: Launch = field(default=train_command)
    launcher: Launcher = field(default_factory=LocalLauncher)

    def filled(self, said: Mapping[str, Any]) -> Self:
        """With what is said elsewhere of the fields of which these say nothing."""
        return replace(self, **{name: value for name, value in said.items() if getattr(self, name) is None})

    def limits(self, jobs: Sequence[Job], most: int | None = None) -> Limits:
        """What runs at a time; `most` is how many jobs there will be where not these are all."""
        count = most or len(jobs)
        has_pool = not self.launcher.gives_gpus and any(job.gpus for job in jobs)
        gpus = visible_gpus(environ) if has_pool else []
        workers = max(1, min(self.workers or self.launcher.workers(count, len(gpus)), count))
        cores = self.launcher.core_shares(workers)
        return Limits(workers, gpus, cores, self.timeout_seconds, self.grace_seconds)

    def environment_of_jobs(self, workers: int) -> dict[str, str]:
        """The variables that give each of several jobs at a time its share, and the folders it finds its files in."""
        folders = {CONFIG_DIR: environ[CONFIG_DIR]} if environ.get(CONFIG_DIR) else {}
        return {**self.launcher.environment(workers, environ), **folders}


def split_overrides(overrides: Sequence[str], key: str = "sweep_dir") -> tuple[list[str], str | None]:
    """The overrides of the jobs, and the path that `key` among them gives."""
    paths = [override.removeprefix(f"{key}=").strip("'\"") for override in overrides if override.startswith(f"{key}=")]
    if len(paths) > 1:
        raise ConfigError(Problem(key, "must be given once.", paths[-1]))
    return [override for override in overrides if not override.startswith(f"{key}=")], paths[0] if paths else None


def place_of(words: Sequence[str], name: str | None, settings: Sequence[str]) -> Launcher:
    """Where the jobs run: by the name and the settings of a command line, and by the recipe's block where that names
    none or the same.
    """
    said, own = read_block(words).launcher or (LocalLauncher.name, ())
    return choose_launcher(name or said, [*(own if name in (None, said) else ()), *settings])


def start_sweep(
    overrides: Sequence[str], options: Options, screen: Screen, kind: SamplerSettings | None = None
) -> tuple[SweepResults, int]:
    """A new sweep: what its configurations can be is checked before the first job starts. Returns results and exit
    code. `kind` None: what the recipe's block says.
    """
    own, path = split_overrides(overrides)
    block, kind = read_block(own), kind or choose_kind(own)
    kind.check()
    options = options.filled({**block.limits, "objective": block.objective})
    plan = kind.make_plan(own, options, screen.say)
    sweep = SweepDirectory.create(path or block.sweep_dir, plan.recipe)
    with sweep.lock():
        facts = {
            **plan_facts(["mpt", "sweep", *overrides], options),
            "limits": block.limits,  # what the recipe's block says of jobs at a time, time-out and median
            **kind.facts(own),
        }
        begin(sweep, plan, facts, options)
        return _run(sweep, options, screen)


def dry_run(overrides: Sequence[str], options: Options, kind: SamplerSettings) -> tuple[dict[str, Any], list[str]]:
    """What `start_sweep` would run, for --json and as lines; where its directory is taken, they say so too."""
    own, path = split_overrides(overrides)
    block = read_block(own)
    content, lines = kind.dry_run(own, options.filled({"objective": block.objective}))
    obstacle = _obstacle(path or block.sweep_dir)
    return {**content, "obstacle": obstacle or None}, [*lines, *([f"would not begin: {obstacle}"] if obstacle else [])]


def _obstacle(place: str | None) -> str:
    """Why no new sweep can begin in this directory; empty where one can."""
    try:
        if place:
            SweepDirectory(expanded(place)).check_free()
    except DataError as error:
        return str(error)
    return ""


def resume_sweep(
    path: str, options: Options, screen: Screen, trials: int | None = None, words: Sequence[str] = ()
) -> tuple[SweepResults, int]:  # fmt: skip
    """Runs what is missing or not good in an earlier sweep. A failed job starts afresh, a broken-off one goes on.

    `trials` is how many jobs a search is to have in all; `words` say what a grid is to vary besides: each in place of
    the sweep's own of that key.
    """
    sweep = SweepDirectory.open(path)
    if words:
        with sweep.lock():
            grow_sweep(sweep, words, options, screen)
    facts = sweep.read_plan()[1]
    settings_from_facts(facts).check()
    options = options.filled(_limits_of(sweep, facts))
    with sweep.lock():
        check_reported(sweep, options.objective)
        _change_facts(sweep, trials, options.objective)
        return _run(sweep, options, screen)


_LIMITS = {"workers": int, "timeout_seconds": float, "stop_behind_median": bool}


def _limits_of(sweep: SweepDirectory, facts: dict[str, Any]) -> dict[str, Any]:
    """What the recipe's block said of the jobs when the sweep began, or when it last grew by it."""
    found = facts.get("limits", {})
    fault = misfit(_LIMITS, found) if isinstance(found, dict) else f"limits must not be {found!r}"
    if fault:
        raise DataError(f"{sweep.plan_json} is damaged: {fault}.")
    return {name: found[name] for name in _LIMITS if name in found}


def dry_run_of_resume(
    path: str, options: Options, trials: int | None = None, words: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """What `resume_sweep` would run, for --json and as lines; nothing is written."""
    sweep = SweepDirectory.open(path)
    plan, facts = sweep.read_plan()
    plan = _grown(plan, facts, words, options)[0] if words else plan
    settings_from_facts(facts).check()
    seeds = facts.get("search", {}).get("seeds", 1)
    if trials is not None:
        _check_search(facts, trials)
        plan = replace(plan, trials=trials * seeds)
    results = [result for result in (read_job(sweep, job) for job in plan.jobs) if result.status not in GOOD]
    left = [result.job for result in results]
    begun = [standing_line(sweep, result) for result in results if _has_begun(sweep, result)]
    shown = replace(plan, jobs=left, duplicates=[])
    more = [f"and {plan.missing // seeds} more trials"] if plan.missing else []
    return {**plan_dict(shown), "trials": plan.missing // seeds}, [*plan_lines(shown), *begun, *more]


def grow_sweep(sweep: SweepDirectory, words: Sequence[str], options: Options, screen: Screen) -> None:
    """Adds the jobs that the words make of the sweep's own, where none with their configuration is there, or to a
    search as many trials as its recipe says now.
    """
    plan, facts = sweep.read_plan()
    grown, asked = _grown(plan, facts, words, options, screen.say)
    shared = options.environment_of_jobs(options.limits(grown.jobs or plan.jobs).workers)
    count = len(grown.jobs) - len(plan.jobs)
    jobs = [job if job.number <= len(plan.jobs) else replace(job, environment=shared) for job in grown.jobs]
    if "search" in facts:
        facts["search"]["trials"] = asked
    if any(word.startswith("conf=") for word in words):
        facts["limits"] = read_block(words).limits
    facts |= {
        "grown_by": [*facts.get("grown_by", []), [*words]],  # the words of each --resume that added some
    }
    sweep.write_plan(replace(grown, jobs=jobs), facts)
    if "search" not in facts:
        screen.say(f"{job_count(count)} more, {asked - count} there already")


def _grown(
    plan: SweepPlan, facts: dict[str, Any], words: Sequence[str], options: Options,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[SweepPlan, int]:  # fmt: skip
    """The plan with what the words add to it, and how many jobs they ask for; of a search, how many trials."""
    own = [word for word in split_overrides(facts["command_line"][2:])[0] if not word.startswith("-")]
    if "search" in facts:
        trials = _longer_search(facts["search"], own, words)
        return replace(plan, trials=wanted_runs({"search": {**facts["search"], "trials": trials}})), trials
    given = {word.partition("=")[0].lstrip("+~") for word in words}
    known = with_more_values(own, facts.get("grown_by", []))
    kept = [word for word in known if word.partition("=")[0].lstrip("+~") not in given]
    more = GRID.make_plan([*kept, *words], options, say)
    return grow_plan(plan, more), len(more.jobs)


def _longer_search(search: dict[str, Any], own: Sequence[str], words: Sequence[str]) -> int:
    """How many trials the recipe's block now asks for, whose space must be as it was."""
    if len(words) != 1 or not words[0].startswith("conf="):
        rule = "must be given without other words where the sweep is a search."
        remedy = "--trials N makes it longer, or conf=RECIPE with more trials in its sweep: block."
        raise ConfigError(Problem("--resume", rule, " ".join(words), remedy))
    now = words_of_search([*words, *(word for word in own if not word.startswith("conf="))])
    if now[1:] != [word for word in search["words"] if not word.startswith("conf=")]:
        rule = "must be what the search began with: its samplers know no other space, and no other seeds."
        remedy = f"It was {' '.join(search['words'])}."
        raise ConfigError(Problem("sweep.search.space", rule, " ".join(now[1:]), remedy))
    trials = (read_block(words).search or {}).get("trials")
    return int(search["trials"] if trials is None else trials)


def _check_search(facts: dict[str, Any], trials: int) -> None:
    if "search" not in facts:
        raise ConfigError(Problem("--trials", "is for a sweep that was begun with it.", trials))


def _change_facts(sweep: SweepDirectory, trials: int | None, objective: str | None) -> None:
    """What may be said anew of a search that is resumed, and of a grid whose objective no job reports."""
    plan, facts = sweep.read_plan()
    if trials is not None:
        _check_search(facts, trials)
        facts["search"]["trials"] = trials
    if "search" not in facts and (objective is None or not read_results(sweep).complaint):
        return
    if objective is not None and "objective" not in facts.get("search", {}):  # none of its values has been told yet
        facts["objective"] = objective
    sweep.write_plan(plan, facts)


def begin(sweep: SweepDirectory, plan: SweepPlan, facts: dict[str, Any], options: Options) -> SweepPlan:
    """Write the plan, with each job's share of the cores in it; returns it so."""
    shared = options.environment_of_jobs(options.limits(plan.jobs).workers)
    plan = replace(plan, jobs=[replace(job, environment=shared) for job in plan.jobs])
    sweep.write_plan(plan, facts)
    return plan


def jobs_left(sweep: SweepDirectory, plan: SweepPlan, screen: Screen) -> list[Job]:
    """What is not good yet; what a failed job left behind is set aside. Where any has begun, `screen` is told of each
    what it came to, or where it goes on. DataError where one still runs, as on a cluster after the sweep was killed."""
    results = [read_job(sweep, job) for job in plan.jobs]
    for result in results if any(_has_begun(sweep, result) for result in results) else []:
        screen.say(standing_line(sweep, result))
    for result in results:
        run = sweep.run(result.job)
        if not result.is_good and run.lock_file.exists():
            with run.lock():
                pass
    for result in results:
        if result.status == FAILED:
            sweep.set_aside(result.job)
    return [result.job for result in results if result.status not in GOOD]


def _has_begun(sweep: SweepDirectory, result: JobResult) -> bool:
    return result.status != NOT_RUN or sweep.run(result.job).path.exists()


def _run(sweep: SweepDirectory, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """From the directory alone: what is left of earlier goes first, then what the sampler makes."""
    sampler = settings_from_facts(sweep.read_plan()[1]).open(sweep, options)
    for line in sampler.remarks():
        screen.say(line)
    left = jobs_left(sweep, sampler.plan, screen)
    try:
        stopped_by = run_jobs(sweep, left, options, screen, median_observers(sweep, sampler.plan, options), sampler)
    except ConfigError:  # no job reports what the sweep is for
        finish(sweep, options)
        raise
    found = finish(sweep, options)
    return found, exit_code(stopped_by, found.results)


def finish(sweep: SweepDirectory, options: Options) -> SweepResults:
    """Write the results as they stand: they are there whatever the objective was to be."""
    found = read_results(sweep, options.objective, is_final=True)
    write_results(found)
    return found


def median_observers(sweep: SweepDirectory, plan: SweepPlan, options: Options) -> list[Observer[Job]]:
    if not options.stop_behind_median:
        return []
    objective = options.objective or sweep.read_plan()[1]["objective"]
    return [MedianStopping(sweep, plan.jobs, choose_objectives(objective, [])[0] if objective else None)]


def run_jobs(
    sweep: SweepDirectory, left: Sequence[Job], options: Options, screen: Screen,
    observers: Sequence[Observer[Job]] = (), sampler: Sampler | None = None,
) -> signal.Signals | None:  # fmt: skip
    """Run these jobs of the sweep, and those that the sampler makes after them (none: of a grid, which makes none),
    each as a process of its own; returns the signal that ended it before its time.
    """
    sampler = sampler or GridSampler(sweep, sweep.read_plan()[0], options.objective)
    sampler.catch_up()
    wanted, missing = sampler.plan.trials, sampler.plan.missing
    count = len(left) + missing
    if not count:
        screen.say(f"{sweep.path}: nothing is left to run")
        return None
    example = sampler.example(left)
    limits = options.limits(example, most=count)
    share = format_machine_share(example[0], limits, options)
    screen.say(f"{sampler.format_count(count)}, {share}, in {sweep.path}")
    progress = SweepProgress(screen, sweep, count, limits.workers)
    with options.launcher.executor(limits.workers, sweep.path / "logs") as executor, progress:
        queue = Queue(limits, executor, lambda command, ending: sweep.write_ending(command.subject, ending),
                      [progress, sampler, *observers])  # fmt: skip
        stopped_by = queue.run(_commands(sweep, left, sampler, options))
    if stopped_by is None and (why := sampler.why_fewer(wanted)):
        screen.say(why)
    return stopped_by


def _commands(
    sweep: SweepDirectory, left: Sequence[Job], sampler: Sampler, options: Options
) -> Iterable[Command[Job]]:  # fmt: skip
    """From the first on, all jobs that are left count as not run."""
    cwd = Path(sweep.read_plan()[1]["working_directory"])
    earlier = [make_command(sweep, job, options, cwd) for job in left]
    new: Iterator[Command[Job]] = (make_command(sweep, job, options, cwd) for job in sampler.new_jobs())
    return chain(earlier, new)


def exit_code(stopped_by: signal.Signals | None, results: Sequence[JobResult]) -> int:
    """130 or 143 where a signal ended it, else what its jobs came to."""
    return SIGNAL_EXIT_CODES[stopped_by] if stopped_by is not None else gravest_code(list(results))


def format_machine_share(job: Job, limits: Limits, options: Options) -> str:
    """How many at a time, on how much of the machine."""
    threads = next((value for name, value in job.environment.items() if name != CONFIG_DIR), None)
    of_all = f" of {usable_cores()}" if options.launcher.is_here else ""
    share = f", {threads}{of_all} cores each" if threads else ""
    gpus = f", {len(limits.gpus)} GPU{'s' if len(limits.gpus) > 1 else ''}" if limits.gpus else ""
    return f"{limits.workers} at a time {options.launcher.description}".rstrip() + f"{share}{gpus}"


def make_command(sweep: SweepDirectory, job: Job, options: Options, cwd: Path) -> Command[Job]:
    """`cwd` is the directory that the sweep was started in."""
    earlier = sweep.read_ending(job)
    sweep.ending_json(job).unlink(missing_ok=True)  # from here on the job counts as not run
    attempt = earlier.attempt + 1 if earlier else 1
    run_dir = (sweep.path if cwd == Path.cwd() else sweep.path.resolve()) / job.name
    return Command(job.name, options.launch(job, run_dir), job, sweep.log(job), cwd, job.environment, job.gpus, attempt)


def plan_facts(command_line: Sequence[str], options: Options) -> dict[str, Any]:
    """What stands beside the plan: how and where it was started."""
    return {
        "command_line": [*command_line],  # without options
        "working_directory": str(Path.cwd()),  # the jobs' too
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),  # in UTC
        "objective": options.objective,  # as --objective has it; null where nothing was said
        "launcher": options.launcher.facts,  # name and settings; null on this machine
    }
