"""A command, what starts one, and one that was started: the interface of every place where commands run, and the place
that is this machine. Light: nothing here knows of Keras, NumPy or a cluster.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, Protocol, Self, TextIO, TypeVar

from mpt_cli.errors import OK, TERMINATED
from mpt_cli.jobs import guarded_start
from mpt_cli.jobs.fork_server import (
    IS_POSSIBLE,
    OPTIONS,
    Birth,
    ForkedProcess,
    ForkServer,
    Invocation,
    ServerLost,
    end_zombies,
)
from mpt_cli.machine import visible_gpus
from mpt_cli.runs.directory import note_holder, read_holder, take_lock
from mpt_cli.settings.limits import open_to_append
from mpt_cli.signals import handled_by

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Standing:
    """What tells whether a command still runs that a process before this one started: it holds `lock` itself as long
    as it lives. `outcome` is the exit code with which it came to its end, None where it did not.
    """

    lock: Path
    outcome: Callable[[], int | None]

    @property
    def is_held(self) -> bool:
        with ExitStack() as stack, suppress(CannotStart):  # which is said where it is started
            return self.lock.exists() and _take(self.lock, stack) is None
        return False


@dataclass(frozen=True)
class Command(Generic[Subject]):
    """What is to be run. `name` is unique among those that run together.

    `subject` is what the caller wants back with its ending, and is never looked at. Standard error goes to the end of
    `log`, to nowhere without one; where the command `is_heard`, all its streams are those of this process. Its
    `environment` comes on top of that of the machine it runs on. `gpus` is how many it wants at most. With a `standing`
    it never runs twice at a time on this machine: where it does already, its end is waited for. A `framework` is the
    backend that it computes with, where it may be forked from a process of this machine that has imported it, and
    behind it the variables that it is to be imported with ("tensorflow NAME=value"). `cores`
    is how many it may use at most, where what it comes to hangs on that.
    """

    name: str
    arguments: Sequence[str]
    subject: Subject
    log: Path | None = None
    cwd: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    attempt: int = 1
    is_heard: bool = False
    standing: Standing | None = None
    framework: str | None = None
    cores: int | None = None


@dataclass(frozen=True)
class Share:
    """What of the machine a command has to itself. No cores: it may use them all. `variables` show it its GPUs."""

    gpus: Sequence[str] = ()
    cores: frozenset[int] = frozenset()
    variables: Mapping[str, str] = field(default_factory=dict)


WHOLE_MACHINE = Share()


def mpt_command(verb: str, *overrides: str) -> list[str]:
    """`mpt VERB overrides…` of this very installation.

    -P keeps files of the working directory from standing in for modules of Python, as the `mpt` script does.
    """
    return module_command("mpt_cli", verb, *overrides)


def module_command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, *OPTIONS, module, *arguments]


class Lost(Exception):
    """The command ended without an exit code: its machine went away, or it never began. The message says what is
    known.
    """


class CannotStart(Exception):
    """The command could not be started; the message says why."""


class Handle(Protocol):
    """A command that was started. Used from one thread; nothing here waits for longer than a library's own call.

    One of this machine has a `descriptor` too, which can be read once `poll` has something new.
    """

    @property
    def has_begun(self) -> bool:
        """Whether it runs, or still waits in a cluster's queue."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. Lost where there will be none.

        Once there is one, whatever the command left running is gone.
        """

    def terminate(self) -> None:
        """Ask it once to save and end."""

    def kill(self) -> None:
        """End it now, with all that it started."""


class Executor(Protocol):
    """A place where commands run. A context manager: at its end nothing of it is left."""

    @property
    def poll_seconds(self) -> float:
        """Between two looks at what runs."""

    def start(self, command: Command[Any], share: Share) -> Handle:
        """CannotStart where that fails."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Guard:
    """A small `sh` that outlives this process: where that is killed, it ends what was started and not called off.

    `end` is the command that it runs for each name. It waits for the end of its input, which this process writes, and
    what it starts (`start`) until that has become a program; it is deaf to the signals that a whole job of a cluster,
    or a terminal, gets.
    """

    _SCRIPT = """trap '' INT TERM HUP USR1 USR2
    names=' '
    while read -r verb name; do case $verb in
      add) names="$names$name " ;;
      remove) names="${names%% $name *} ${names#* $name }" ;;
      done) exit 0 ;;
    esac; done
    for name in $names; do "$@" "$name"; done"""

    def __init__(self, *end: str) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", self._SCRIPT, "sh", *end], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def start(
        self, arguments: Sequence[str], kept: Sequence[int], **options: Any
    ) -> "subprocess.Popen[bytes]":  # fmt: skip
        """A process in a group of its own, which is known here before it becomes what the `arguments` say; it keeps
        these descriptors. OSError where it can't be started."""
        told, failure = os.pipe()
        own = (self._input.fileno(), failure)
        by = [sys.executable, "-I", "-S", guarded_start.PATH, *map(str, own)]
        with open(told, "rb") as failed:
            try:
                process = subprocess.Popen([*by, *arguments], process_group=0, pass_fds=[*kept, *own], **options)
            finally:
                os.close(failure)
            self._await_start(process, arguments[0], failed)
        return process

    def _await_start(self, process: "subprocess.Popen[bytes]", program: str, failed: IO[bytes]) -> None:
        """Until it has become the program, or can't."""
        try:
            number = failed.read()
        except BaseException:  # a signal of this process
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        if number:
            process.wait()
            self.remove(-process.pid)
            raise OSError(int(number), os.strerror(int(number)), program)

    def add(self, name: object) -> None:
        self._tell(f"add {name}\n")

    def remove(self, name: object) -> None:
        self._tell(f"remove {name}\n")

    def close(self) -> None:
        self._tell("done\n")
        with suppress(OSError):
            self._input.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # it was killed: then nothing is guarded
            self._input.write(line.encode())
            self._input.flush()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin


