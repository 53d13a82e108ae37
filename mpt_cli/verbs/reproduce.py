"""Run recipes or earlier runs again and hold them against what was expected; exit code 5 where that is missed."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.errors import BAD_CONFIG, MISMATCH, OK, ConfigError, Problem
from mpt_cli.verbs.parser import TARGETS, add_config_dir, add_fresh_processes, add_json, print_json, say

if TYPE_CHECKING:
    from mpt_cli.reproduce.collection import Selection
    from mpt_cli.reproduce.reproduction import Reproduction, RerunLimits

_REPRODUCE_EXAMPLES = """examples:
  mpt reproduce digits_mlp overflow -j 2
  mpt reproduce --all --junit results.xml       every recipe, the project's too, that can run on this machine
  mpt reproduce recipes/ 'digits_*' --tag nightly -k "not cnn" -x
  mpt reproduce recipes/ --dry-run              what would run; an unreadable recipe is an error of its own
  mpt reproduce recipes/ --retries 1 --timeout 600
  mpt reproduce runs/digits_cnn/RUN             against its own summary: bit for bit
  mpt reproduce runs/digits_cnn/RUN --rtol 0.02 on another machine: metrics within 2 %
  mpt reproduce ./mine.yaml --update            run it with 3 seeds (or as many as `seeds:` says), and write into the
                                                expect: block what they missed, or the block itself
  mpt reproduce digits_mlp seed=7               with changes

exit code: 0 all came out as expected; 2 a recipe can't be read (the others ran); 5 an expectation was missed"""


def configure_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("given", nargs="*", metavar=TARGETS,
                        help="recipes, recipe files, folders of them, patterns, run directories (./NAME where a recipe "
                        "is called NAME); changes to all of them")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="every recipe that `mpt list` shows and that can run on "
                        "this machine")  # fmt: skip
    parser.add_argument("-k", dest="keywords", default="", metavar="EXPRESSION", help="those whose name or tags hold "
                        "these words, with and, or, not")  # fmt: skip
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="those with this tag (`tags:` of the "
                        "recipe); several: with any of them")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="read them all and list what would run")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end a run after this long; it counts as "
                        "failed")  # fmt: skip
    parser.add_argument("--retries", type=int, default=0, metavar="N", help="run what failed again, up to N times; "
                        "what passes then is reported as flaky")  # fmt: skip
    parser.add_argument("-x", "--exitfirst", action="store_true", help="begin no run after one that failed")
    add_config_dir(parser)
    parser.add_argument("--rtol", type=float, default=0.0, help="how far a metric may be from that of an earlier run, "
                        "as a share of it; default: 0. Counters must always be equal")  # fmt: skip
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="runs at the same time; default: 1")
    add_fresh_processes(parser)
    parser.add_argument("--junit", metavar="FILE", help="write the verdicts as JUnit XML, for CI")
    parser.add_argument("--output", metavar="DIR", help="where the runs go; default: runs/reproduce/TIME-ID")
    parser.add_argument("--update", action="store_true", help="write missed expectations into the recipe files")
    add_json(parser)
    parser.epilog = _REPRODUCE_EXAMPLES


def run_reproduce(arguments: argparse.Namespace) -> int:
    """Run recipes or earlier runs again and hold them against what was expected; exit code 5 where that is missed."""
    from mpt_cli.reproduce.collection import collect, raise_problems
    from mpt_cli.reproduce.output import ResultPrinter, check_junit, write_for_github, write_junit
    from mpt_cli.reproduce.reproduction import create_output_folder, reproduce

    found = collect(_read_request(arguments))
    if arguments.junit:
        check_junit(Path(arguments.junit))
    printer = ResultPrinter(sys.stderr if arguments.json else sys.stdout)
    results: list[Reproduction] = []
    if arguments.dry_run:
        printer.start(found)
        printer.list_targets(found)
    elif found.targets:
        folder = create_output_folder(arguments.output)
        printer.start(found)
        results = reproduce(found.targets, folder, _plan(arguments), printer.tell)
        printer.finish(results)
    if arguments.junit:
        write_junit(Path(arguments.junit), results, found)
    write_for_github(results, found.errors, sys.stderr if arguments.json else sys.stdout)
    if not found.targets and found.errors:
        raise_problems(found.errors)
    missed = [result for result in results if not result.passed]
    if arguments.json:
        errors = [{"name": error.name, "problems": [vars(each) for each in error.problems]} for error in found.errors]
        print_json({"passed": not missed and not errors, "left_out": found.left_out, "errors": errors,
                    "targets": [target.name for target in found.targets],
                    "results": [result.as_dict() for result in results]})  # fmt: skip
    is_met = _update(results) if arguments.update else not missed
    return BAD_CONFIG if found.errors else OK if is_met else MISMATCH


