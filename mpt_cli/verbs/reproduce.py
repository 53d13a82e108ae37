"""Run recipes or earlier runs again and hold them against what was expected; exit code 5 where that is missed."""

import argparse
import sys
from pathlib import Path
from typing import Any

from mpt_cli.errors import BAD_CONFIG, MISMATCH, OK, ConfigError, DataError, Problem
from mpt_cli.reproduce.collection import Selection, collect, names_run, raise_problems
from mpt_cli.reproduce.history import History
from mpt_cli.reproduce.output import ReproduceReport, ResultPrinter, check_junit, write_for_github, write_junit
from mpt_cli.reproduce.reproduction import Reproduction, RerunLimits, create_output_folder, reproduce
from mpt_cli.reproduce.update import update_recipes
from mpt_cli.settings.search_path import expanded
from mpt_cli.verbs.parser import print_json, say


def run_reproduce(arguments: argparse.Namespace) -> int:
    found = collect(_read_request(arguments))
    if arguments.junit:
        check_junit(Path(arguments.junit))
    printer = ResultPrinter(sys.stderr if arguments.json else sys.stdout)
    results: list[Reproduction] = []
    history: History | None = None
    if arguments.dry_run:
        printer.start(found)
        printer.list_targets(found)
    elif found.targets:
        if arguments.history:
            history = History(expanded(arguments.history), arguments.jobs, drift_fails=arguments.fail_on_drift)
        folder = create_output_folder(arguments.output)
        printer.start(found)

        def tell(result: Reproduction) -> None:
            printer.tell(result)
            if history:
                history.note(result)

        results = reproduce(found.targets, folder, _plan(arguments), tell)
        printer.finish(results)
    outcome = ReproduceReport(found, results, history, arguments.fail_on_drift, arguments.dry_run)
    for line in outcome.history_lines:
        printer.line(line)
    if arguments.junit:
        write_junit(Path(arguments.junit), outcome)
    write_for_github(outcome, sys.stderr if arguments.json else sys.stdout)
    if not found.targets and found.errors:
        raise_problems(found.errors)
    if not found.targets:
        reasons = [f"{name} {reason}" for name, reason in found.left_out.items()]
        reasons += ["no other has what --tag and -k ask for"] if arguments.tag or arguments.keywords else []
        raise ConfigError(Problem("reproduce", "must have something to run, or it would always pass.", None,
                                  f"Left out: {'; '.join(reasons)}." if reasons else ""))  # fmt: skip
    missed = [result for result in results if not result.passed]
    if arguments.json:
        errors = [{"name": error.name, "problems": [vars(each) for each in error.problems]} for error in found.errors]
        print_json({"passed": not missed and not errors, "left_out": found.left_out, "errors": errors,
                    "targets": [target.name for target in found.targets],
                    "results": [_as_dict(result, outcome) for result in results]})  # fmt: skip
    is_met = update_recipes(results, _tell) if arguments.update else not missed
    if history and history.fault:
        raise DataError(history.fault)
    is_met = is_met and not (outcome.fails_on_drift and outcome.drifted)
    return BAD_CONFIG if found.errors else OK if is_met else MISMATCH


def _tell(text: str) -> None:
    say(text, sys.stderr)


def _as_dict(result: Reproduction, outcome: ReproduceReport) -> dict[str, Any]:
    judgement = outcome.judgement(result)
    return {**result.as_dict(), **({"history": judgement.as_dict()} if judgement else {})}


def _plan(arguments: argparse.Namespace) -> RerunLimits:
    return RerunLimits(arguments.jobs, arguments.timeout, arguments.retries, arguments.exitfirst,
                       arguments.fresh_processes)  # fmt: skip


def _read_request(arguments: argparse.Namespace) -> Selection:
    changes = [text for text in arguments.given if "=" in text and not Path(text).exists()]
    names = [text for text in arguments.given if text not in changes]
    problems = _problems(arguments, names, arguments.update and any(map(names_run, names)))
    if problems:
        raise ConfigError(problems)
    return Selection(names, changes, arguments.all, arguments.rtol, arguments.keywords, arguments.tag, arguments.update)


def _problems(arguments: argparse.Namespace, names: list[str], has_run: bool) -> list[Problem]:
    checks = [
        (bool(names) or arguments.all, Problem("NAME", "give recipes, files or run directories, or --all.")),
        (arguments.jobs >= 1, Problem("-j", "must be at least 1.", arguments.jobs)),
        (arguments.rtol >= 0, Problem("--rtol", "must be at least 0.", arguments.rtol)),
        (arguments.retries >= 0, Problem("--retries", "must be at least 0.", arguments.retries)),
        (arguments.timeout is None or arguments.timeout > 0, Problem("--timeout", "must be > 0.", arguments.timeout)),
        (bool(arguments.history) or not arguments.fail_on_drift,
         Problem("--fail-on-drift", "is for a history: give --history FILE too.")),
        (not (arguments.history and arguments.dry_run), Problem("--history", "must be left out with --dry-run.")),
        (not (arguments.update and arguments.dry_run), Problem("--dry-run", "must be left out with --update.")),
        (not (arguments.update and has_run),
         Problem("--update", "rewrites recipes; a run directory is a record and stays as it is.")),
    ]  # fmt: skip
    return [problem for holds, problem in checks if not holds]
