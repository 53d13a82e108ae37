"""What Ctrl-C and SIGTERM ask of a program: to end in its own time, so that what it does can be saved, and to end all
the same where it does not hear them. Light: it is loaded where Keras and NumPy are not.

Python runs handlers of signals in the main thread between two bytecodes: not while a compiler, an import or a loader of
data keeps it in compiled code, for minutes perhaps. So a thread of its own watches for signals (`Watch`), and ends the
program where the main thread has not begun to.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Self

from mpt_cli.errors import BAD_DATA, INTERRUPTED, TERMINATED

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNAL_EXIT_CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL, to save a checkpoint and a summary
UNHEARD_SECONDS = 1.0  # from a signal to the end of a program that has not begun to end
AGAIN_SECONDS = 0.3  # from the second Ctrl-C
EXIT_SECONDS = 0.7  # what an orderly end has for what Python does at exit
FORCED_END_SECONDS = 2.0  # what a forced end has at the most for its summary, which takes a tenth of a second


def heeded(numbers: tuple[signal.Signals, ...] = SIGNALS) -> list[signal.Signals]:
    """Those that are not ignored. One that is stays so: a shell starts the background jobs of a script without Ctrl-C,
    and nohup a program without SIGHUP.
    """
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def signal_name(number: int) -> str:
    """
    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class ForcedEnd:
    """The end of a program from outside of its main thread, and why. `number` is None where no signal asked for it."""

    exit_code: int
    reason: str  # "interrupted while compiling the training step"; a sentence where there is no signal
    number: signal.Signals | None = None


class TimeLimit(NamedTuple):
    """How long something may take, and the end of the program where it takes longer."""

    seconds: float
    too_long: ForcedEnd


@dataclass(frozen=True, eq=False)
class _Section:
    """What is done in `unheard`, in words that follow "while", and whether a signal may raise in the middle of it."""

    doing: str
    may_raise: bool


class _MainThread:
    """What the main thread is about, for the one that may have to end the program in its place.

    Who ends it takes the `gate` for good: the main thread then gets no further than its next section.
    """

    def __init__(self) -> None:
        self.gate = threading.RLock()
        self.sections: list[_Section] = []
        self.endings: list[Callable[[ForcedEnd], None]] = []
        self.handlers = 0  # how many are active that let it end in its own time
        self.is_heard = False  # whether one of them took the latest signal
        self.raised: signal.Signals | None = None  # where none did
        self.held: signal.Signals | None = None  # in a section in which nothing may be raised, or where that was lost
        self.asked: signal.Signals | None = None  # of its active Interruption
        self.beside: list[Interruption] = []  # those of other threads, for which it hears
        self.latest: signal.Signals | None = None  # as the other thread saw it
        self.stderr = 2
        self.hears_hangups = False  # and makes a SIGTERM of each


_main = _MainThread()


@contextmanager
def unheard(doing: str, limit: TimeLimit | None = None, may_raise: bool = True) -> Iterator[None]:
    """In here the main thread may hear no signal, and nothing is lost that waiting would save: a signal that is not
    answered within `UNHEARD_SECONDS` ends the program, and so does the `limit` where it takes longer.

    Compiled code that calls Python may crash at an exception that it does not expect, as jaxlib does while it is
    imported: without `may_raise` a signal raises only at the end.
    """
    section = _Section(doing, may_raise)
    with _main.gate:
        _main.sections.append(section)
    timer = None if limit is None else _keep_time(section, limit)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        with _main.gate:
            _main.sections.remove(section)
    if _main.held is not None and _may_raise():
        _raise(_main.held, None)


def _may_raise() -> bool:
    return all(section.may_raise for section in _main.sections)


def _keep_time(section: _Section, limit: TimeLimit) -> threading.Timer:
    def end_it() -> None:
        with _main.gate:
            if section in _main.sections:
                _end_program(limit.too_long)

    timer = threading.Timer(limit.seconds, end_it)
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def at_forced_end(ending: Callable[[ForcedEnd], None]) -> Iterator[None]:
    """A forced end in here calls `ending` first, in another thread, the latest of several first; none has more than
    `FORCED_END_SECONDS` in all.
    """
    with _main.gate:
        _main.endings.append(ending)
    try:
        yield
    finally:
        with _main.gate:
            _main.endings.remove(ending)


