"""What is made of finished runs: `report`, `evaluate`, `export`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mpt_cli.errors import OK, ConfigError, DataError, Problem
from mpt_cli.settings.search_path import expanded, shell_command
from mpt_cli.verbs.parser import add_best, add_json, print_json, say

if TYPE_CHECKING:
    from mpt_cli.report.history import RunHistory
    from mpt_cli.sweep.directory import SweepDirectory
    from mpt_cli.sweep.progress import Screen

_REPORT_EXAMPLES = """examples:
  mpt report runs/digits_cnn/RUN                    report.html in it, and its pictures in report_pictures/
  mpt report runs/digits_mlp/* --out all.html       runs overlaid
  mpt report sweeps/digits_mlp/SWEEP --objective best_metrics.val_accuracy
  mpt report sweeps/digits_mlp/FIRST sweeps/digits_mlp/SECOND      ranked together, and what differs between them
  mpt report compares/digits_cnn/COMPARE

A run that is still going on, was killed or has damaged files gets a page that says what is missing."""
PAGE = "report.html"
Report = Callable[[Sequence[Path], argparse.Namespace], None]
R = TypeVar("R")


@dataclass(frozen=True)
class _Outputs(Generic[R]):
    """How the results of a sweep, or of a comparison, are written and shown."""

    write_page: Callable[[R, Path], None]
    write_all: Callable[[R], None]
    as_dict: Callable[[R], dict[str, Any]]
    print_table: "Callable[[R, Screen], None]"


def configure_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directories", nargs="+", metavar="RUN|SWEEP|COMPARE", help="what mpt train, sweep or compare "
                        "wrote; of several, all their runs in one page, and sweeps are ranked together")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help=f"where the page goes; default: {PAGE} in the directory, of "
                        f"several {PAGE} here")  # fmt: skip
    parser.add_argument("--objective", metavar="NAME[:min|:max]", help="rank a sweep, or compare, by something else")
    add_json(parser)
    parser.epilog = _REPORT_EXAMPLES


def run_report(arguments: argparse.Namespace) -> int:
    """One page of a run, of several runs overlaid, of sweeps or of a comparison: opens from disk, needs no network."""
    from mpt_cli.report.page import check_replaceable

    paths = [expanded(path) for path in arguments.directories]
    if arguments.out:
        check_replaceable(Path(arguments.out))
    kinds = [_kind_of(path) for path in paths]
    kind = kinds[0] if len(paths) == 1 else None
    report = _report_runs if kind is None else kind[1]
    if len(paths) > 1 and all(each is not None and each[1] is _report_sweep for each in kinds):
        report = _report_joint
    if report is _report_runs and arguments.objective:
        raise ConfigError(Problem("--objective", "is for a sweep or a comparison.", arguments.objective))
    report(paths, arguments)
    return OK


def _kind_of(path: Path) -> "tuple[SweepDirectory, Report] | None":
    """The directory of a sweep or a comparison, and how it is reported; None of a run."""
    from mpt_cli.compare.plan import CompareDirectory
    from mpt_cli.sweep.directory import SweepDirectory

    kinds = ((SweepDirectory(path), _report_sweep), (CompareDirectory(path), _report_compare))
    return next((kind for kind in kinds if kind[0].plan_json.is_file()), None)


def sweep_or_comparison(path: Path) -> "tuple[SweepDirectory, Callable[[Screen], None]] | None":
    """The directory of a sweep or a comparison, and what prints its results as they stand; None of anything else."""
    from mpt_cli.compare.plan import CompareDirectory
    from mpt_cli.sweep.directory import SweepDirectory, read_results

    def print_sweep(screen: "Screen") -> None:
        from mpt_cli.sweep.report import print_results

        print_results(read_results(SweepDirectory(path)), screen)

    def print_compare(screen: "Screen") -> None:
        from mpt_cli.compare.report import print_comparison
        from mpt_cli.compare.results import read_comparison

        print_comparison(read_comparison(CompareDirectory(path)), screen)

    kinds = ((SweepDirectory(path), print_sweep), (CompareDirectory(path), print_compare))
    return next((kind for kind in kinds if kind[0].plan_json.is_file()), None)


def _report_sweep(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    from mpt_cli.sweep.directory import SweepDirectory, read_results
    from mpt_cli.sweep.report import print_results, results_dict, write_results, write_sweep_page

    found = read_results(SweepDirectory.open(paths[0]), arguments.objective)
    _write_and_show(found, _Outputs(write_sweep_page, write_results, results_dict, print_results), arguments)


def _report_joint(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    from mpt_cli.sweep.joint import Joint, read_joint
    from mpt_cli.sweep.report import print_results, results_dict, write_sweep_page

    page = Path(arguments.out or PAGE)

    def show(joint: Joint, screen: "Screen") -> None:
        print_results(joint.found, screen)
        for number, line in enumerate(joint.differences):
            screen.say(f"{'' if number else 'differs':<11}{line}")
        screen.say(f"{'page':<11}{page}")

    ways = _Outputs[Joint](
        lambda joint, path: write_sweep_page(joint.found, path), lambda joint: write_sweep_page(joint.found, page),
        lambda joint: {**results_dict(joint.found), "sweeps": [str(each.path) for each in joint.found.parts],
                       "differences": joint.differences}, show,
    )  # fmt: skip
    _write_and_show(read_joint(paths, arguments.objective), ways, arguments)


def _report_compare(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    from mpt_cli.compare.plan import CompareDirectory
    from mpt_cli.compare.report import comparison_dict, print_comparison, write_compare_page, write_comparison
    from mpt_cli.compare.results import read_comparison

    found = read_comparison(CompareDirectory.open(paths[0]), arguments.objective)
    _write_and_show(found, _Outputs(write_compare_page, write_comparison, comparison_dict, print_comparison), arguments)


def _write_and_show(found: R, ways: _Outputs[R], arguments: argparse.Namespace) -> None:
    """The page alone where --out says where, else all files; then the table, or JSON."""
    from mpt_cli.sweep.progress import Screen

    if arguments.out:
        ways.write_page(found, Path(arguments.out))
    else:
        ways.write_all(found)
    if arguments.json:
        print_json(ways.as_dict(found))
    else:
        ways.print_table(found, Screen(sys.stdout))


def _report_runs(paths: Sequence[Path], arguments: argparse.Namespace) -> None:
    from mpt_cli.report.run_page import headline, write_run_page

    stories = _stories([run for path in paths for run in _runs_in(path)])
    own = paths[0] / PAGE if len(stories) == 1 else Path(PAGE)
    page = Path(arguments.out) if arguments.out else own
    write_run_page(stories, page)
    if arguments.json:
        runs = [{"run_dir": str(story.run.path), "label": story.label, "status": story.status,
                 "verdict": story.verdict, "missing": story.gaps} for story in stories]  # fmt: skip
        print_json({"page": str(page), "runs": runs})
        return
    for story in stories:
        say("\n  ".join([f"{story.label}: {headline(story)}", *story.gaps]))
    say(f"page  {page}")


def _runs_in(path: Path) -> list[Path]:
    """The run directory itself, or those of the jobs of a sweep or a comparison that began."""
    from mpt_cli.runs.directory import RunDirectory

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


def _stories(paths: Sequence[Path]) -> "list[RunHistory]":
    """Named by their folders, with the one above where two are called the same."""
    from mpt_cli.report.history import read_history

    names = [path.resolve().name for path in paths]
    labels = [name if names.count(name) == 1 else f"{path.resolve().parent.name}/{name}"
              for name, path in zip(names, paths, strict=True)]  # fmt: skip
    return [read_history(path, label) for path, label in zip(paths, labels, strict=True)]


def configure_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, as in runs/digits_cnn/RUN")
    parser.add_argument("--split", choices=("validation", "train"), default="validation", help="default: validation")
    add_best(parser)
    add_json(parser)
    parser.epilog = "example:\n  mpt evaluate runs/digits_cnn/RUN --json"


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Loss and metrics of a finished run's model, on the data of that run."""
    from mpt_cli import evaluation

    metrics, best = evaluation.evaluate(arguments.run_dir, arguments.split, arguments.best)
    if arguments.json:
        origin = {"best": asdict(best)} if best else {}
        print_json({"run_dir": arguments.run_dir, "split": arguments.split, **origin, "metrics": metrics})
        return OK
    if best:
        say(f"{'best epoch':<24}{best.epoch}, step {best.step}: {best.monitor} {best.value:.6g} in training")
    say("\n".join(f"{name:<24}{value:.6g}" for name, value in metrics.items()))
    return OK


def configure_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", help="a run directory, as in runs/digits_cnn/RUN")
    parser.add_argument(
        "--format", choices=("keras", "savedmodel", "onnx"), default="keras", help="default: keras; onnx needs tf2onnx"
    )
    parser.add_argument("--output", metavar="PATH", help="where to; default: inside the run directory")
    add_best(parser)
    add_json(parser)
    parser.epilog = "example:\n  mpt export runs/digits_cnn/RUN --format savedmodel --output served/digits"


def run_export(arguments: argparse.Namespace) -> int:
    """Write a finished run's model in another format. Nothing that exists is overwritten."""
    from mpt_cli.export import export

    path = export(arguments.run_dir, arguments.format, arguments.output, arguments.best)
    if arguments.json:
        print_json({"run_dir": arguments.run_dir, "format": arguments.format, "path": str(path)})
    else:
        say(str(path))
    return OK
