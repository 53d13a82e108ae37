"""`train`: one run; `evaluate`: loss and metrics of the model of a finished run."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from mpt_cli.errors import NUMERICAL, OK
from mpt_cli.settings.load import load_with_notes, placed
from mpt_cli.settings.overrides import without_quotes
from mpt_cli.settings.schema import Settings
from mpt_cli.verbs import print_json, say

if TYPE_CHECKING:
    from mpt_cli.telemetry.record_types import Summary


def run_train(arguments: Namespace) -> int:
    overrides = with_run_configuration(arguments.overrides)
    settings, notes = load_with_notes(overrides)
    if settings.distribute.name != "none" and (code := _follow_unless_first(settings)) is not None:
        return code
    from mpt_cli import training_run  # with what trains: a wrong word is answered before that is loaded
    from mpt_cli.runs.directory import summary_dict

    command = ["mpt", "train", *overrides]
    with _progress_stream(arguments) as stream, training_run.others_released(settings), placed(overrides):
        summary = training_run.train(settings, command, training_run.Reporters(stream), notes)
    if arguments.json:
        print_json(summary_dict(summary))
    if arguments.quiet and summary.exit_code != OK:
        say(f"mpt train: {_format_ending(summary.status, summary.explanation)}", sys.stderr)
    if summary.exit_code == OK and arguments.fail_on_verdict:
        return _judge_strictly(summary, arguments.allow_unchecked)
    return summary.exit_code


def _judge_strictly(summary: "Summary", allow_unchecked: bool) -> int:
    """Return the exit code that --fail-on-verdict asks for; summary.json keeps the one without it."""
    from mpt_cli.telemetry.health_and_verdict import GOOD_VERDICTS, UNCHECKED

    if summary.verdict in (*GOOD_VERDICTS, UNCHECKED if allow_unchecked else None):
        return OK
    say(f"mpt train: --fail-on-verdict: the verdict is {summary.verdict}. {summary.explanation}", sys.stderr)
    return NUMERICAL


@contextmanager
def _progress_stream(arguments: Namespace) -> Iterator[TextIO | None]:
    """Yield the stream for progress. It is a copy of stderr, which is redirected while a framework is imported."""
    if not arguments.quiet and not arguments.json:
        yield None
        return
    target = os.devnull if arguments.quiet else os.dup(2)
    with open(target, "w", encoding=sys.stderr.encoding, errors="backslashreplace") as stream:
        yield stream


def _format_ending(status: str, explanation: str) -> str:
    """Return how the run ended, without repeating its status.

    >>> _format_ending("failed", "DataError: no file"), _format_ending("stopped", "Stopped: loss is nan")
    ('failed: DataError: no file', 'Stopped: loss is nan')
    """
    return explanation if explanation.lower().startswith(status) else f"{status}: {explanation}"


def _follow_unless_first(settings: Settings) -> int | None:
    """Train as one process of several and return its exit code; None in the first process, or alone."""
    from mpt_cli import training_run
    from mpt_cli.engine.distribution import check_process_info, find_process_info

    process_info = find_process_info(settings)
    if process_info is not None:
        check_process_info(settings, process_info)
    if process_info is None or process_info.is_rank0:
        return None
    training_run.follow(settings)
    return OK


def with_run_configuration(overrides: list[str]) -> list[str]:
    """Add the configuration of the run that `resume=RUN_DIR` names, unless `conf=` is given."""
    resumed = [without_quotes(text.partition("=")[2]) for text in overrides if text.startswith("resume=")]
    if not resumed or resumed[-1] in ("auto", "null", "") or any(text.startswith("conf=") for text in overrides):
        return overrides
    from mpt_cli.runs.directory import RunDirectory

    return [f"conf={RunDirectory.open(resumed[-1]).config_yaml}", *overrides]


def run_evaluate(arguments: Namespace) -> int:
    from mpt_cli.trained_model import evaluate  # imports NumPy, which a wrong word of `train` needs not wait for

    metrics = evaluate(arguments.run_dir, arguments.split)
    if arguments.json:
        print_json({"run_dir": arguments.run_dir, "split": arguments.split, "metrics": metrics})
        return OK
    say("\n".join(f"{name:<24}{value:.6g}" for name, value in metrics.items()))
    return OK
