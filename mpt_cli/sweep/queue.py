"""The work queue: so many jobs at a time, each a process of its own; one that fails leaves the others alone."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from mpt_cli.sweep.child import Child, Share, Work
from mpt_cli.sweep.directory import Ending
from mpt_cli.sweep.gpus import GpuPool, gpu_environment
from mpt_cli.training.interruption import Interruption

POLL_SECONDS = 0.05
GRACE_SECONDS = 30.0  # to save a checkpoint and a summary


class Watch:
    """Is told what happens in the queue. A subclass overrides what concerns it."""

    def started(self, child: Child) -> None:
        """A job's process has begun."""

    def tick(self, running: Sequence[Child]) -> None:
        """Called many times a second; may `stop` a child."""

    def ended(self, work: Work, ending: Ending) -> None:
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

    def __init__(self, limits: Limits, record: Callable[[Work, Ending], None], watches: Sequence[Watch] = ()) -> None:
        self.limits, self.record, self.watches = limits, record, watches
        self.pool = GpuPool(limits.gpus, limits.workers)
        self.free_cores = [*limits.cores]
        self.running: list[Child] = []
        self._source: Iterator[Work] = iter(())
        self._next: Work | None = None

    def run(self, work: Iterable[Work]) -> signal.Signals | None:
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

    def _start(self, work: Work, gpus: list[str]) -> None:
        share = Share(gpus, self.free_cores.pop(0) if self.free_cores else frozenset())
        try:
            child = Child(work, gpu_environment(self.pool, gpus), share)
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

    def _end(self, child: Child) -> None:
        ending = child.ending()
        self.running.remove(child)
        self._take_back(child.share)
        self._tell_end(child.work, ending)

    def _tell_end(self, work: Work, ending: Ending) -> None:
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
