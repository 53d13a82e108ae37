"""The queue: so many commands at a time, with time-outs, grace and signals; one that fails leaves the others alone."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from mpt_cli.errors import TERMINATED, MptError
from mpt_cli.jobs.capacity import GpuPool, least_used_cores
from mpt_cli.jobs.local_processes import (
    CannotStart,
    Command,
    Ending,
    Executor,
    Handle,
    LocalExecutor,
    Lost,
    Share,
    Subject,
)
from mpt_cli.signals import GRACE_SECONDS, Interruption, raise_for

KILL_SECONDS = 5.0  # for the news of an end that was forced: a cluster may be slow to tell


class Running(Generic[Subject]):
    """A command that was started, or given to a cluster in whose queue it may wait."""

    def __init__(self, command: Command[Subject], handle: Handle, share: Share) -> None:
        self.command, self.share = command, share
        self.cause: str | None = None
        self._handle = handle
        self._is_killed = False
        self._asked_at: float | None = None
        self._limit_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Return how long it has run."""
        return self._handle.seconds or 0.0

    @property
    def waits_for(self) -> str:
        """Return what its cluster says of it while it does not run; empty where it runs."""
        return self._handle.waits_for

    def stop(self, cause: str) -> None:
        """Ask once: `mpt train` saves a checkpoint and ends."""
        if self._asked_at is None:
            self._asked_at, self.cause = time.monotonic(), cause
            self._handle.terminate()

    def kill(self, cause: str | None = None) -> None:
        self.cause = self.cause or cause
        if not self._is_killed:
            self._is_killed = True
            self._handle.kill()

    def look(self, limits: "Limits") -> Ending | None:
        """Return how it ended; None while it runs. End it when its time is over, and kill it when the grace is over
        too.
        """
        timeout = limits.timeout_seconds
        if timeout is not None and self.seconds > timeout and self._asked_at is None:
            self._limit_seconds = timeout
            self.stop("timeout")
        if self._asked_at is not None and time.monotonic() - self._asked_at > limits.grace_seconds:
            self.kill()
        try:
            code = self._handle.poll()
        except Lost as lost:
            return self.ending(TERMINATED, "" if self._asked_at else f"the job was lost. {lost}")
        return None if code is None else self.ending(code)

    def ending(self, code: int, note: str = "") -> Ending:
        return Ending(code, round(self.seconds, 3), self.cause, self._limit_seconds, note)


class Observer(Generic[Subject]):
    """Is told what happens in the queue. A subclass overrides what concerns it."""

    def started(self, running: Running[Subject]) -> None:
        """Note that a command was started."""

    def tick(self, running: Sequence[Running[Subject]]) -> None:
        """Look at what runs, many times a second; may `stop` it."""

    def ended(self, command: Command[Subject], ending: Ending) -> None:
        """Note that a command has ended, with all that it left running."""


@dataclass(frozen=True)
class Limits:
    """How much at a time and for how long. `cores_each`: how many a command has to itself; None: all, as the others."""

    workers: int = 1
    gpus: Sequence[str] = ()
    cores_each: int | None = None
    timeout_seconds: float | None = None
    grace_seconds: float = GRACE_SECONDS


class Queue(Generic[Subject]):
    """Runs commands in their order. `record` is called with each ending before anyone else hears of it.

    The next command is asked for only when there is room for it: what comes last may depend on how the first ended.
    """

    def __init__(
        self,
        limits: Limits,
        executor: Executor,
        record: Callable[[Command[Subject], Ending], None],
        observers: Sequence[Observer[Subject]] = (),
    ) -> None:
        self.limits, self.executor, self.record, self.observers = limits, executor, record, observers
        self.pool = GpuPool(limits.gpus, limits.workers)
        self.running: list[Running[Subject]] = []
        self._source: Iterator[Command[Subject]] = iter(())
        self._next: Command[Subject] | None = None

    def run(self, commands: Iterable[Command[Subject]]) -> signal.Signals | None:
        """Run commands until all have ended, or a signal asks to stop: then end what runs and return the signal.

        A second Ctrl-C kills it.
        """
        self._source = iter(commands)
        with Interruption() as interruption:
            try:
                self._run_all(interruption)
            except KeyboardInterrupt:
                pass
            except MptError:  # of an observer: what runs can't help it, and may save
                self._stop_all()
                self._run_all(interruption)
                raise
            finally:
                self._kill_all()
        return interruption.requested

    def _run_all(self, interruption: Interruption) -> None:
        while self.running or self._has_next():
            if interruption.requested is not None:
                self._stop_all()
            self._look()
            self._start_what_fits()
            time.sleep(self.executor.poll_seconds)

    def _has_next(self) -> bool:
        if self._next is None:
            self._next = next(self._source, None)
        return self._next is not None

    def _start_what_fits(self) -> None:
        while len(self.running) < self.limits.workers and self._has_next() and self._next is not None:
            gpus = self.pool.take(self._next.gpus)
            if gpus is None:
                return
            command, self._next = self._next, None
            self._start(command, Share(gpus, self._take_cores(command), self.pool.variables(gpus)))

    def _take_cores(self, command: Command[Subject]) -> frozenset[int]:
        """Return as many cores as the command may use, those that the fewest others have; none where it may use them
        all.
        """
        count = command.cores or self.limits.cores_each
        taken = [running.share.cores for running in self.running]
        return frozenset() if count is None else least_used_cores(count, taken)

    def _start(self, command: Command[Subject], share: Share) -> None:
        try:
            running = Running(command, self.executor.start(command, share), share)
        except CannotStart as error:
            self.pool.give_back(share.gpus)
            note = f"it could not be started: {error}"
            self._record_ending(command, Ending(None, 0.0, note=note))
            return
        self.running.append(running)
        for observer in self.observers:
            observer.started(running)

    def _look(self) -> None:
        for running in list(self.running):
            self._end(running, running.look(self.limits))
        for observer in self.observers:
            observer.tick(self.running)

    def _end(self, running: Running[Subject], ending: Ending | None) -> None:
        if ending is not None:
            self.running.remove(running)
            self.pool.give_back(running.share.gpus)
            self._record_ending(running.command, ending)

    def _record_ending(self, command: Command[Subject], ending: Ending) -> None:
        self.record(command, ending)
        for observer in self.observers:
            observer.ended(command, ending)

    def _stop_all(self) -> None:
        self._source, self._next = iter(()), None
        for running in self.running:
            running.stop("interrupt")

    def _kill_all(self) -> None:
        for running in self.running:
            running.kill("interrupt")
        deadline = time.monotonic() + KILL_SECONDS
        while self.running:
            is_over = time.monotonic() > deadline
            for running in list(self.running):
                self._end(running, running.look(self.limits) or (running.ending(-signal.SIGKILL) if is_over else None))
            time.sleep(LocalExecutor.poll_seconds)


def run_one(command: Command[Any], executor: Executor) -> Ending:
    """Run one command to its end. A signal ends the command first, with its grace, and then this program."""
    endings: list[Ending] = []
    raise_for(Queue(Limits(), executor, lambda _, ending: endings.append(ending)).run([command]))
    return endings[0]