def _plan(arguments: argparse.Namespace) -> "RerunLimits":
    from mpt_cli.reproduce.reproduction import RerunLimits

    return RerunLimits(arguments.jobs, arguments.timeout, arguments.retries, arguments.exitfirst,
                       arguments.fresh_processes)  # fmt: skip


def _read_request(arguments: argparse.Namespace) -> "Selection":
    from mpt_cli.reproduce.collection import Selection, names_run

    changes = [text for text in arguments.given if "=" in text and not Path(text).exists()]
    names = [text for text in arguments.given if text not in changes]
    problems = _problems(arguments, names, any(map(names_run, names)))
    if problems:
        raise ConfigError(problems)
    return Selection(names, changes, arguments.all, arguments.rtol, arguments.keywords, arguments.tag, arguments.update)


def _problems(arguments: argparse.Namespace, names: list[str], has_run: bool) -> "list[Problem]":
    checks = [
        (bool(names) or arguments.all, Problem("NAME", "give recipes, files or run directories, or --all.")),
        (arguments.jobs >= 1, Problem("-j", "must be at least 1.", arguments.jobs)),
        (arguments.rtol >= 0, Problem("--rtol", "must be at least 0.", arguments.rtol)),
        (arguments.retries >= 0, Problem("--retries", "must be at least 0.", arguments.retries)),
        (arguments.timeout is None or arguments.timeout > 0, Problem("--timeout", "must be > 0.", arguments.timeout)),
        (not (arguments.update and arguments.dry_run), Problem("--dry-run", "must be left out with --update.")),
        (not (arguments.update and has_run),
         Problem("--update", "rewrites recipes; a run directory is a record and stays as it is.")),
    ]  # fmt: skip
    return [problem for holds, problem in checks if not holds]


def _update(results: "Sequence[Reproduction]") -> bool:
    """Whether every recipe now expects what came out; a run that failed gives nothing to write."""
    by_recipe: dict[Path, list[Reproduction]] = {}
    for result in results:
        if result.target.recipe is not None:
            by_recipe.setdefault(result.target.recipe, []).append(result)
    updated = [_update_recipe(path, seeds) for path, seeds in by_recipe.items()]  # all of them, also after a failure
    return all(updated)


def _update_recipe(path: Path, seeds: "Sequence[Reproduction]") -> bool:
    """`seeds` are the results of one recipe."""
    from mpt_cli.runs.expectations import first_figures, new_figures, updated_text, write_recipe

    expect = seeds[0].target.expect
    reached = {name: [check.got for result in seeds for check in result.checks if check.name == name]
               for name in dict.fromkeys(check.name for result in seeds for check in result.checks if not check.passed)}
    if not reached and expect:
        return True
    is_lost = any(name not in expect or None in got for name, got in reached.items())
    if is_lost or any(result.child.summary is None for result in seeds):
        say(f"{path}: not updated, because the run failed or has no such value", sys.stderr)
        return False
    before = path.read_text(encoding="utf-8")
    figures = new_figures(expect, reached) if expect else first_figures([each.child.summary or {} for each in seeds])
    after = updated_text(before, figures, is_new=not expect)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), "updated", "", "", 0, "")
    say("\n".join(lines), sys.stderr)
    write_recipe(path, after)
    return True
