"""`report`: one page of a run, of several overlaid, of a sweep or of a comparison."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.compare.comparison import CompareDirectory, read_comparison
from mpt_cli.compare.report import comparison_dict, print_comparison, write_comparison
from mpt_cli.errors import BAD_DATA, OK, ConfigError, DataError, Problem
from mpt_cli.report.history import RunHistory, read_history
from mpt_cli.report.page import check_replaceable
from mpt_cli.report.run_page import headline, write_run_page
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.search_path import expanded, shell_command
from mpt_cli.sweep.directory import SweepDirectory, read_results
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.report import print_results, results_dict, write_results
from mpt_cli.verbs import print_json, say
from mpt_cli.verbs.arguments import PAGE


@dataclass(frozen=True)
class ResultKind:
    """How the results of a sweep, or of a comparison, are read, written and shown."""

    directory: type[SweepDirectory]
    read: Callable[..., Any]
    write: Callable[[Any, Path | None], None]
    as_dict: Callable[[Any], dict[str, Any]]
    print_table: Callable[[Any, Screen, Path | None], None]


_RESULT_KINDS = (
    ResultKind(SweepDirectory, read_results, write_results, results_dict, print_results),
    ResultKind(CompareDirectory, read_comparison, write_comparison, comparison_dict, print_comparison),
)


def run_report(arguments: argparse.Namespace) -> int:
    paths = [expanded(path) for path in arguments.directories]
    page = Path(arguments.out) if arguments.out else None
    if page is not None:
        check_replaceable(page)
    kind = result_kind(paths[0]) if len(paths) == 1 else None
    if kind is not None:
        _report_results(kind, paths[0], page, arguments)
    elif arguments.objective:
        raise ConfigError(Problem("--objective", "is for a sweep or a comparison.", arguments.objective))
    else:
        return _report_runs(paths, page, arguments)
    return OK


def result_kind(path: Path) -> ResultKind | None:
    """Return the kind of a sweep or comparison directory; None for a run."""
    return next((kind for kind in _RESULT_KINDS if kind.directory(path).plan_json.is_file()), None)


def _report_results(kind: ResultKind, path: Path, page: Path | None, arguments: argparse.Namespace) -> None:
    """Write the page to --out, or all result files without it; then print the table, or JSON."""
    found = kind.read(kind.directory.open(path), arguments.objective)
    kind.write(found, page)
    if arguments.json:
        print_json(kind.as_dict(found))
    else:
        kind.print_table(found, Screen(sys.stdout), page)


def _report_runs(paths: Sequence[Path], page: Path | None, arguments: argparse.Namespace) -> int:
    histories = _read_histories([run for path in paths for run in _run_directories(path)])
    page = page or (paths[0] / PAGE if len(histories) == 1 else Path(PAGE))
    write_run_page(histories, page)
    if arguments.json:
        runs = [
            {
                "run_dir": str(history.run.path),
                "label": history.label,
                "status": history.status,
                "verdict": history.verdict,
                "missing": history.gaps,
                "not_recorded": history.not_recorded,
            }
            for history in histories
        ]
        print_json({"page": str(page), "runs": runs})
    for history in [] if arguments.json else histories:
        unseen = [f"not recorded: {sentence}" for sentence in history.not_recorded]
        say("\n  ".join([f"{history.label}: {headline(history)}", *history.gaps, *unseen]))
    if not arguments.json:
        say(f"page  {page}")
    damaged = [str(history.run.path / name) for history in histories for name in history.damaged]
    if damaged:
        say(f"mpt report: can't be read: {', '.join(damaged)}. The page shows the rest.", sys.stderr)
    return BAD_DATA if damaged else OK


def _run_directories(path: Path) -> list[Path]:
    """Return the run directory itself, or those of the jobs of a sweep or comparison that have started."""
    kind = result_kind(path)
    if kind is not None:
        directory = kind.directory(path)
        runs = [directory.run(job) for job in directory.read_plan().jobs]
        return [run.path for run in runs if run.config_yaml.is_file()]
    if path.is_dir() and not RunDirectory(path).config_yaml.is_file():
        inside = [entry.parent.name for entry in sorted(path.glob(f"*/{RunDirectory(path).config_yaml.name}"))]
        hint = f" There are runs in it ({len(inside)}): {shell_command('report', path)}/*" if inside else ""
        raise DataError(
            f"{path} is not the directory of a run, a sweep or a comparison: it has no config.yaml, sweep.json "
            f"or compare.json.{hint}"
        )
    return [RunDirectory.open(path).path]


def _read_histories(paths: Sequence[Path]) -> list[RunHistory]:
    """Read the runs, labelled by their folders; where two have the same name, the folder above is added."""
    names = [path.resolve().name for path in paths]
    labels = [
        name if names.count(name) == 1 else f"{path.resolve().parent.name}/{name}"
        for name, path in zip(names, paths, strict=True)
    ]
    return [read_history(path, label) for path, label in zip(paths, labels, strict=True)]
