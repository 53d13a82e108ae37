"""One run: `train`, and `verify-resume`, which proves that a killed one goes on as if nothing had happened."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from mpt_cli.errors import MISMATCH, OK, ConfigError, Problem
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.sink import Sink
from mpt_cli.verbs.parser import add_fresh_processes, add_json, add_overrides, print_json, say

if TYPE_CHECKING:
    from mpt_cli.reproduce.resume_proof import ResumeProof

_TRAIN_EXAMPLES = """examples:
  mpt train conf=digits_cnn
  mpt train conf=digits_cnn policy=mixed_bfloat16 trainer.epochs=3 seed=1
  mpt train conf=digits_cnn loss_scale=fixed loss_scale.initial_scale=2**10
  mpt train conf=digits_mlp model.builder=my_models.py:build_net 'model.kwargs={depth: 3}'
  mpt train conf=./mine.yaml run_dir=runs/first --json > summary.json
  mpt train conf=runs/digits_cnn/RUN/config.yaml     the same run again
  mpt train resume=runs/digits_cnn/RUN               go on where that run stopped
  mpt train conf=digits_cnn run_dir=r resume=auto    begin or go on: the same command every time"""


def configure_train(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser)
    parser.epilog = _TRAIN_EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object; progress to stderr")
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def run_train(arguments: argparse.Namespace) -> int:
    """Train one model and leave a run directory with its configuration, metrics, events, summary and model."""
    from mpt_cli.jobs.fork_server import start_anew_unless
    from mpt_cli.settings import load_settings

    overrides = with_configuration_of_run(arguments.overrides)
    settings = load_settings(overrides)
    start_anew_unless(settings.backend.name)
    if settings.distribute.name != "none" and (code := _as_one_of_several(settings, arguments, overrides)) is not None:
        return code
    from mpt_cli import job
    from mpt_cli.jobs import launch
    from mpt_cli.runs.directory import summary_dict
    from mpt_cli.sweep.block import Block, read_block

    command = ["mpt", "train", *overrides]
    is_swept = read_block(overrides) != Block()
    with _stream_of(arguments) as stream, launch.others_released(settings):
        if is_swept:
            line = f"{settings.recipe}: this is one run; what its sweep: block varies, `mpt sweep` runs"
            say(line, stream)
        summary = job.train(settings, command, job.Reporters(stream))
    if arguments.json:
        print_json(summary_dict(summary))
    if arguments.quiet and summary.exit_code != OK:
        say(f"mpt train: {_format_ending(summary.status, summary.explanation)}", sys.stderr)
    return summary.exit_code


@contextmanager
def _stream_of(arguments: argparse.Namespace) -> Iterator[TextIO | None]:
    """Where progress goes. Not sys.stderr itself, which leads elsewhere while a framework is imported."""
    if not arguments.quiet and not arguments.json:
        yield None
        return
    target = os.devnull if arguments.quiet else os.dup(2)
    with open(target, "w", encoding=sys.stderr.encoding, errors="backslashreplace") as stream:
        yield stream


def _format_ending(status: str, explanation: str) -> str:
    """
    >>> _format_ending("failed", "DataError: no file"), _format_ending("stopped", "Stopped: loss is nan")
    ('failed: DataError: no file', 'Stopped: loss is nan')
    """
    return explanation if explanation.lower().startswith(status) else f"{status}: {explanation}"


def _as_one_of_several(settings: Settings, arguments: argparse.Namespace, overrides: list[str]) -> int | None:
    """The exit code where this process starts the others of a run or is one of those; None where it is the first."""
    from mpt_cli.engine.distribution import check_process_info, find_process_info
    from mpt_cli.jobs import launch

    if launch.must_launch(settings):
        from mpt_cli.job import with_seed_of_run

        flags = [flag for flag in ("--json", "--quiet") if getattr(arguments, flag[2:])]
        return launch.launch(settings, [*overrides, f"seed={with_seed_of_run(settings).seed}", *flags])
    process_info = find_process_info(settings)
    if process_info is not None:
        check_process_info(settings, process_info)
    if process_info is None or process_info.is_rank0:
        return None
    from mpt_cli import job

    job.follow(settings)
    return OK


def with_configuration_of_run(overrides: list[str]) -> list[str]:
    """`resume=RUN_DIR` without `conf=` goes on with the configuration of that run."""
    resumed = [text.removeprefix("resume=").strip("'\"") for text in overrides if text.startswith("resume=")]
    if not resumed or resumed[-1] in ("auto", "null", "") or any(text.startswith("conf=") for text in overrides):
        return overrides
    from mpt_cli.runs.directory import RunDirectory

    return [f"conf={RunDirectory.open(resumed[-1]).config_yaml}", *overrides]


class KillAt(Sink):
    """Nothing is flushed, closed or saved: the process is gone at the end of the call that reaches `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, step: int, epoch: int, phase: str) -> None:
        if step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def configure_killed(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser)
    parser.add_argument("--at", type=int, required=True, metavar="STEP")
    parser.add_argument("--quiet", action="store_true")


def run_killed(arguments: argparse.Namespace) -> int:
    """Train until a step, then kill this very process as `kill -9` would; `mpt verify-resume` calls it."""
    from mpt_cli import job
    from mpt_cli.jobs.fork_server import start_anew_unless
    from mpt_cli.settings import load_settings

    settings = load_settings(arguments.overrides)
    start_anew_unless(settings.backend.name)
    reporters = job.Reporters(sys.stderr, [KillAt(arguments.at)])
    return job.train(settings, ["mpt", "train", *arguments.overrides], reporters).exit_code


_VERIFY_RESUME_EXAMPLES = """examples:
  mpt verify-resume conf=digits_mlp trainer.epochs=3
  mpt verify-resume conf=digits_cnn backend=jax trainer.max_steps=60 --at 31"""


def configure_verify_resume(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser)
    parser.add_argument("--at", type=int, metavar="STEP", help="the step to kill it at; default: a random one")
    add_fresh_processes(parser)
    parser.add_argument("--output", metavar="DIR", help="keep both runs here; default: they are thrown away")
    add_json(parser)
    parser.epilog = _VERIFY_RESUME_EXAMPLES


def run_verify_resume(arguments: argparse.Namespace) -> int:
    """Prove that a killed run goes on as if nothing had happened: run it whole, run it killed and resumed, compare."""
    from mpt_cli.job import with_drawn_seed
    from mpt_cli.reproduce.resume_proof import verify_resume
    from mpt_cli.settings import load_settings

    settings = with_drawn_seed(load_settings(arguments.overrides))
    if (settings.distribute.processes or 1) > 1:
        rule = "must be null or 1 with verify-resume, which kills a run of one process at an exact step."
        raise ConfigError(Problem("distribute.processes", rule, settings.distribute.processes, "Use distribute=none."))
    overrides = [*arguments.overrides, f"seed={settings.seed}"]  # the same for both runs
    framework = None if arguments.fresh_processes else settings.backend.name
    if arguments.output:
        return _print_proof(verify_resume(overrides, Path(arguments.output), arguments.at, framework), arguments)
    with tempfile.TemporaryDirectory(prefix="mpt-verify-resume-") as folder:
        return _print_proof(verify_resume(overrides, Path(folder), arguments.at, framework), arguments)


def _print_proof(proof: "ResumeProof", arguments: argparse.Namespace) -> int:
    if arguments.json:
        identical = proof.difference is None
        print_json({"identical": identical, **asdict(proof), "folder": arguments.output and str(proof.folder)})
    else:
        print(f"killed at step {proof.killed_at} of {proof.steps}, resumed from step {proof.resumed_from}")
        same = "identical: weights, optimizer, loss scale, events, metrics and summary, bit by bit"
        say(same if proof.difference is None else f"NOT the same: {proof.difference}")
    return OK if proof.difference is None else MISMATCH
