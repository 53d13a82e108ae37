"""End a program on Ctrl-C or SIGTERM: let it save and end by itself, or force its end if it does not react. Imports
neither Keras nor NumPy.

Python runs signal handlers in the main thread between two bytecodes, not while a compiler, an import or a data loader
keeps it in compiled code, perhaps for minutes. So another thread sees each signal too (`Watch`), and ends the program
if the main thread has not begun to end it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn, Self

from mpt_cli.errors import BAD_DATA, INTERRUPTED, TERMINATED

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNAL_EXIT_CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL, to save a checkpoint and a summary
UNHEARD_SECONDS = 1.0  # from a signal until a program that has not begun to end is ended; also for what it writes then


def signals_to_handle(numbers: tuple[signal.Signals, ...] = SIGNALS) -> list[signal.Signals]:
    """Return the signals that are not ignored. Ignored ones stay ignored: a shell starts the background jobs of a
    script without Ctrl-C, and nohup starts a program without SIGHUP.
    """
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def signal_name(number: int) -> str:
    """
    >>> signal_name(9), signal_name(40)
    ("SIGKILL (often the system's out-of-memory killer)", 'signal 40')
    """
    name = next((each.name for each in signal.Signals if each == number), f"signal {number}")
    return f"{name} (often the system's out-of-memory killer)" if number == signal.SIGKILL else name


@dataclass(frozen=True)
class ForcedEnd:
    """The forced end of a program, whose main thread was `doing` something."""

    number: signal.Signals
    doing: str = ""

    @property
    def error(self) -> KeyboardInterrupt:
        """Return the exception that the signal would have raised."""
        return Terminated() if self.number == signal.SIGTERM else KeyboardInterrupt()

    @property
    def exit_code(self) -> int:
        return SIGNAL_EXIT_CODES[self.number]

    @property
    def reason(self) -> str:
        return format_end(self.number, self.doing)


@dataclass
class _MainThread:
    """The state of the main thread, for the thread that may have to end the program.

    The thread that ends the program keeps the `gate`: the main thread then stops at its next section.
    """

    gate: Any = field(default_factory=threading.RLock)
    sections: list[str] = field(default_factory=list)  # its work in an `unheard` block, in words after "while"
    endings: list[Callable[[ForcedEnd], None]] = field(default_factory=list)
    handlers: int = 0  # how many are active that let it end in its own time
    is_heard: bool = False  # whether one of them took the latest signal
    heard_at: float = -1.0  # when one of them took a signal, by time.monotonic
    of_script: dict[int, Any] = field(default_factory=dict)  # the handlers that a script begins with
    is_waiting: bool = False  # whether the script has not heard the Ctrl-C before
    raised: signal.Signals | None = None  # where none did
    held: signal.Signals | None = None  # until its section is over
    leaves_at_once: bool = False  # when it ends: what else Python would take down waits for what is gone
    stderr: int = 2


_main = _MainThread()


@contextmanager
def unheard(doing: str) -> Iterator[None]:
    """Mark a block in which the main thread may receive no signal, and which loses nothing if it is cut off.

    A signal is answered after the block, or after `UNHEARD_SECONDS` by ending the program. No handler raises inside:
    compiled code that calls Python may crash at an unexpected exception, as jaxlib does in its import.
    """
    with _main.gate:
        _main.sections.append(doing)
    try:
        yield
    finally:
        with _main.gate:
            _main.sections.remove(doing)
    if _main.held is not None and not _main.sections:
        _raise(_main.held, None)


@contextmanager
def at_forced_end(ending: Callable[[ForcedEnd], None]) -> Iterator[None]:
    """Call `ending` in another thread before a forced end in the block.

    If there are several, the latest is called first; together they have `UNHEARD_SECONDS`.
    """
    with _main.gate:
        _main.endings.append(ending)
    try:
        yield
    finally:
        with _main.gate:
            _main.endings.remove(ending)


class Watch:
    """Handles both signals from the start of a program to its end: they raise KeyboardInterrupt and `Terminated` unless
    something else handles them, and end the program if it does not end by itself. A lost terminal (a dropped ssh)
    counts as SIGTERM, unless SIGHUP is ignored, as under nohup.

    The program is ended `UNHEARD_SECONDS` after a signal, unless an `Interruption` or `handled_by` gives it more time
    outside of `unheard` blocks; after a second Ctrl-C also while it saves, if it said what to do then
    (`at_forced_end`). Forked processes have Python's own handlers.
    """

    def __enter__(self) -> Self:
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        _main.stderr = os.dup(2)  # what is imported quietly moves the descriptor itself
        self._terminals = [number for number in (1, 2, _main.stderr) if os.isatty(number)]
        for number in signals_to_handle():
            signal.signal(number, _raise)
        for number in signals_to_handle((signal.SIGHUP,)):
            signal.signal(number, lambda *_: None)  # `_listen` hears it
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_unwatched)
        sys.unraisablehook = _print_unless_signal
        try:
            threading.Thread(target=self._listen, name="mpt-signals", daemon=True).start()
        except RuntimeError as error:
            print(
                f"mpt: {error}. `ulimit -u` shows how many threads and processes this user may have.", file=sys.stderr
            )
            sys.exit(BAD_DATA)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """End the program with a message for an uncaught KeyboardInterrupt; keep watching while Python ends."""
        if isinstance(error, KeyboardInterrupt):
            number = raised_signal() or signal.SIGINT
            print(f"\nmpt: {format_end(number)}", file=sys.stderr)
            self.leave(SIGNAL_EXIT_CODES[number])

    def leave(self, exit_code: int) -> NoReturn:
        """End the program.

        After a signal it waits for no thread that still reads data, and Python takes nothing down that compiled code
        may still be using.
        """
        if raised_signal() is not None or _main.leaves_at_once:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(exit_code)
        if _main.is_heard:
            _after_a_while(os._exit, exit_code)
        sys.exit(exit_code)

    def _listen(self) -> None:
        latest: int | None = None
        while True:
            number = os.read(self._woken, 1)[0]
            if number == signal.SIGHUP and signal.getsignal(number) is not signal.SIG_IGN:
                self._hang_up()
            if number in SIGNALS:
                is_again = number == latest == signal.SIGINT
                _after_a_while(_end_unless_it_ends, signal.Signals(number), is_again, time.monotonic())
                latest = number

    def _hang_up(self) -> None:
        """Redirect output from a terminal that is gone, and end as by SIGTERM.

        Writing to it would fail, and what would be saved after that would be lost."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._terminals:
            os.dup2(nowhere, number)
        os.kill(os.getpid(), signal.SIGTERM)