def _end_program(end: ForcedEnd) -> NoReturn:
    """To be called with the gate held, which is never given back.

    The main thread may be busy in Python (tracing), and each file that is written gives it the interpreter: it has to
    give that back at once, not after 5 ms each.
    """
    sys.setswitchinterval(1e-4)
    _try_for(FORCED_END_SECONDS, partial(_call_endings, end))
    text = f"\nmpt: {end.reason}\n".encode(errors="replace")
    _try_for(AGAIN_SECONDS, lambda: os.write(_main.stderr, text))  # which waits where nobody reads
    os._exit(end.exit_code)


def _try_for(seconds: float, action: Callable[[], object]) -> None:
    worker = threading.Thread(target=action, daemon=True)
    worker.start()
    worker.join(seconds)


def _call_endings(end: ForcedEnd) -> None:
    for ending in reversed(_main.endings):
        with suppress(Exception):  # the others matter as much
            ending(end)


class Watch:
    """From the first moment of a program to its last: the two signals raise KeyboardInterrupt and `Terminated` where
    nothing else handles them, and end the program where it does not end. A terminal that goes away (a dropped ssh)
    makes a SIGTERM, unless SIGHUP is ignored, as under nohup.

    It is ended `UNHEARD_SECONDS` after a signal unless an `Interruption` or `handled_by` lets it end in its own time,
    and then too where it is `unheard`; `AGAIN_SECONDS` after a second Ctrl-C, also where it has to save, if it said
    what is to be done then (`at_forced_end`). Forked processes have Python's own handlers.
    """

    def __enter__(self) -> Self:
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        _main.stderr = os.dup(2)  # what is imported quietly moves the descriptor itself
        self._terminals = [number for number in (1, 2, _main.stderr) if os.isatty(number)]
        for number in heeded():
            signal.signal(number, _raise)
        for number in heeded((signal.SIGHUP,)):
            signal.signal(number, _nothing)  # `_listen` hears it
            _main.hears_hangups = True
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_unwatched)
        print_it = sys.unraisablehook

        def lost(unraisable: "sys.UnraisableHookArgs") -> None:
            """A callback of the garbage collector (jax has one) and a `__del__` lose what a handler raises in them."""
            if isinstance(unraisable.exc_value, KeyboardInterrupt) and _main.raised is not None:
                _main.held = _main.raised
            else:
                print_it(unraisable)

        sys.unraisablehook = lost
        self._is_urgent = False
        try:
            threading.Thread(target=self._listen, name="mpt-signals", daemon=True).start()
        except RuntimeError as error:
            print(f"mpt: {error}. `ulimit -u` shows how many threads and processes this user may have.",
                  file=sys.stderr)  # fmt: skip
            self.leave(BAD_DATA)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """It watches on, while Python ends. What nobody caught of its own ends the program here, in words."""
        if isinstance(error, KeyboardInterrupt):
            number = raised_signal() or signal.SIGINT
            print(f"\nmpt: {format_end(number)}", file=sys.stderr)
            self.leave(SIGNAL_EXIT_CODES[number])

    def leave(self, exit_code: int) -> NoReturn:
        """The end of the program. After a signal it waits for no thread that still reads data; where that came in the
        middle of something, Python does not take down what compiled code may still be using.
        """
        if raised_signal() is not None:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(exit_code)
        if _main.is_heard:
            timer = threading.Timer(EXIT_SECONDS, os._exit, (exit_code,))
            timer.daemon = True
            timer.start()
        sys.exit(exit_code)

    def _listen(self) -> None:
        deadline: float | None = None
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if select.select([self._woken], [], [], wait)[0]:
                for number in os.read(self._woken, 64):
                    if number == signal.SIGHUP and _main.hears_hangups:
                        self._hang_up()
                    if number in SIGNALS:
                        deadline = min(self._hear(signal.Signals(number)), deadline or float("inf"))
            if deadline is not None and time.monotonic() >= deadline:
                deadline = None
                self._end_if_it_must()

    def _hang_up(self) -> None:
        """What is written to a terminal that is gone fails, and what would be saved after it would be lost."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._terminals:
            os.dup2(nowhere, number)
        os.kill(os.getpid(), signal.SIGTERM)

    def _hear(self, number: signal.Signals) -> float:
        """By when the program has to have ended, or to have begun to."""
        self._is_urgent = self._is_urgent or number == _main.latest == signal.SIGINT
        _main.latest = number
        return time.monotonic() + (AGAIN_SECONDS if self._is_urgent else UNHEARD_SECONDS)

    def _end_if_it_must(self) -> None:
        with _main.gate:
            ends_by_itself = _main.handlers > 0 or _main.is_heard
            if self._is_urgent:
                ends_by_itself = _main.handlers > 0 and not _main.endings
            elif _main.sections:
                ends_by_itself = False
            if not ends_by_itself and _main.latest is not None:
                doing = _main.sections[-1].doing if _main.sections else ""
                _end_program(ForcedEnd(SIGNAL_EXIT_CODES[_main.latest], format_end(_main.latest, doing), _main.latest))


def _nothing(number: int, _: FrameType | None) -> None:
    pass


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends what Ctrl-C ends. Not SystemExit, which a function of the user's may raise as well."""


