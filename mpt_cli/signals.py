"""What Ctrl-C and SIGTERM ask of a program: to end in its own time, so that what it does can be saved. Light: it is
loaded where Keras and NumPy are not.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from mpt_cli.errors import INTERRUPTED, TERMINATED

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNAL_EXIT_CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL, to save a checkpoint and a summary


def heeded(numbers: tuple[signal.Signals, ...] = SIGNALS) -> list[signal.Signals]:
    """Those that are not ignored. One that is stays so: a shell starts the background jobs of a script without Ctrl-C,
    and nohup a program without SIGHUP.
    """
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


class Interruption:
    """A context manager in which the two signals set `requested` instead of ending the process.

    A second Ctrl-C raises KeyboardInterrupt wherever the program is. The handlers before are put back at the end.
    Signals that were ignored stay so.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in heeded()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)


@contextmanager
def handled_by(handler: Callable[[int], None], numbers: tuple[signal.Signals, ...] = SIGNALS) -> Iterator[None]:
    """These signals, but for those that are ignored, call `handler` with their number; what was before is put back."""
    before = {number: signal.signal(number, lambda number, _: handler(number)) for number in heeded(numbers)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def hangup_as_termination() -> Iterator[None]:
    """A terminal that goes away ends the program as SIGTERM does; under nohup it is ignored, as it was."""
    with handled_by(lambda _: os.kill(os.getpid(), signal.SIGTERM), (signal.SIGHUP,)):
        yield


@contextmanager
def held_back(*numbers: signal.Signals) -> Iterator[None]:
    """What is started in here never gets these signals, also after an exec; this process gets them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_for(number: signal.Signals | None) -> None:
    """Ends the program as this signal would have, once what it does has ended: KeyboardInterrupt, or exit code 143."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(SIGNAL_EXIT_CODES[number])
