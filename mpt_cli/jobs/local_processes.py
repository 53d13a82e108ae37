"""A command, what starts one, and one that was started: the interface of every place where commands run, and the place
that is this machine. Light: nothing here knows of Keras, NumPy or a cluster.
"""

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import spawn
from multiprocessing.spawn import spawn_main as spawn_main
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from mpt_cli.files import open_regular
from mpt_cli.jobs.job_process import signal_group, start_process

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Share:
    """What of the machine a command has to itself. No cores: it may use them all. `variables` show it its GPUs."""

    gpus: Sequence[str] = ()
    cores: frozenset[int] = frozenset()
    variables: Mapping[str, str] = field(default_factory=dict)


WHOLE_MACHINE = Share()


@dataclass(frozen=True)
class Command(Generic[Subject]):
    """What is to be run. `name` is unique among those that run together.

    `subject` is what the caller wants back with its ending, and is never looked at. Standard error goes to the end of
    `log`, to nowhere without one. Its `environment` comes on top of that of the machine it runs on. `gpus` is how many
    it wants at most, `cores` how many it may use at most, where what it comes to hangs on that. `is_submitted`: a
    cluster was given it before, by this process or an earlier one, and it is only waited for.
    """

    name: str
    arguments: Sequence[str]
    subject: Subject
    log: Path | None = None
    cwd: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    cores: int | None = None
    is_submitted: bool = False


@dataclass(frozen=True)
class Ending:
    """How a command ended, as its queue or its cluster saw it.

    `exit_code` is negative for a signal and None where it could not be started. `seconds` is how long it ran. `cause`
    says why the queue ended it: timeout, interrupt or pruner; None where it ended of its own.
    """

    exit_code: int | None
    seconds: float
    cause: str | None = None
    limit_seconds: float | None = None  # of a timeout
    note: str = ""  # why it could not be started, or was lost


def mpt_command(verb: str, *overrides: str) -> list[str]:
    """Return the arguments of `mpt VERB overrides…`, run by this installation."""
    return module_command("mpt_cli", verb, *overrides)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the arguments of `python -m MODULE arguments…`. -P keeps files of the working directory from standing in
    for modules of Python, as the `mpt` script does.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class Lost(Exception):
    """The command ended without an exit code: its machine went away, or it never began. The message says what is
    known.
    """


class CannotStart(Exception):
    """The command could not be started; the message says why."""


class Handle(Protocol):
    """A command that was started. Used from one thread; nothing here waits for longer than a library's own call."""

    @property
    def seconds(self) -> float | None:
        """Return how long it has run; None while it waits in a cluster's queue."""

    @property
    def waits_for(self) -> str:
        """Return what its cluster says of it while it waits."""

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs. Lost where there will be none.

        Once there is one, whatever the command left running is gone.
        """

    def terminate(self) -> None:
        """Ask it once to save and end."""

    def kill(self) -> None:
        """End it now, with all that it started."""


class Executor(ABC):
    """A place where commands run."""

    poll_seconds: float  # between two looks at what runs

    @abstractmethod
    def start(self, command: Command[Any], share: Share) -> Handle:
        """Start a command; CannotStart where that fails."""

    def under_way(self, logs: Iterable[Path]) -> set[Path]:
        """Return the logs of commands that an earlier process started and that continue without it: none here."""
        return set()


class LocalExecutor(Executor):
    """Processes of this machine."""

    poll_seconds = 0.05

    def start(self, command: Command[Any], share: Share = WHOLE_MACHINE) -> "LocalHandle":
        environment = {**command.environment, **share.variables}
        with ExitStack() as stack:
            try:
                stderr: Any = subprocess.DEVNULL
                if command.log is not None:
                    stderr = stack.enter_context(open(command.log, "ab", opener=open_regular))
                return LocalHandle(start_process(command.arguments, command.cwd, environment, stderr, share.cores))
            except (OSError, subprocess.SubprocessError) as error:
                raise CannotStart(str(error)) from error


class LocalHandle:
    """A process of this machine, and its group."""

    waits_for = ""

    def __init__(self, process: "subprocess.Popen[Any]") -> None:
        self._process, self._started_at = process, time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_at

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        if self._process.returncode is None and self._process.poll() is not None:
            signal_group(self.pid, signal.SIGKILL)
        return self._process.returncode

    def terminate(self) -> None:
        if self._process.returncode is None:
            signal_group(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self._process.returncode is None:
            signal_group(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Answer:
    """What a short helper said; `why` is empty unless it could not be started or gave no answer in time."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    why: str = ""

    @property
    def json(self) -> dict[str, Any]:
        """Return the object in the last line of its output; ValueError where there is none."""
        found = json.loads((self.stdout.strip().splitlines() or [""])[-1])
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found


def call(
    arguments: Sequence[str],
    timeout_seconds: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a helper that keeps nothing, and wait for it. Past its time, and where this process is interrupted, it is
    killed.
    """
    try:
        done = subprocess.run(
            arguments,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return Answer(None, why=f"no answer within {timeout_seconds:.0f} seconds")
    except OSError as error:
        return Answer(None, why=str(error))
    return Answer(done.returncode, done.stdout, done.stderr)


@contextmanager
def spawning_by(statement: str) -> Iterator[None]:
    """Make processes that `multiprocessing` spawns run `statement`, with what `spawn_main` is given for %r."""
    command_line = spawn.get_command_line

    def other(**given: Any) -> list[str]:
        line: list[str] = command_line(**given)
        line[line.index("-c") + 1] = statement.replace("%r", repr(given))
        return line

    spawn.get_command_line = other
    try:
        yield
    finally:
        spawn.get_command_line = command_line
