"""The story of a search on one screen: a space in, trials run, results on disk."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from mpt_cli.errors import ConfigError
from mpt_cli.sweep.child import Work
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.objective import check_objective, choose_objective
from mpt_cli.sweep.plan import Job, Plan, check_sources, wanted_gpus
from mpt_cli.sweep.progress import Progress
from mpt_cli.sweep.ranking import SweepResults, check_reported
from mpt_cli.sweep.run import (
    Options,
    exit_code,
    finish,
    jobs_left,
    limits_for,
    make_work,
    median_watches,
    plan_facts,
    run_work,
    session,
    share_of_cores,
    share_words,
    split_words,
)
from mpt_cli.sweep.screen import Screen
from mpt_cli.sweep.search.settings import MOST_ASKED, Search, check_optuna
from mpt_cli.sweep.search.space import check_space, read_space
from mpt_cli.sweep.search.trials import Trials


def start_search(words: Sequence[str], search: Search, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    """A new search: the edges of its space are checked before the first job starts. Returns results and exit code."""
    check_optuna()
    own, place = split_words(words)
    space = read_space(own)
    settings, *others = check_space(space)
    check_objective(options.objective, [settings, *others])
    if options.is_here:
        check_sources([settings.data])
    sweep = SweepDirectory.create(place, settings.recipe)
    with sweep.lock():
        facts = plan_facts(["mpt", "sweep", *words], options)
        sweep.write_plan(Plan(space.keys, [], settings.recipe), {**facts, "search": asdict(replace(search, words=own))})
        return _run(sweep, options, screen)


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
        return _run(sweep, options, screen)


def space_lines(words: Sequence[str], search: Search, objective: str | None) -> list[str]:
    """What is varied, as --dry-run lists it."""
    space = read_space(split_words(words)[0])
    check_objective(objective, check_space(space))
    width = max(map(len, space.keys))
    lines = [f"{dimension.key:<{width}}  {dimension}" for dimension in space.dimensions]
    return [*lines, f"{search.trials} trials, {search.sampler}"]


def _run(sweep: SweepDirectory, options: Options, screen: Screen) -> tuple[SweepResults, int]:
    plan, facts = sweep.read_plan()
    left = jobs_left(sweep, plan)
    count = len(left) + plan.missing
    trials = _open(sweep, plan, options, max(count, 1))
    limits = limits_for([trials.template], options, most=max(count, 1))
    screen.say(f"{count} trials, {share_words(trials.template, limits, options)}, in {sweep.path}" if count else
               f"{sweep.path}: nothing is left to run")  # fmt: skip
    trials.catch_up()
    progress = Progress(screen, sweep, count, limits.workers)
    with session(options, limits.workers) as opened:
        work = _work(trials, left, opened, Path(facts["working_directory"]))
        watches = [trials, *median_watches(sweep, plan, options)]
        try:
            stopped_by = run_work(sweep, work, progress, limits, watches)
        except ConfigError:  # no job reports what the search is for
            finish(sweep, options)
            raise
    if stopped_by is None and len(trials.plan.jobs) < plan.trials:
        screen.say(_why_fewer(trials.plan, plan.trials))
    found = finish(sweep, options)
    return found, exit_code(stopped_by, found.results)


def _why_fewer(plan: Plan, wanted: int) -> str:
    """Why a search that nobody stopped made fewer trials than were wanted."""
    if not plan.missing:
        return f"all {plan.trials} combinations have been tried"
    made = f"{plan.missing} of {wanted} trials were not made"
    return f"no new combination came up in {MOST_ASKED} proposals: {made}. Widen the space, or ask for fewer trials."


def _open(sweep: SweepDirectory, plan: Plan, options: Options, count: int) -> Trials:
    from mpt_cli.sweep.search.study import Study

    facts = sweep.read_plan()[1]
    search = Search(**{name: facts["search"][name] for name in Search.__dataclass_fields__})
    space = read_space(search.words)
    first = Job(0, "", {}, search.words, wanted_gpus(check_space(space)[0]))
    workers = limits_for([first], options, most=count).workers
    named = facts["objective"]
    study = Study(sweep.study, space, search, choose_objective(named, []) if named else None)
    return Trials(sweep, plan, facts, space, study, replace(first, environment=share_of_cores(workers, options)))


def _work(trials: Trials, left: Sequence[Job], options: Options, cwd: Path) -> Iterator[Work]:
    """What is left of earlier goes first; from then on those jobs count as not run."""
    earlier = [make_work(trials.sweep, job, options, cwd) for job in left]
    return chain(earlier, (make_work(trials.sweep, job, options, cwd) for job in trials.new_jobs()))
