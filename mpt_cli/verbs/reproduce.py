"""`reproduce`: run recipes or earlier runs again and compare with what was expected; with `--resume-check` check that
a killed run continues as if nothing had happened. Exit code 5 if a check fails.
"""

import os
import signal
import sys
import tempfile
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from mpt_cli.errors import BAD_CONFIG, MISMATCH, OK, Problem, config_error, raise_problems, worst_code
from mpt_cli.jobs.local_processes import Limits
from mpt_cli.reproduce.collection import Selection, collect
from mpt_cli.reproduce.output import ResultPrinter, write_junit
from mpt_cli.reproduce.reproduction import (
    Outcomes,
    Reproduction,
    reproduce,
    verify_resume,
)
from mpt_cli.runs.directory import DEFAULT_PARENT, random_name
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.search_path import DEFAULTS, expanded
from mpt_cli.telemetry.sink_interface import Sink
from mpt_cli.training_run import Reporters, train, with_drawn_seed
from mpt_cli.verbs import minimum_problems, print_json, problems_of_jobs, say, verb_parser


def run_reproduce(arguments: Namespace) -> int:
    os.environ[DEFAULTS] = ""  # a run that is compared with an earlier one uses none of the user's default files
    junit = Path(arguments.junit or "")
    if junit.is_file() and junit.read_bytes().startswith(b"<?xml"):  # a recipe, if the file was left out, stays
        junit.unlink()  # an earlier reproduction's file would be mistaken for the present one
    if arguments.resume_check:
        return _check_resume(arguments)
    found = collect(_read_request(arguments))
    outcomes = Outcomes()
    results: list[Reproduction] = []

    def write() -> None:
        if arguments.junit and not arguments.dry_run:
            write_junit(junit, found, outcomes)

    def tell_start(name: str, run_dir: Path) -> None:
        printer.line(f"{name}: runs in {run_dir}")
        write()

    def tell(result: Reproduction) -> None:
        printer.show_result(result)
        write()

    write()  # for the case that this process is killed
    printer = ResultPrinter(sys.stderr if arguments.json or not found.targets else sys.stdout, found)
    if not (found.targets or found.errors):
        raise config_error("NAME", f"nothing to run: {len(found.left_out)} left out, see above.")
    for error in found.errors:
        printer.line(f"error: {error}")
    if arguments.dry_run:
        printer.list_targets()
    else:
        limits = Limits(arguments.jobs, arguments.timeout)
        output = arguments.output or f"{DEFAULT_PARENT}/reproduce/{random_name()}"
        try:
            reproduce(found.targets, expanded(output), limits, arguments.retries, outcomes, tell_start, tell)
        finally:  # also after a signal
            results = [outcomes.results[number] for number in sorted(outcomes.results)]
            printer.finish(results)
            printer.show_unfinished(outcomes)
    if arguments.json:
        print_json(
            {
                "passed": all(result.passed for result in results) and not found.errors,
                "left_out": found.left_out,
                "errors": [
                    {"name": error.name, "problems": [each.as_dict() for each in error.problems]}
                    for error in found.errors
                ],
                "targets": [target.name for target in found.targets],
                "results": [result.as_dict() for result in results],
            }
        )
    return BAD_CONFIG if found.errors else worst_code(result.exit_code for result in results)


def _read_request(arguments: Namespace) -> Selection:
    names, changes = _names_and_changes(arguments)
    checks = [
        (names or arguments.all, Problem("NAME", "give recipes, files or run directories, or --all.")),
        (arguments.at is None, Problem("--at", "is for --resume-check.", arguments.at)),
    ]
    problems = [problem for holds, problem in checks if not holds]
    problems += problems_of_jobs(arguments)
    problems += minimum_problems(0, rtol=arguments.rtol, retries=arguments.retries)
    raise_problems(problems)
    options = [
        f"--{name}={value}"
        for name, value in _given_options(arguments).items()
        if name in ("jobs", "output", "retries", "rtol", "timeout")
    ]
    options += [f"--config-dir={folder}" for folder in arguments.config_dir]
    return Selection(names, changes, arguments.all, arguments.rtol, arguments.keywords, options)


def _given_options(arguments: Namespace) -> dict[str, object]:
    """Return the values that differ from their defaults."""
    usual = verb_parser("reproduce")
    return {name: value for name, value in vars(arguments).items() if value != usual.get_default(name)}


def _names_and_changes(arguments: Namespace) -> tuple[list[str], list[str]]:
    changes = [text for text in arguments.given if "=" in text and not Path(text).exists()]
    return [text for text in arguments.given if text not in changes], changes


@dataclass
class KillAt(Sink):
    """A callback that kills the process at the end of the call that reaches `step`: nothing is flushed or saved."""

    step: int

    def progress(self, step: int, epoch: int, phase: str) -> None:
        if step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_killed(arguments: Namespace) -> int:
    settings = load_settings(arguments.overrides)
    reporters = Reporters(sys.stderr, [KillAt(arguments.at)])
    return train(settings, ["mpt", "train", *arguments.overrides], reporters).exit_code


def _check_resume(arguments: Namespace) -> int:
    """Check the resume of one recipe, given by its name or by conf=."""
    names, changes = _names_and_changes(arguments)
    allowed = {"given", "at", "output", "json", "resume_check", "config_dir"}
    if len(names) > 1 or _given_options(arguments).keys() - allowed:
        raise config_error("--resume-check", "takes one recipe, its changes, --at, --output and --json, no more.")
    words = [*(f"conf={name}" for name in names), *changes]
    settings = with_drawn_seed(load_settings(words))
    overrides = [*words, f"seed={settings.seed}"]  # the same for both runs
    output = arguments.output
    with nullcontext(output) if output else tempfile.TemporaryDirectory() as folder:
        proof = verify_resume(overrides, Path(folder), arguments.at)
    if arguments.json:
        print_json({"identical": not proof.difference, **asdict(proof), "folder": output})
    else:
        print(f"killed at step {proof.killed_at} of {proof.steps}, resumed from step {proof.resumed_from}")
        same = "identical: weights, optimizer, loss scale, events, metrics and summary, bit by bit"
        say(f"NOT the same: {proof.difference}" if proof.difference else same)
    return MISMATCH if proof.difference else OK
