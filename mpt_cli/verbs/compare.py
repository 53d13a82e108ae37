"""`compare`: one recipe under several precisions, side by side."""

import argparse
import sys

from mpt_cli.compare.report import comparison_dict, print_comparison
from mpt_cli.compare.run import CompareSettings, resume_compare, start_compare
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.run import Options
from mpt_cli.verbs.parser import print_json


def run_compare(arguments: argparse.Namespace) -> int:
    _check_compare(arguments)
    screen = Screen(None if arguments.quiet else sys.stderr if arguments.json else sys.stdout)
    options = Options(arguments.jobs or 1, arguments.timeout, arguments.objective, is_fresh=arguments.fresh_processes)
    if arguments.resume is not None:
        found, code = resume_compare(arguments.resume, options, screen)
    else:
        measure = CompareSettings(arguments.seeds, arguments.tolerance)
        found, code = start_compare(arguments.overrides, measure, options, screen)
    if arguments.json:
        print_json(comparison_dict(found))
    else:
        print_comparison(found, screen)
    return code


def _check_compare(arguments: argparse.Namespace) -> None:
    problems = []
    if arguments.jobs is not None and arguments.jobs < 1:
        problems.append(Problem("-j", "must be >= 1.", arguments.jobs))
    if arguments.timeout is not None and not arguments.timeout > 0:
        problems.append(Problem("--timeout", "must be > 0 seconds.", arguments.timeout))
    if arguments.tolerance is not None and not arguments.tolerance >= 0:
        problems.append(Problem("--tolerance", "must be >= 0.", arguments.tolerance))
    fixed = (arguments.overrides or None, arguments.jobs, arguments.seeds, arguments.tolerance)
    if arguments.resume is not None and any(value is not None for value in fixed):
        problems.append(Problem("--resume", "must be given without overrides, -j, --seeds and --tolerance.", None,
                                "The comparison's own stand in its compare.json."))  # fmt: skip
    if problems:
        raise ConfigError(problems)