class LocalExecutor:
    """Processes of this machine, each a group of its own, which keeps the terminal's Ctrl-C from it and lets its
    helpers be ended with it. They end when this process is killed, unless someone else sees to that (`is_guarded`
    False). A command with a `framework` is forked from a server that holds it, where that is sound.
    """

    poll_seconds = 0.05

    def __init__(self, is_guarded: bool = True) -> None:
        self._is_guarded = is_guarded
        self._guard: Guard | None = None
        self._servers: _Servers | None = None
        self._left: set[int] = set()

    def __enter__(self) -> Self:
        self._guard = Guard("kill", "-s", "KILL", "--") if self._is_guarded else None
        self._servers = _Servers(self._guard) if self._guard is not None and IS_POSSIBLE else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._servers is not None:
            self._servers.close()
            self._servers = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def start(self, command: Command[Any], share: Share = WHOLE_MACHINE) -> Handle:
        if command.standing is None:
            return self._start(command, share)
        return self.start_alone(command, command.standing, share) or SuccessorHandle(self, command, share)

    def start_alone(self, command: Command[Any], standing: Standing, share: Share) -> Handle | None:
        """None where the command still runs that a process before this one started, or came to a good end by now."""
        with ExitStack() as stack:
            lock = _take(standing.lock, stack)
            return None if lock is None or standing.outcome() == OK else self._start(command, share, lock)

    def _start(self, command: Command[Any], share: Share, lock: TextIO | None = None) -> Handle:
        self._left = {group for group in self._left if not end_zombies(group)}
        if self._servers is not None and (forking := self._servers.fork(self, command, share, lock)) is not None:
            forking.begin()
            return forking
        return self.start_process(command, share, lock)

    def lose(self, server: ForkServer) -> None:
        """What was to be forked from it is started anew, and what comes after from another."""
        if self._servers is not None:
            self._servers.lose(server)

    def start_process(
        self, command: Command[Any], share: Share = WHOLE_MACHINE, lock: TextIO | None = None
    ) -> "LocalHandle":  # fmt: skip
        """A program of its own, whatever else may run of the command; it holds `lock` as long as it lives."""
        assert self._guard is not None or not self._is_guarded, "used outside of its with statement"
        try:
            with ExitStack() as stack, _kept_to(share.cores):
                options = {"cwd": command.cwd, "env": _environment(command, share), **_streams(command, stack)}
                process = self._popen(command.arguments, [lock.fileno()] if lock else [], options)
        except OSError as error:
            raise CannotStart(str(error)) from error
        return self._handle(process, lock)

    def _popen(
        self, arguments: Sequence[str], kept: Sequence[int], options: dict[str, Any]
    ) -> "subprocess.Popen[bytes]":  # fmt: skip
        if self._guard is not None:
            return self._guard.start(arguments, kept, **options)
        return subprocess.Popen(arguments, process_group=0, pass_fds=kept, **options)

    def take_over(self, process: ForkedProcess, lock: TextIO | None) -> "LocalHandle":
        """One that waits to be told what it is: where this process is killed before, it ends by itself."""
        if self._guard is not None:
            self._guard.add(-process.pid)  # the group
        return self._handle(process, lock)

    def _handle(self, process: "subprocess.Popen[bytes] | ForkedProcess", lock: TextIO | None) -> "LocalHandle":
        self._left.discard(process.pid)
        handle = LocalHandle(process, self._guard, self._left)
        try:
            if lock is not None:
                note_holder(lock, process.pid)
        except OSError as error:
            handle.kill()
            handle.wait_ended()
            handle.poll()
            raise CannotStart(f"its lock file can't be written: {error.strerror}") from error
        return handle


