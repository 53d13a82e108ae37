"""One job as a process with a process group of its own."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mpt_cli.sweep.directory import Ending
from mpt_cli.sweep.plan import Job


@dataclass(frozen=True)
class Work:
    """A job and how its process is started. Its standard error goes to the end of `log`.

    `began` is a file whose coming is the job's beginning, where its process may have to wait first; None: it begins
    with its process.
    """

    job: Job
    command: Sequence[str]
    log: Path
    cwd: Path | None = None
    attempt: int = 1
    began: Path | None = None


@dataclass(frozen=True)
class Share:
    """What of the machine a job has to itself. No cores: it may use them all."""

    gpus: Sequence[str] = ()
    cores: frozenset[int] = frozenset()


class Child:
    """A running job. Its own group keeps the terminal's Ctrl-C from it, and lets its helpers be ended with it."""

    def __init__(self, work: Work, environment: dict[str, str], share: Share) -> None:
        self.work, self.share = work, share
        self.started_at = time.monotonic()
        self._is_waiting = work.began is not None
        self.asked_at: float | None = None
        self.cause: str | None = None
        self.limit_seconds: float | None = None
        with work.log.open("ab") as log, _kept_to(share.cores):
            self._process = subprocess.Popen(
                work.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, cwd=work.cwd,
                env={**os.environ, **work.job.environment, **environment}, process_group=0,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def has_ended(self) -> bool:
        # WNOWAIT leaves the process as a zombie, so that its group can't be anyone else's until `ending` has cleared it
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def stop(self, cause: str) -> None:
        """Ask once: `mpt train` saves a checkpoint and ends."""
        if self.asked_at is None:
            self.asked_at, self.cause = time.monotonic(), cause
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def keep_time(self, timeout_seconds: float | None, grace_seconds: float) -> None:
        """Ends the job when its time is over, and kills it when it has not ended in the time it was given to."""
        if self._is_waiting:
            self._look_whether_it_began()
        elif timeout_seconds is not None and self.seconds > timeout_seconds and self.asked_at is None:
            self.limit_seconds = timeout_seconds
            self.stop("timeout")
        if self.asked_at is not None and time.monotonic() - self.asked_at > grace_seconds:
            self.kill()

    def _look_whether_it_began(self) -> None:
        if self.work.began is not None and self.work.began.exists():
            self.started_at, self._is_waiting = time.monotonic(), False

    def ending(self) -> Ending:
        """Waits for the end, and ends what the job left behind in its group."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.kill()
        code = self._process.wait()
        return Ending(code, round(self.seconds, 3), self.cause, self.limit_seconds, self.work.attempt)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


@contextmanager
def _kept_to(cores: frozenset[int]) -> Iterator[None]:
    """What is started in here may run on `cores` only, from its first instruction on."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
