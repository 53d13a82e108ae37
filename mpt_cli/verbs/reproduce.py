"""Run recipes or earlier runs again and hold them against what was expected; exit code 5 where that is missed."""

import argparse
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.errors import MISMATCH, OK, ConfigError, Problem
from mpt_cli.verbs.parser import TARGETS, add_json, print_json

if TYPE_CHECKING:
    from mpt_cli.reproduce.reproduction import ReproduceTarget, Reproduction

_REPRODUCE_EXAMPLES = """examples:
  mpt reproduce digits_mlp overflow -j 2
  mpt reproduce --all --junit results.xml       every shipped recipe that can run on this machine
  mpt reproduce runs/digits_cnn/RUN             against its own summary: bit for bit
  mpt reproduce runs/digits_cnn/RUN --rtol 0.02 on another machine: metrics within 2 %
  mpt reproduce ./mine.yaml --update            write what came out into the expect: block
  mpt reproduce digits_mlp seed=7               with changes"""


def configure_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("given", nargs="*", metavar=TARGETS,
                        help="recipes, recipe files, run directories (./NAME where a recipe is called "
                        "NAME); changes to all of them")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="every shipped recipe that can run on this machine")
    parser.add_argument("--rtol", type=float, default=0.0, help="how far a metric may be from that of an earlier run, "
                        "as a share of it; default: 0. Counters must always be equal")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="runs at the same time; default: 1")
    parser.add_argument("--junit", metavar="FILE", help="write the verdicts as JUnit XML, for CI")
    parser.add_argument("--output", metavar="DIR", help="where the runs go; default: runs/reproduce/TIME-ID")
    parser.add_argument("--update", action="store_true", help="write missed expectations into the recipe files")
    add_json(parser)
    parser.epilog = _REPRODUCE_EXAMPLES


def run_reproduce(arguments: argparse.Namespace) -> int:
    """Run recipes or earlier runs again and hold them against what was expected; exit code 5 where that is missed."""
    from mpt_cli.reproduce.output import ResultPrinter, check_junit, write_junit
    from mpt_cli.reproduce.reproduction import create_output_folder, reproduce

    targets, left_out = _read_targets(arguments)
    if arguments.junit:
        check_junit(Path(arguments.junit))
    folder = create_output_folder(arguments.output)
    reporter = ResultPrinter(sys.stderr if arguments.json else sys.stdout)
    reporter.start(targets, left_out)
    results = reproduce(targets, folder, arguments.jobs, reporter.tell)
    missed = [result for result in results if not result.passed]
    reporter.finish(results)
    if arguments.json:
        print_json({"passed": not missed, "left_out": left_out, "results": [result.as_dict() for result in results]})
    if arguments.junit:
        write_junit(Path(arguments.junit), results, left_out)
    if arguments.update:
        return MISMATCH if [result for result in missed if not _update(result)] else OK
    return MISMATCH if missed else OK


def _read_targets(arguments: argparse.Namespace) -> "tuple[list[ReproduceTarget], dict[str, str]]":
    from mpt_cli.reproduce.reproduction import all_targets, find_target, names_run

    changes = [text for text in arguments.given if "=" in text and not Path(text).exists()]
    names = [text for text in arguments.given if text not in changes]
    problems = _problems(arguments, names, any(map(names_run, names)))
    if problems:
        raise ConfigError(problems)
    targets, left_out = all_targets(changes) if arguments.all else ([], {})
    return [*targets, *(find_target(name, changes, arguments.rtol) for name in names)], left_out


def _problems(arguments: argparse.Namespace, names: list[str], has_run: bool) -> "list[Problem]":
    checks = [
        (bool(names) or arguments.all, Problem("NAME", "give recipes, files or run directories, or --all.")),
        (arguments.jobs >= 1, Problem("-j", "must be at least 1.", arguments.jobs)),
        (arguments.rtol >= 0, Problem("--rtol", "must be at least 0.", arguments.rtol)),
        (not (arguments.update and has_run),
         Problem("--update", "rewrites recipes; a run directory is a record and stays as it is.")),
    ]  # fmt: skip
    return [problem for holds, problem in checks if not holds]


def _update(result: "Reproduction") -> bool:
    """Whether the recipe now expects what came out; a run that failed gives nothing to write."""
    from mpt_cli.runs.expectations import new_figures, updated_text, write_recipe

    target, missed = result.target, [check for check in result.checks if not check.passed]
    if target.recipe is None or any(check.name not in target.expect or check.got is None for check in missed):
        print(f"{target.name}: not updated, because the run failed or has no such value", file=sys.stderr)
        return False
    before = target.recipe.read_text(encoding="utf-8")
    after = updated_text(before, new_figures(target.expect, missed))
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(target.recipe), "updated", "", "", 0, "")
    print("\n".join(lines), file=sys.stderr)
    write_recipe(target.recipe, after)
    return True
