"""Train until a step, then kill this very process as `kill -9` would; `mpt verify-resume` calls it."""

import argparse
import os
import signal
import sys

from mpt_cli.settings import load_settings
from mpt_cli.telemetry.sink import Sink
from mpt_cli.verbs.common import add_words


class KillAt(Sink):
    """Nothing is flushed, closed or saved: the process is gone at the end of the call that reaches `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, step: int, epoch: int, phase: str) -> None:
        if step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def configure(parser: argparse.ArgumentParser) -> None:
    add_words(parser)
    parser.add_argument("--at", type=int, required=True, metavar="STEP")
    parser.add_argument("--quiet", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    from mpt_cli import job

    settings = load_settings(arguments.words)
    audience = job.Audience(sys.stderr, [KillAt(arguments.at)])
    return job.train(settings, ["mpt", "train", *arguments.words], audience).exit_code