def _raise(number: int, _: FrameType | None) -> None:
    if not _may_raise():
        _main.held = signal.Signals(number)
        return
    _main.is_heard, _main.raised, _main.held = False, signal.Signals(number), None
    _raise_as_python(number)


def _raise_as_python(number: int) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _unwatched() -> None:
    """In a forked process, whose signals are not those of this one."""
    with suppress(ValueError):  # it was not forked by the main thread
        signal.set_wakeup_fd(-1)
        _main.hears_hangups = False
        for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL),
                                (signal.SIGHUP, signal.SIG_DFL)):  # fmt: skip
            if heeded((number,)):
                signal.signal(number, default)


def raised_signal() -> signal.Signals | None:
    """The latest signal where it raised in the main thread: what else that meets is the consequence."""
    return _main.raised


def format_end(number: signal.Signals, doing: str = "") -> str:
    """
    >>> format_end(signal.SIGTERM), format_end(signal.SIGINT, "importing jax")
    ('terminated', 'interrupted while importing jax')
    """
    word = "interrupted" if number == signal.SIGINT else "terminated"
    return f"{word} while {doing}" if doing else word


class Interruption:
    """A context manager in which the two signals set `requested` instead of ending the process; it may be nested in
    itself.

    A second Ctrl-C raises KeyboardInterrupt wherever the program is. The handlers before are put back at the end.
    Signals that were ignored stay so. In another thread, where Python hears none, it is told by the one of the main
    thread.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._depth = 0

    def __enter__(self) -> Self:
        with _main.gate:
            _main.handlers += 1
            self._depth += 1
        if self._depth == 1 and threading.current_thread() is not threading.main_thread():
            _main.beside.append(self)
            self.requested = self.requested or _main.asked
        elif self._depth == 1:
            self._before = {number: signal.signal(number, self._handle) for number in heeded()}
        return self

    def __exit__(self, *_: object) -> None:
        if self._depth == 1 and self in _main.beside:
            _main.beside.remove(self)
        elif self._depth == 1:
            _main.asked = None
            for number, handler in self._before.items():
                signal.signal(number, handler)
        with _main.gate:
            _main.handlers -= 1
            self._depth -= 1

    def _handle(self, number: int, _: FrameType | None) -> None:
        _main.is_heard = True
        if self.requested == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = _main.asked = signal.Signals(number)
        for other in _main.beside:
            other.requested = self.requested


@contextmanager
def handled_by(handler: Callable[[int], None], numbers: tuple[signal.Signals, ...] = SIGNALS) -> Iterator[None]:
    """These signals, but for those that are ignored, call `handler` with their number; what was before is put back."""

    def handle(number: int, _: FrameType | None) -> None:
        _main.is_heard = _main.is_heard or number in SIGNALS
        handler(number)

    with _main.gate:
        _main.handlers += (own := int(not set(numbers).isdisjoint(SIGNALS)))
    before = {number: signal.signal(number, handle) for number in heeded(numbers)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        with _main.gate:
            _main.handlers -= own


@contextmanager
def heard_by_script() -> Iterator[None]:
    """Around a program of the user's, which may catch KeyboardInterrupt, or hear signals itself, and save: Ctrl-C and
    SIGTERM raise as ever where it has no handlers of its own, and nothing ends it before it ends.
    """
    with handled_by(_raise_as_python):
        yield
    _main.is_heard = False  # it went on, and its end is not that of the signal


def signal_of(error: BaseException) -> signal.Signals | None:
    """What raised it, None where that was no signal.

    >>> signal_of(Terminated()), signal_of(ValueError())
    (<Signals.SIGTERM: 15>, None)
    """
    if not isinstance(error, KeyboardInterrupt):
        return None
    return signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT


@contextmanager
def hangup_as_termination() -> Iterator[None]:
    """A terminal that goes away ends the program as SIGTERM does; under nohup it is ignored, as it was. A `Watch` does
    that for the whole of a program."""
    if _main.hears_hangups:
        yield
        return
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
