"""Ctrl-C and SIGTERM: asked for once, the run stops at the next call boundary; asked twice, at once."""

import signal
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context manager in which the two signals set `requested` instead of ending the process.

    A second Ctrl-C raises KeyboardInterrupt wherever the program is. The handlers before are put back at the end. A
    signal that was ignored stays so: a shell starts the background jobs of a script without Ctrl-C.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._handle) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.requested == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)