def _after_a_while(action: Callable[..., object], *arguments: object) -> None:
    timer = threading.Timer(UNHEARD_SECONDS, action, arguments)
    timer.daemon = True
    timer.start()


def _end_unless_it_ends(number: signal.Signals, is_again: bool, sent_at: float) -> None:
    with _main.gate:
        if _main.of_script:
            ends_by_itself = _is_left_to_script(number, sent_at)
        elif is_again:
            ends_by_itself = _main.handlers > 0 and not _main.endings
        else:
            ends_by_itself = not _main.sections and (_main.handlers > 0 or _main.is_heard)
        if not ends_by_itself:
            _end_program(ForcedEnd(number, _main.sections[-1] if _main.sections else ""))
        if number == signal.SIGINT and not is_again and (_main.is_waiting or not _main.of_script):
            text = "interrupted; finishing the current operation. Press Ctrl-C again to end at once"
            os.write(_main.stderr, f"\nmpt: {text}\n".encode())


def _is_left_to_script(number: signal.Signals, sent_at: float) -> bool:
    """Return whether a script ends by itself, or goes on, as it would without us: it has heard the signal, or has a
    handler of its own. By itself Python hears Ctrl-C in compiled code when that is over, and SIGTERM ends it."""
    is_heard = _main.heard_at > sent_at - UNHEARD_SECONDS / 2 or signal.getsignal(number) != _main.of_script[number]
    waits = number == signal.SIGINT and not _main.is_waiting
    _main.is_waiting = not is_heard
    return is_heard or waits


