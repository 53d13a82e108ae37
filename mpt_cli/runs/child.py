"""One run in a process of its own, as the shell would start it: no run inherits anything of another."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.summary import read_json, read_summary


@dataclass(frozen=True)
class ChildRun:
    """How it ended. `exit_code` is negative for a signal; `words` are what it said last."""

    run: RunDirectory
    exit_code: int
    words: str

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of its summary.json; None where it didn't come to one.

        One that tells another exit code is that of another run, or of an attempt before.
        """
        try:
            found = read_summary(self.run.summary_json)
        except DataError:
            return None
        return found if found.get("exit_code") == self.exit_code else None

    @property
    def environment(self) -> dict[str, Any]:
        """The content of its environment.json, empty where there is none."""
        try:
            return read_json(self.run.environment_json)
        except DataError:
            return {}


class Children:
    """Starts runs and waits for them, from several threads where that is wanted."""

    def __init__(self) -> None:
        self._alive: set[subprocess.Popen[str]] = set()

    def run(
        self, words: list[str], run_dir: Path, verb: str = "train", variables: Mapping[str, str] | None = None
    ) -> ChildRun:
        """`mpt VERB words…` on the run directory, quietly; returns when it is over, however it ended.

        Its environment is that of this process, but for the `variables`.
        """
        command = [sys.executable, "-P", "-m", "mpt_cli", verb, "--quiet", *words]
        environment = {**os.environ, **(variables or {})}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:  # fmt: skip
            self._alive.add(process)
            try:
                _, said = process.communicate()
            finally:
                self._alive.discard(process)
        own = [line for line in said.splitlines() if line.startswith("mpt ")]
        return ChildRun(RunDirectory(run_dir), process.returncode, "\n".join(own or said.splitlines()[-1:]))

    def stop(self) -> None:
        """Ask all that are alive to save and end."""
        for process in list(self._alive):
            process.terminate()
