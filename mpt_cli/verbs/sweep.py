"""`sweep` and `compare`: many runs from one command line, ranked or compared with a baseline."""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.errors import OK, Problem, raise_problems
from mpt_cli.jobs.launchers import choose_launcher, recorded_launcher, split_launcher_overrides
from mpt_cli.jobs.local_processes import Executor, LocalExecutor
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep.directory import SweepDirectory, read_job
from mpt_cli.sweep.job_list import Search, plan_dict, plan_lines
from mpt_cli.sweep.report import print_results, results_dict
from mpt_cli.sweep.run import Options, changed_plan, check_unchanged, jobs_left, plan_new, resume_sweep, start_sweep
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.verbs import minimum_problems, print_json, problems_of_jobs, say
from mpt_cli.verbs.run import script_settings, script_title, split_script

if TYPE_CHECKING:
    from mpt_cli.compare.comparison import Script


def run_sweep(arguments: Namespace) -> int:
    words, settings = split_launcher_overrides(arguments.overrides)
    search = _check_sweep(arguments)
    console = PrintableConsole(None if arguments.quiet else sys.stderr if arguments.json else sys.stdout)
    options = Options(
        arguments.jobs,
        arguments.timeout,
        arguments.objective,
        launcher=_launcher(arguments, settings),
        detach=arguments.detach,
    )
    if arguments.dry_run:
        return _dry_run(arguments, words, options, search, console)
    found, code = (
        resume_sweep(arguments.resume, options, console, arguments.trials, words)
        if arguments.resume
        else start_sweep(words, options, console, search)
    )
    if arguments.json:
        print_json(results_dict(found))
    elif not arguments.detach:
        print_results(found, console)
    return code


def _launcher(arguments: Namespace, settings: dict[str, str]) -> Executor:
    if arguments.resume is not None and arguments.launcher is None and not settings:
        return recorded_launcher(SweepDirectory.open(arguments.resume).read_plan().facts)
    return choose_launcher(arguments.launcher or LocalExecutor.name, settings)


def _dry_run(
    arguments: Namespace, words: list[str], options: Options, search: Search | None, console: PrintableConsole
) -> int:
    if arguments.resume:
        sweep = SweepDirectory.open(arguments.resume)
        plan = changed_plan(sweep.read_plan(), options, console, arguments.trials, words)
        results = [read_job(sweep, job) for job in plan.jobs]
        left = jobs_left(results, bool(words))
        if left or plan.missing:
            check_unchanged(sweep, plan, results, console.say)
    else:
        plan, _ = plan_new(words, options, search, console)
        left = plan.jobs
    if arguments.json:
        print_json(plan_dict(replace(plan, jobs=left)))
    else:
        say("\n".join(plan_lines(plan, left)))
        if left:
            say(f"`{shell_command('check', '--build', *left[0].words)}` also builds the model and reads the data")
    return OK


def _check_sweep(arguments: Namespace) -> Search | None:
    """Return the search that the options ask for; None for a grid or a resumed sweep."""
    problems = [*problems_of_jobs(arguments), *minimum_problems(1, trials=arguments.trials)]
    given = {
        name: value for name in ("sampler", "sampler_seed", "pruner") if (value := getattr(arguments, name)) is not None
    }
    is_new_search = arguments.trials is not None and arguments.resume is None
    if not is_new_search:
        rule = "is for a new search: give --trials too, and no --resume."
        problems += [Problem(f"--{name.replace('_', '-')}", rule, value) for name, value in given.items()]
    raise_problems(problems)
    return Search(arguments.trials, **given) if is_new_search else None


def run_compare(arguments: Namespace) -> int:
    from mpt_cli.compare.report import comparison_dict, print_comparison  # a sweep needs none of it
    from mpt_cli.compare.run import CompareSettings, resume_compare, start_compare

    _check_compare(arguments)
    console = PrintableConsole(None if arguments.quiet else sys.stderr if arguments.json else sys.stdout)
    options = Options(arguments.jobs or 1, arguments.timeout, arguments.objective)
    if arguments.resume is not None:
        found, code = resume_compare(arguments.resume, options, console)
    else:
        measure, (words, script) = CompareSettings(arguments.seeds, arguments.tolerance), _script(arguments.overrides)
        found, code = start_compare(words, measure, options, console, script)
    if arguments.json:
        print_json(comparison_dict(found))
    else:
        print_comparison(found, console)
    return code


def _script(words: list[str]) -> "tuple[list[str], Script | None]":
    """Split the words into overrides and a script; without a script return all words and None."""
    from mpt_cli.compare.comparison import Script

    overrides, rest = split_script(words)
    if not rest or not (rest[0] == "-m" or rest[0].endswith(".py") or Path(rest[0]).is_file()):
        return words, None
    return overrides, Script(rest, script_title(rest), script_settings)


def _check_compare(arguments: Namespace) -> None:
    problems = [*problems_of_jobs(arguments), *minimum_problems(0, tolerance=arguments.tolerance)]
    fixed = (arguments.overrides or None, arguments.jobs, arguments.seeds, arguments.tolerance)
    if arguments.resume is not None and any(value is not None for value in fixed):
        problems.append(
            Problem(
                "--resume",
                "must be given without overrides, -j, --seeds and --tolerance.",
                None,
                "It has those of the comparison; start a new one for others, such as more seeds.",
            )
        )
    raise_problems(problems)