def _end_program(end: ForcedEnd) -> NoReturn:
    """Call the endings. The main thread may be busy in Python (tracing), and each file that is written gives it the
    interpreter: it has to give that back at once, not after 5 ms each."""
    sys.setswitchinterval(1e-4)
    text = f"\nmpt: {end.reason}\n".encode(errors="replace")
    for action in (lambda: _call_endings(end), lambda: os.write(_main.stderr, text)):  # which may wait for a reader
        worker = threading.Thread(target=action, daemon=True)
        worker.start()
        worker.join(UNHEARD_SECONDS)
    os._exit(end.exit_code)


def _call_endings(end: ForcedEnd) -> None:
    for ending in reversed(_main.endings):
        with suppress(Exception):  # the other endings must run too
            ending(end)


def _print_unless_signal(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print what could not be raised, but for the signal that a handler raised.

    A callback of the garbage collector (JAX has one) and a `__del__` lose what a handler raises in them."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends what Ctrl-C ends. Not SystemExit, which a function of the user's may raise as well."""


def _raise(number: int, _: FrameType | None) -> None:
    if _main.sections:
        _main.held = signal.Signals(number)
        return
    _main.is_heard, _main.raised, _main.held = False, signal.Signals(number), None
    _raise_as_python(number)


def _raise_as_python(number: int) -> NoReturn:
    from multiprocessing import parent_process

    if number == signal.SIGTERM and parent_process() is not None:  # a child, which prints any other exception
        raise SystemExit(SIGNAL_EXIT_CODES[number])
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _unwatched() -> None:
    """Put the default handlers back in a forked process, whose signals are not those of this one."""
    with suppress(ValueError):  # it was not forked by the main thread
        signal.set_wakeup_fd(-1)
        for number in signals_to_handle((*SIGNALS, signal.SIGHUP)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def leave_at_once() -> None:
    """Have the end of the program wait for nothing, whenever that comes."""
    _main.leaves_at_once = True


def raised_signal() -> signal.Signals | None:
    """Return the latest signal where it raised in the main thread: what else that meets is the consequence."""
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
    Signals that were ignored stay so. Python hears none in another thread than the main one.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._depth, self._handled = 0, ExitStack()

    def __enter__(self) -> Self:
        if self._depth == 0:
            self._handled.enter_context(handled_by(self._handle))
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._handled.close()

    def _handle(self, number: int) -> None:
        if self.requested == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)


@contextmanager
def handled_by(handler: Callable[[int], None]) -> Iterator[None]:
    """Have the two signals, unless they are ignored, call `handler` with their number; put back what was before."""

    def handle(number: int, _: FrameType | None) -> None:
        _main.is_heard, _main.heard_at = True, time.monotonic()
        handler(number)

    is_main = threading.current_thread() is threading.main_thread()
    _main.handlers += 1
    before = {number: signal.signal(number, handle) for number in signals_to_handle() if is_main}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        _main.handlers -= 1


@contextmanager
def heard_by_script() -> Iterator[None]:
    """Around a program of the user's, which may catch KeyboardInterrupt, or hear signals itself, and save: Ctrl-C and
    SIGTERM raise as ever where it has no handlers of its own. Where compiled code keeps it from hearing them (a loader
    that does not return), SIGTERM ends it after `UNHEARD_SECONDS`, and a second Ctrl-C does.
    """
    with handled_by(_raise_as_python):
        _main.of_script = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            yield
        finally:
            _main.of_script, _main.is_waiting = {}, False
    _main.is_heard = False  # it went on, and its end is not that of the signal


def signal_of(error: BaseException | None) -> signal.Signals | None:
    """Return what raised it, None where that was no signal.

    >>> signal_of(Terminated()), signal_of(ValueError())
    (<Signals.SIGTERM: 15>, None)
    """
    if not isinstance(error, KeyboardInterrupt):
        return None
    return signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT


def raise_for(number: signal.Signals | None) -> None:
    """Raise what the signal would have: KeyboardInterrupt, or SystemExit with code 143."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(SIGNAL_EXIT_CODES[number])