def _environment(command: Command[Any], share: Share) -> dict[str, str]:
    return {**os.environ, **command.environment, **share.variables}


_FORK_SECONDS = 0.25  # for a fork of a server that is ready: on an idle machine it takes 0.01
_MOST_SERVERS = 2  # one for each backend: an idle one takes memory


class _Servers:
    """The servers that commands are forked from: one for each backend, environment and number of cores, as frameworks
    read variables and count cores when they are imported.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._running: dict[Any, ForkServer] = {}
        self._unfit: set[Any] = set()

    def close(self) -> None:
        for key in list(self._running):
            self._end(key)

    def fork(
        self, executor: LocalExecutor, command: Command[Any], share: Share, lock: TextIO | None
    ) -> "ForkingHandle | None":
        """None where it is to be a Python of its own: where no framework is named, where it could see a GPU, which no
        process may have touched before a fork, and where a server has failed before it forked anything.
        """
        invocation = _invocation(command, share)
        if invocation is None or command.framework is None:
            return None
        key = (command.framework.split()[0], len(invocation.cores), *sorted(invocation.environment.items()))
        if key not in self._running and key not in self._unfit and visible_gpus(invocation.environment):
            self._unfit.add(key)
        if key in self._unfit:
            return None
        with ExitStack() as stack:
            try:
                streams = [*_streams(command, stack).values()]
                folder = os.open(command.cwd or ".", os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, folder)
            except OSError:  # which is said where it is started as ever
                return None
            try:
                birth = self._server(key, invocation, share).fork(folder, streams, [lock.fileno()] if lock else [])
            except OSError:
                self._end(key)
                return None
        return ForkingHandle(executor, command, share, birth, invocation, lock)

    def lose(self, server: ForkServer) -> None:
        """It is gone. One that did not come so far as to fork is not tried again."""
        for key in [key for key, each in self._running.items() if each is server]:
            if not server.has_forked:
                self._unfit.add(key)
            self._end(key)

    def _server(self, key: Any, invocation: Invocation, share: Share) -> ForkServer:
        if key not in self._running:
            while len(self._running) >= _MOST_SERVERS:
                self._end(next(iter(self._running)))
            with _kept_to(share.cores):
                self._running[key] = ForkServer(key[0], invocation.environment)
            self._guard.add(-self._running[key].process.pid)
        return self._running[key]

    def _end(self, key: Any) -> None:
        if (server := self._running.pop(key, None)) is not None:
            self._guard.remove(-server.process.pid)
            server.close()


def _invocation(command: Command[Any], share: Share) -> Invocation | None:
    """What a forked process is to run; None where that is no module of this Python."""
    own = module_command("")[:-1]
    if command.is_heard or list(command.arguments[: len(own)]) != own:
        return None
    name, *words = command.arguments[len(own) :]
    read_at_import = dict(word.split("=", 1) for word in (command.framework or "").split()[1:])
    return Invocation(name, words, _environment(command, share) | read_at_import, sorted(share.cores))


def _take(lock: Path, stack: ExitStack) -> TextIO | None:
    """The lock file, locked until the stack is closed and whoever was given it has ended; None where it is taken."""
    try:
        file = stack.enter_context(open_to_append(lock))
    except OSError as error:
        raise CannotStart(f"{lock} can't be written: {error.strerror}") from error
    return file if take_lock(file) else None


def _streams(command: Command[Any], stack: ExitStack) -> dict[str, Any]:
    """Descriptors of its own streams; none where it is heard."""
    if command.is_heard:
        return {}
    nowhere = os.open(os.devnull, os.O_RDWR)
    stack.callback(os.close, nowhere)
    if command.log is None:
        return {"stdin": nowhere, "stdout": nowhere, "stderr": nowhere}
    said = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    stack.callback(os.close, said)
    return {"stdin": nowhere, "stdout": nowhere, "stderr": said}


class LocalHandle:
    """A process of this machine, and its group, which is among those `left` once it has ended: what was killed with it
    is a zombie of this process for a moment.
    """

    has_begun = True

    def __init__(
        self, process: "subprocess.Popen[bytes] | ForkedProcess", guard: Guard | None, left: set[int]
    ) -> None:  # fmt: skip
        self._process, self._guard, self._left = process, guard, left
        self._seen_by = _pidfd(process.pid)

    @property
    def descriptor(self) -> int | None:
        return self._seen_by

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        if self._process.returncode is None and self._has_ended():
            self.kill()
            if self._guard is not None:
                self._guard.remove(-self.pid)
            self._process.wait()
            self._left.add(self.pid)
            self._close()
        return self._process.returncode

    def terminate(self) -> None:
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """To the process alone."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_ended(self) -> None:
        """Until the process has ended, which `poll` then finds. Fit for a signal handler that interrupts `poll`."""
        while not self._has_ended():
            time.sleep(LocalExecutor.poll_seconds)

    def _close(self) -> None:
        if self._seen_by is not None:
            os.close(self._seen_by)
            self._seen_by = None

    def _has_ended(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS, with a Python before 3.13
            return self._process.poll() is not None
        # WNOWAIT leaves the process as a zombie, so that its group can't be anyone else's until `poll` has cleared it
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _pidfd(pid: int) -> int | None:
    """What can be read once the process has ended; None where the system has no such thing, or no more of them."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


class ForkingHandle:
    """A command that is forked from a server, first of all while that still imports; where it comes to nothing, the
    command is started as a Python of its own.
    """

    has_begun = True  # its time counts from here, as that of one that imports by itself

    def __init__(
        self, executor: LocalExecutor, command: Command[Any], share: Share, birth: Birth, invocation: Invocation,
        lock: TextIO | None,
    ) -> None:  # fmt: skip
        self._executor, self._command, self._share = executor, command, share
        self._birth, self._invocation = birth, invocation
        self._lock = None if lock is None else os.fdopen(os.dup(lock.fileno()), "a", encoding="utf-8")
        self._handle: LocalHandle | None = None
        self._code: int | None = None

    @property
    def descriptor(self) -> int | None:
        """Before it has begun that of its birth."""
        if self._handle is not None:
            return self._handle.descriptor
        return self._birth.descriptor if self._code is None else None

    def begin(self) -> None:
        """At once where its server forks already, which takes some milliseconds: less than until the next look."""
        if self._birth.server.has_forked:
            self._meet(_FORK_SECONDS)

    def poll(self) -> int | None:
        if self._handle is None and self._code is None:
            try:
                self._meet()
            except CannotStart as error:
                raise Lost(f"it could not be started: {error}") from error
        return self._code if self._handle is None else self._handle.poll()

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _meet(self, timeout_seconds: float = 0.0) -> None:
        try:
            pid = self._birth.pid(timeout_seconds)
        except ServerLost:
            self._executor.lose(self._birth.server)
            self._start_anew()
            return
        if pid is not None:
            self._take_over(pid)

    def _take_over(self, pid: int) -> None:
        try:
            self._handle = self._executor.take_over(ForkedProcess(pid), self._lock)
            self._birth.begin(self._invocation)
        finally:
            self._let_go()

    def _start_anew(self) -> None:
        try:
            self._handle = self._executor.start_process(self._command, self._share, self._lock)
        finally:
            self._let_go()

    def _end(self, number: signal.Signals) -> None:
        if self._handle is not None:
            self._handle.terminate() if number == signal.SIGTERM else self._handle.kill()
        elif self._code is None:
            self._birth.call_off()
            self._code = -number
            self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()


class SuccessorHandle:
    """A command that still runs for a process that was killed, and is watched to its end; where it did not come to one
    (it was killed too), it is started again.
    """

    def __init__(self, executor: LocalExecutor, command: Command[Any], share: Share) -> None:
        assert command.standing is not None
        self._executor, self._command, self._share, self._standing = executor, command, share, command.standing
        self._handle: Handle | None = None
        self._is_asked = False

    @property
    def has_begun(self) -> bool:
        return self._handle is not None

    @property
    def descriptor(self) -> int | None:
        return getattr(self._handle, "descriptor", None)

    def poll(self) -> int | None:
        if self._handle is not None:
            return self._handle.poll()
        if self._standing.is_held:
            return None
        code = self._standing.outcome()
        if code is not None or self._is_asked:
            return TERMINATED if code is None else code
        try:
            self._handle = self._executor.start_alone(self._command, self._standing, self._share)
        except CannotStart as error:
            raise Lost(f"it could not be started: {error}") from error
        return None

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        self._is_asked = True
        holder = read_holder(self._standing.lock)
        if self._handle is not None:
            self._handle.terminate() if number == signal.SIGTERM else self._handle.kill()
        elif holder is not None and holder.is_gone is False:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(holder.pid, number)


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


@dataclass(frozen=True)
class Answer:
    """What a short helper said; `why` is empty unless it could not be started or gave no answer in time."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    why: str = ""

    @property
    def json(self) -> dict[str, Any]:
        """The object in the last line of its output; ValueError where there is none."""
        found = json.loads((self.stdout.strip().splitlines() or [""])[-1])
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found


@contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """Those that come while a process is started: raised there, they would leave it running, known to nobody."""
    kept: list[int] = []
    with handled_by(kept.append) if threading.current_thread() is threading.main_thread() else nullcontext():
        yield kept


def call(
    arguments: Sequence[str], timeout_seconds: float, cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Answer:  # fmt: skip
    """Runs a helper that keeps nothing, and waits for it. Past its time, and where this process is interrupted, it is
    killed with all it started.
    """
    try:
        with _signals_kept() as kept:
            process = subprocess.Popen(
                arguments, cwd=cwd, env={**os.environ, **(environment or {})}, process_group=0, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
    except OSError as error:
        return Answer(None, why=str(error))
    with process:
        try:
            for number in kept:
                signal.raise_signal(number)
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return Answer(None, why=f"no answer within {timeout_seconds:.0f} seconds")
            raise
    return Answer(process.returncode, stdout, stderr)
