"""`report`: the page of a run, of a sweep or of a comparison."""

import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.compare.comparison import CompareDirectory, read_comparison
from mpt_cli.compare.report import comparison_dict, print_comparison, write_comparison
from mpt_cli.errors import BAD_DATA, OK, config_error
from mpt_cli.report.history import read_history
from mpt_cli.report.page import write_page
from mpt_cli.report.run_page import headline, resume_facts, run_page
from mpt_cli.settings.search_path import expanded
from mpt_cli.sweep.directory import SweepDirectory, read_results
from mpt_cli.sweep.report import print_results, results_dict, write_results
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.verbs import print_json, say
from mpt_cli.verbs.arguments import PAGE


@dataclass(frozen=True)
class ResultKind:
    """The functions that read, write and show the results of a sweep, or of a comparison."""

    directory: type[SweepDirectory]
    read: Callable[..., Any]
    write: Callable[[Any, Path | None], None]
    as_dict: Callable[[Any], dict[str, Any]]
    print_table: Callable[[Any, PrintableConsole, Path | None], None]


_RESULT_KINDS = (
    ResultKind(SweepDirectory, read_results, write_results, results_dict, print_results),
    ResultKind(CompareDirectory, read_comparison, write_comparison, comparison_dict, print_comparison),
)


def run_report(arguments: Namespace) -> int:
    path = expanded(arguments.directory)
    page = Path(arguments.out) if arguments.out else None
    kind = result_kind(path)
    if kind is not None:
        found = kind.read(kind.directory.open(path), arguments.objective)
        kind.write(found, page)  # without --out all result files
        if arguments.json:
            print_json(kind.as_dict(found))
        else:
            kind.print_table(found, PrintableConsole(sys.stdout), page)
        return OK
    if arguments.objective:
        raise config_error("--objective", "is for a sweep or a comparison.", arguments.objective)
    return _report_run(path, page, arguments.json)


def result_kind(path: Path) -> ResultKind | None:
    """Return the kind of a sweep or comparison directory; None for a run."""
    return next((kind for kind in _RESULT_KINDS if kind.directory(path).plan_json.is_file()), None)


def _report_run(path: Path, page: Path | None, as_json: bool) -> int:
    history = read_history(path)
    page = page or path / PAGE
    write_page(page, run_page(history))
    if as_json:
        print_json(
            {
                "page": str(page),
                "run_dir": str(history.run.path),
                "status": history.status,
                "verdict": history.verdict,
                "missing": history.gaps,
                "not_recorded": history.not_recorded,
            }
        )
    else:
        unseen = [f"not recorded: {sentence}" for sentence in history.not_recorded]
        resume = [f"{label}: {text}" for label, text in resume_facts(history)]
        say("\n  ".join([f"{history.label}: {headline(history)}", *history.gaps, *unseen, *resume]))
        say(f"page  {page}")
    damaged = [str(history.run.path / name) for name in history.damaged]
    if damaged:
        say(f"mpt report: can't be read: {', '.join(damaged)}. The page shows the rest.", sys.stderr)
    return BAD_DATA if damaged else OK
