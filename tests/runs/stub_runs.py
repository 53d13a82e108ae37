"""Stands in for the runs that `mpt reproduce` starts: what each comes to is said by the test."""

import contextlib
import signal
from collections.abc import Callable
from typing import Any

from mpt_cli.jobs.local_processes import Command, Running

SUMMARY: dict[str, Any] = {
    "status": "finished",
    "exit_code": 0,
    "verdict": "healthy",
    "explanation": "All 345 steps were applied.",
    "steps_seen": 345,
    "applied_steps": 345,
    "skipped_steps": 0,
    "final_loss_scale": 32768.0,
    "seconds": 1.5,
    "metrics": {"val_accuracy": 0.98, "val_loss": 0.1},
}
RECIPE = """# mine
recipe: mine
defaults:
  - model: mlp
  - data: digits
expect:
  val_accuracy: {min: 0.97}  # of ten runs
  val_loss:
    max: 0.2   # generous
  steps_seen: 345
"""


class StubRun(Running):
    """A run that has ended, or (None) that ends once it is asked to."""

    seconds = 1.0
    code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def _signal(self, number: signal.Signals):
        self.code = 143 if number == signal.SIGTERM else -number


class StubExecutor(contextlib.nullcontext):
    """Runs nothing: `run` says what a command comes to."""

    poll_seconds = 0.01
    run: Callable[[Command], int | None]

    def __enter__(self) -> "StubExecutor":
        return self

    def start(self, command: Command) -> StubRun:
        run = StubRun(command)
        run.code = self.run(command)
        return run
