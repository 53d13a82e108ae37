"""`verify-resume`: proof that a killed run goes on as if nothing had happened."""

import argparse
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from mpt_cli.errors import MISMATCH, OK, ConfigError, Problem
from mpt_cli.jobs.fork_server import start_anew_unless
from mpt_cli.reproduce.resume_proof import ResumeProof, verify_resume
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.sink import Sink
from mpt_cli.training_run import Reporters, train, with_drawn_seed
from mpt_cli.verbs.parser import print_json, say


class KillAt(Sink):
    """Nothing is flushed, closed or saved: the process is gone at the end of the call that reaches `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, step: int, epoch: int, phase: str) -> None:
        if step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_killed(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.overrides)
    start_anew_unless(settings.backend.name)
    reporters = Reporters(sys.stderr, [KillAt(arguments.at)])
    return train(settings, ["mpt", "train", *arguments.overrides], reporters).exit_code


def run_verify_resume(arguments: argparse.Namespace) -> int:
    from mpt_cli.engine.backend import framework_of

    settings = with_drawn_seed(load_settings(arguments.overrides))
    if (settings.distribute.processes or 1) > 1:
        rule = "must be null or 1 with verify-resume, which kills a run of one process at an exact step."
        raise ConfigError(Problem("distribute.processes", rule, settings.distribute.processes, "Use distribute=none."))
    overrides = [*arguments.overrides, f"seed={settings.seed}"]  # the same for both runs
    framework = None if arguments.fresh_processes else framework_of(settings)
    if arguments.output:
        return _print_proof(verify_resume(overrides, Path(arguments.output), arguments.at, framework), arguments)
    with tempfile.TemporaryDirectory(prefix="mpt-verify-resume-") as folder:
        return _print_proof(verify_resume(overrides, Path(folder), arguments.at, framework), arguments)


def _print_proof(proof: ResumeProof, arguments: argparse.Namespace) -> int:
    if arguments.json:
        identical = proof.difference is None
        print_json({"identical": identical, **asdict(proof), "folder": arguments.output and str(proof.folder)})
    else:
        print(f"killed at step {proof.killed_at} of {proof.steps}, resumed from step {proof.resumed_from}")
        same = "identical: weights, optimizer, loss scale, events, metrics and summary, bit by bit"
        say(same if proof.difference is None else f"NOT the same: {proof.difference}")
    return OK if proof.difference is None else MISMATCH
