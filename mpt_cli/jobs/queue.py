"""Run a limited number of commands at a time, with timeouts, grace periods and signals; failures are isolated."""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mpt_cli.jobs.local_processes import CannotStart, Command, Ending, Executor, Limits, LocalExecutor, Running
from mpt_cli.signals import Interruption, raise_for

KILL_SECONDS = 5.0  # for the report of a forced end: a cluster may be slow


@dataclass
class Queue:
    """Runs commands in order. `record` is called with each ending, and `tick` many times a second with the running
    commands, which it may stop.

    The next command is only taken when there is room for it, because it may depend on how earlier ones ended.
    """

    limits: Limits
    executor: Executor
    record: Callable[[Command, Ending], None]
    tick: Callable[[Sequence[Running]], None] = lambda running: None
    running: list[Running] = field(default_factory=list)
    _source: Iterator[Command] = field(init=False)
    _next: Command | None = None

    def run(self, commands: Iterable[Command]) -> signal.Signals | None:
        """Run commands until all have ended or a signal arrives; then end the running ones and return the signal.

        A second Ctrl-C kills them.
        """
        self._source = iter(commands)
        with Interruption() as interruption:
            try:
                while self.running or self._peek() is not None:
                    if interruption.requested is not None:
                        self._source, self._next = iter(()), None
                        for running in self.running:
                            running.stop("interrupt")
                    self._record_ended()
                    self.tick(self.running)
                    self._start_what_fits()
                    time.sleep(self.executor.poll_seconds)
            except KeyboardInterrupt:
                pass
            finally:
                self._kill_all()
        return interruption.requested

    def _peek(self) -> Command | None:
        if self._next is None:
            self._next = next(self._source, None)
        return self._next

    def _start_what_fits(self) -> None:
        while len(self.running) < self.limits.workers and (command := self._peek()) is not None:
            try:
                running = self.executor.start(command)
            except CannotStart as error:
                self._next = None
                self.record(command, Ending(None, 0.0, note=f"it could not be started: {error}"))
                continue
            if running is None:
                return
            self._next = None
            self.running.append(running)

    def _record_ended(self, code_of_rest: int | None = None) -> None:
        for running in list(self.running):
            ending = running.check_limits(self.limits)
            if ending is None and code_of_rest is not None:
                ending = running.ending(code_of_rest)
            if ending is not None:
                self.running.remove(running)
                self.record(running.command, ending)

    def _kill_all(self) -> None:
        for running in self.running:
            running.stop("interrupt", signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        while self.running:
            self._record_ended(-signal.SIGKILL if time.monotonic() > deadline else None)
            time.sleep(LocalExecutor.poll_seconds)


def run_one(command: Command, executor: Executor) -> Ending:
    """Run one command to its end. A signal ends the command first, with its grace, and then this program."""
    endings: list[Ending] = []
    raise_for(Queue(Limits(), executor, lambda _, ending: endings.append(ending)).run([command]))
    return endings[0]
