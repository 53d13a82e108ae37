"""Prove that a killed run goes on as if nothing had happened: run it whole, run it killed and resumed, compare."""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.errors import MISMATCH, OK, ConfigError, Problem
from mpt_cli.settings import load_settings
from mpt_cli.verbs.common import add_json, add_words, print_json

if TYPE_CHECKING:
    from mpt_cli.runs.verify_resume import ResumeProof

_EXAMPLES = """examples:
  mpt verify-resume conf=digits_mlp trainer.epochs=3
  mpt verify-resume conf=digits_cnn backend=jax trainer.max_steps=60 --at 31"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_words(parser)
    parser.add_argument("--at", type=int, metavar="STEP", help="the step to kill it at; default: a random one")
    parser.add_argument("--output", metavar="DIR", help="keep both runs here; default: they are thrown away")
    add_json(parser)
    parser.epilog = _EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    from mpt_cli.job import with_drawn_seed
    from mpt_cli.runs.verify_resume import verify_resume

    settings = with_drawn_seed(load_settings(arguments.words))
    if (settings.distribute.processes or 1) > 1:
        rule = "must be null or 1 with verify-resume, which kills a run of one process at an exact step."
        raise ConfigError(Problem("distribute.processes", rule, settings.distribute.processes, "Use distribute=none."))
    words = [*arguments.words, f"seed={settings.seed}"]  # the same for both runs
    if arguments.output:
        return _report(verify_resume(words, Path(arguments.output), arguments.at), arguments)
    with tempfile.TemporaryDirectory(prefix="mpt-verify-resume-") as folder:
        return _report(verify_resume(words, Path(folder), arguments.at), arguments)


def _report(proof: "ResumeProof", arguments: argparse.Namespace) -> int:
    if arguments.json:
        identical = proof.difference is None
        print_json({"identical": identical, **asdict(proof), "folder": arguments.output and str(proof.folder)})
    else:
        print(f"killed at step {proof.killed_at} of {proof.steps}, resumed from step {proof.resumed_from}")
        same = "identical: weights, optimizer, loss scale, events, metrics and summary, bit by bit"
        print(same if proof.difference is None else f"NOT the same: {proof.difference}")
    return OK if proof.difference is None else MISMATCH
