"""`report`: one page of a run, of several overlaid, of a sweep or of a comparison."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from mpt_cli.compare.comparison import CompareDirectory, read_comparison
from mpt_cli.compare.report import comparison_dict, print_comparison, write_compare_page, write_comparison
from mpt_cli.errors import OK, ConfigError, DataError, Problem
from mpt_cli.report.history import RunHistory, jumps_sentence, read_history
from mpt_cli.report.page import check_replaceable
from mpt_cli.report.run_page import headline, write_run_page
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.search_path import expanded, shell_command
from mpt_cli.sweep.directory import SweepDirectory, read_results
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.report import print_results, results_dict, write_results, write_sweep_page
from mpt_cli.verbs import print_json, say
from mpt_cli.verbs.arguments import PAGE

Report = Callable[[Sequence[Path], argparse.Namespace], None]
R = TypeVar("R")


@dataclass(frozen=True)
class _Outputs(Generic[R]):
    """How the results of a sweep, or of a comparison, are written and shown."""

    write_page: Callable[[R, Path], None]
    write_all: Callable[[R], None]
    as_dict: Callable[[R], dict[str, Any]]
    print_table: Callable[[R, Screen], None]


def run_report(arguments: argparse.Namespace) -> int:
    paths = [expanded(path) for path in arguments.directories]
    for path in paths:
        _check_possible(path)
    if arguments.out:
        check_replaceable(Path(arguments.out))
    kind = _kind_of(paths[0]) if len(paths) == 1 else None
    report = _report_runs if kind is None else kind[1]
    if report is _report_runs and arguments.objective:
        raise ConfigError(Problem("--objective", "is for a sweep or a comparison.", arguments.objective))
    report(paths, arguments)
    return OK


def _check_possible(path: Path) -> None:
    """DataError for what no file can be called."""
    try:
        if b"\0" not in os.fsencode(path):
            return
    except UnicodeEncodeError:
        pass
    raise DataError("the path of a directory must be valid UTF-8 and hold no NUL.")


def _kind_of(path: Path) -> tuple[SweepDirectory, Report] | None:
    """The directory of a sweep or a comparison, and how it is reported; None of a run."""
    kinds = ((SweepDirectory(path), _report_sweep), (CompareDirectory(path), _report_compare))
    return next((kind for kind in kinds if kind[0].plan_json.is_file()), None)


def sweep_or_comparison(path: Path) -> tuple[SweepDirectory, Callable[[Screen], None]] | None:
    """The directory of a sweep or a comparison, and what prints its results as they stand; None of anything else."""

    def print_sweep(screen: Screen) -> None:
        print_results(read_results(SweepDirectory(path)), screen)

    def print_compare(screen: Screen) -> None:
        print_comparison(read_comparison(CompareDirectory(path)), screen)

    kinds = ((SweepDirectory(path), print_sweep), (CompareDirectory(path), print_compare))
    return next((kind for kind in kinds if kind[0].plan_json.is_file()), None)


def _report_sweep(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    found = read_results(SweepDirectory.open(paths[0]), arguments.objective)
    show = partial(print_results, page=Path(arguments.out) if arguments.out else None)
    _write_and_show(found, _Outputs(write_sweep_page, write_results, results_dict, show), arguments)


def _report_compare(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    found = read_comparison(CompareDirectory.open(paths[0]), arguments.objective)
    _write_and_show(found, _Outputs(write_compare_page, write_comparison, comparison_dict, print_comparison), arguments)


def _write_and_show(found: R, ways: _Outputs[R], arguments: argparse.Namespace) -> None:
    """The page alone where --out says where, else all files; then the table, or JSON."""
    if arguments.out:
        ways.write_page(found, Path(arguments.out))
    else:
        ways.write_all(found)
    if arguments.json:
        print_json(ways.as_dict(found))
    else:
        ways.print_table(found, Screen(sys.stdout))


def _report_runs(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    stories = _stories([run for path in paths for run in _runs_in(path)])
    own = paths[0] / PAGE if len(stories) == 1 else Path(PAGE)
    page = Path(arguments.out) if arguments.out else own
    write_run_page(stories, page)
    if arguments.json:
        runs = [{"run_dir": str(story.run.path), "label": story.label, "status": story.status,
                 "verdict": story.verdict, "missing": story.gaps,
                 "not_recorded": story.not_recorded, "spikes": [spike.step for spike in story.spikes]}
                for story in stories]  # fmt: skip
        print_json({"page": str(page), "runs": runs})
        return
    for story in stories:
        jumps = [jumps_sentence(story.spikes)] if story.spikes else []
        unseen = [f"not recorded: {sentence}" for sentence in story.not_recorded]
        say("\n  ".join([f"{story.label}: {headline(story)}", *jumps, *story.gaps, *unseen]))
    say(f"page  {page}")


def _runs_in(path: Path) -> list[Path]:
    """The run directory itself, or those of the jobs of a sweep or a comparison that began."""
    kind = _kind_of(path)
    if kind is not None:
        runs = [kind[0].run(job) for job in kind[0].read_plan()[0].jobs]
        return [run.path for run in runs if run.config_yaml.is_file()]
    if path.is_dir() and not RunDirectory(path).config_yaml.is_file():
        inside = [entry.parent.name for entry in sorted(path.glob(f"*/{RunDirectory(path).config_yaml.name}"))]
        hint = f" There are runs in it ({len(inside)}): {shell_command('report', path)}/*" if inside else ""
        raise DataError(f"{path} is no directory of a run, a sweep or a comparison: it has no config.yaml, sweep.json "
                        f"or compare.json.{hint}")  # fmt: skip
    return [path]


def _stories(paths: Sequence[Path]) -> list[RunHistory]:
    """Named by their folders, with the one above where two are called the same."""
    names = [path.resolve().name for path in paths]
    labels = [name if names.count(name) == 1 else f"{path.resolve().parent.name}/{name}"
              for name, path in zip(names, paths, strict=True)]  # fmt: skip
    return [read_history(path, label) for path, label in zip(paths, labels, strict=True)]
