"""Stands in for the checkpointer where a loop is tried without any."""

from typing import Any

from mpt_cli.training.progress import Stopwatch


class NoCheckpoints:
    """Does nothing, whatever is asked; the run's stopwatch goes all the same."""

    def __init__(self) -> None:
        self.stopwatch = Stopwatch()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None
