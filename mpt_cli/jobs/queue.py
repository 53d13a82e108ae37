"""The queue: so many commands at a time, each a process group of its own, with time-outs, grace and signals; one that
fails leaves the others alone.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mpt_cli.jobs.capacity import GpuPool, gpu_environment
from mpt_cli.training.outcome import Interruption

if TYPE_CHECKING:
    from mpt_cli.sweep.plan import Job


@dataclass(frozen=True)
class Command:
    """A job and how its process is started. Its standard error goes to the end of `log`.

    `began` is a file whose coming is the job's beginning, where its process may have to wait first; None: it begins
    with its process.
    """

    job: "Job"
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


@dataclass(frozen=True)
class Ending:
    """How a job's process ended, as the queue saw it.

    `exit_code` is negative for a signal and None where the process could not be started. `cause` says why the queue
    ended it: timeout, interrupt or median; None where it ended of its own.
    """

    exit_code: int | None
    seconds: float
    cause: str | None = None
    limit_seconds: float | None = None
    attempt: int = 1
    note: str = ""


class Running:
    """A running job. Its own group keeps the terminal's Ctrl-C from it, and lets its helpers be ended with it."""

    def __init__(self, work: Command, environment: dict[str, str], share: Share) -> None:
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


POLL_SECONDS = 0.05
GRACE_SECONDS = 30.0  # to save a checkpoint and a summary


class Observer:
    """Is told what happens in the queue. A subclass overrides what concerns it."""

    def started(self, child: Running) -> None:
        """A job's process has begun."""

    def tick(self, running: Sequence[Running]) -> None:
        """Called many times a second; may `stop` a child."""

    def ended(self, work: Command, ending: Ending) -> None:
        """A job's process is gone, and what it left behind with it."""


@dataclass(frozen=True)
class Limits:
    """How much at a time and for how long. `cores` are the shares of them, one for each worker, or none at all."""

    workers: int = 1
    gpus: Sequence[str] = ()
    cores: Sequence[frozenset[int]] = ()
    timeout_seconds: float | None = None
    grace_seconds: float = GRACE_SECONDS


class Queue:
    """Runs the work in its order. `record` is called with each ending before anyone else hears of it.

    The next piece of work is asked for only when there is room for it: what comes last may depend on how the first
    ended.
    """

    def __init__(
        self, limits: Limits, record: Callable[[Command, Ending], None], watches: Sequence[Observer] = ()
    ) -> None:
        self.limits, self.record, self.watches = limits, record, watches
        self.pool = GpuPool(limits.gpus, limits.workers)
        self.free_cores = [*limits.cores]
        self.running: list[Running] = []
        self._source: Iterator[Command] = iter(())
        self._next: Command | None = None

    def run(self, work: Iterable[Command]) -> signal.Signals | None:
        """Until all has ended, or a signal asked to stop: then running jobs end cleanly, and the signal is returned.

        A second Ctrl-C kills them.
        """
        self._source = iter(work)
        with Interruption() as interruption, _hangup_as_termination():
            try:
                while self.running or self._has_next():
                    if interruption.requested is not None:
                        self._source, self._next = iter(()), None
                        self._stop_all()
                    self._start_what_fits()
                    self._tick()
                    time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                pass
            finally:
                self._kill_all()
        return interruption.requested

    def _has_next(self) -> bool:
        if self._next is None:
            self._next = next(self._source, None)
        return self._next is not None

    def _start_what_fits(self) -> None:
        while len(self.running) < self.limits.workers and self._has_next() and self._next is not None:
            gpus = self.pool.take(self._next.job.gpus)
            if gpus is None:
                return
            work, self._next = self._next, None
            self._start(work, gpus)

    def _start(self, work: Command, gpus: list[str]) -> None:
        share = Share(gpus, self.free_cores.pop(0) if self.free_cores else frozenset())
        try:
            child = Running(work, gpu_environment(self.pool, gpus), share)
        except OSError as error:
            self._take_back(share)
            self._tell_end(work, Ending(None, 0.0, attempt=work.attempt, note=f"it could not be started: {error}"))
            return
        self.running.append(child)
        for watch in self.watches:
            watch.started(child)

    def _take_back(self, share: Share) -> None:
        self.pool.give_back(share.gpus)
        if share.cores:
            self.free_cores.append(share.cores)

    def _tick(self) -> None:
        for child in self.running:
            child.keep_time(self.limits.timeout_seconds, self.limits.grace_seconds)
        for child in [child for child in self.running if child.has_ended]:
            self._end(child)
        for watch in self.watches:
            watch.tick(self.running)

    def _end(self, child: Running) -> None:
        ending = child.ending()
        self.running.remove(child)
        self._take_back(child.share)
        self._tell_end(child.work, ending)

    def _tell_end(self, work: Command, ending: Ending) -> None:
        self.record(work, ending)
        for watch in self.watches:
            watch.ended(work, ending)

    def _stop_all(self) -> None:
        for child in self.running:
            child.stop("interrupt")

    def _kill_all(self) -> None:
        for child in list(self.running):
            child.cause = child.cause or "interrupt"
            child.kill()
            self._end(child)


@contextmanager
def _hangup_as_termination() -> Iterator[None]:
    """A terminal that goes away ends the sweep as SIGTERM does; under nohup it is ignored, as it was."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
