"""TO BE REMOVED by the redesign (notes, section C). A command as submitit or Ray runs it on another machine."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from mpt_cli.jobs import leash


class Lost(Exception):
    """The job ended without an exit code: its machine went away, or it never began. The message says what is known."""


class Remote(Protocol):
    """A job that a library was given."""

    def poll(self) -> int | None:
        """Waits a moment; its exit code once it has ended, negative for a signal. Lost when there will be none."""

    def stop(self) -> None:
        """Ask it to save and end."""


_POLL_SECONDS = 0.1
_OWN_SECONDS = 2.0  # for a SIGTERM that the command may have got too: a second one could cut its end short
_PREEMPTION_SECONDS = 20.0  # between Slurm's SIGTERM and the signal that has submitit put the job back in the queue


@dataclass
class Errand:
    """Called, it runs `command` to its end and returns its exit code, negative for a signal.

    `began` is touched as it begins, `stop` by the proxy before it asks for the end. `environment` is what the job
    needs besides that of the machine it runs on.
    """

    command: list[str]
    cwd: str
    log: str
    began: str
    stop: str
    environment: dict[str, str] = field(default_factory=dict)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False, compare=False)
    _terminated_at: float | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self) -> int:
        before = signal.signal(signal.SIGTERM, self._note_termination)
        try:
            with open(self.log, "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", leash.__file__, str(os.getpid()), *self.command], cwd=self.cwd, stderr=log,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, **self.environment},
                )  # fmt: skip
            Path(self.began).touch()
            return self._wait(self._process)
        finally:
            signal.signal(signal.SIGTERM, before)

    def checkpoint(self) -> Any:
        """Called by submitit where the job's time is over or its machine is wanted: the command saves and ends, and
        goes on where it stopped (`resume=auto`) when the job is run again.
        """
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.terminate()
            with suppress(ChildProcessError):  # not its wait(), whose lock the interrupted _wait may hold
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(replace(self))

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        is_told = False
        while (code := process.poll()) is None:
            time.sleep(_POLL_SECONDS)
            if self._terminated_at is None and Path(self.stop).exists():
                self._terminated_at = time.monotonic()
            if not is_told and self._own_time_is_over:
                process.terminate()
                is_told = True
        self._await_preemption()
        return code

    @property
    def _own_time_is_over(self) -> bool:
        return self._terminated_at is not None and time.monotonic() - self._terminated_at > _OWN_SECONDS

    def _await_preemption(self) -> None:
        """Where not the sweep but the cluster sent the SIGTERM, what follows it may still put the job back."""
        while self._terminated_at is not None and "SLURM_JOB_ID" in os.environ and not Path(self.stop).exists():
            if time.monotonic() - self._terminated_at > _PREEMPTION_SECONDS:
                return
            time.sleep(_POLL_SECONDS)

    def _note_termination(self, number: int, frame: FrameType | None) -> None:
        self._terminated_at = time.monotonic()
