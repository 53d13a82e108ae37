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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, inf
from multiprocessing import spawn, util
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.spawn import spawn_main as spawn_main
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from mpt_cli.errors import config_error
from mpt_cli.files import open_regular
from mpt_cli.jobs.job_process import signal_group, start_process
from mpt_cli.machine import cores_of_process, memory_bytes, visible_gpus
from mpt_cli.signals import GRACE_SECONDS

Item = TypeVar("Item")
JOB_BYTES = 3 * 2**29  # 1.5 GiB: a small TensorFlow job was measured at 1.05 GB
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA's, under JAX
)
_CGROUP = Path("/sys/fs/cgroup")
MOST_AT_A_TIME = 16  # where nobody said how many: so many jobs of one person wait in a cluster's queue without offence


@dataclass(frozen=True)
class Command:
    """What is to be run. `name` is unique among those that run together.

    `subject` is what the caller wants back with its ending, and is never looked at. Standard error goes to the end of
    `log`. Its `environment` comes on top of that of the machine it runs on. `gpus` is how many it wants at most,
    `cores` how many it may use at most, where what it comes to hangs on that.
    """

    name: str
    arguments: Sequence[str]
    subject: Any
    log: Path
    cwd: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    cores: int | None = None


@dataclass(frozen=True)
class Ending:
    """How a command ended, as its queue or its cluster saw it.

    `exit_code` is negative for a signal, and None if the command could not be started. `seconds` is how long it ran.
    `cause` says why the queue ended it: timeout, interrupt or pruner; None if it ended by itself.
    """

    exit_code: int | None
    seconds: float
    cause: str | None = None
    note: str = ""  # why it could not be started, or how it was lost


def mpt_command(verb: str, *overrides: str) -> list[str]:
    """Return the arguments of `mpt VERB overrides…`, run by this installation."""
    return module_command("mpt_cli", verb, *overrides)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the arguments of `python -m MODULE arguments…`. -P keeps files of the working directory from standing in
    for modules of Python, as the `mpt` script does.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class CannotStart(Exception):
    """The command could not be started; the message says why."""


@dataclass(frozen=True)
class Limits:
    """How much at a time and for how long."""

    workers: int = 1
    timeout_seconds: float | None = None
    grace_seconds: float = GRACE_SECONDS


class Running(ABC):
    """A command that was started, or given to a cluster in whose queue it may wait. Used from one thread; nothing here
    waits for longer than a library's own call.
    """

    note = ""  # what its cluster says of its end

    def __init__(self, command: Command) -> None:
        self.command = command
        self.cause: str | None = None
        self._sent_at: dict[signal.Signals, float] = {}

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Return how long it has run; 0 while it waits."""

    @property
    def waits_for(self) -> str:
        """Return what its cluster says of it while it does not run; empty where it runs."""
        return ""

    @abstractmethod
    def poll(self) -> int | None:
        """Return its exit code, negative for a signal, TERMINATED where it was lost; None while it runs.

        Once there is one, whatever the command left running is gone.
        """

    @abstractmethod
    def _signal(self, number: signal.Signals) -> None:
        """Ask it to save and end (SIGTERM), or end it now with all that it started (SIGKILL)."""

    def stop(self, cause: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask once, where `mpt train` saves a checkpoint and ends; or kill it (SIGKILL)."""
        if number not in self._sent_at:
            self._sent_at[number] = time.monotonic()
            self.cause = self.cause or cause
            self._signal(number)

    def look(self, limits: Limits) -> Ending | None:
        """Return how it ended; None while it runs. End it when its time is over, and kill it when the grace is over
        too.
        """
        asked_at = self._sent_at.get(signal.SIGTERM)
        if asked_at is not None and time.monotonic() - asked_at > limits.grace_seconds:
            self.stop("", signal.SIGKILL)
        elif limits.timeout_seconds is not None and self.seconds > limits.timeout_seconds:
            self.stop("timeout")
        code = self.poll()
        return None if code is None else self.ending(code)

    def ending(self, code: int) -> Ending:
        return Ending(code, round(self.seconds, 3), self.cause, self.note)


class Executor(ABC):
    """A place where commands run. `settings` are what `launcher.KEY=VALUE` gives, such as {"sbatch.hold": "true"}."""

    name: ClassVar[str]  # as `--launcher` takes it, and that of its library
    is_here: ClassVar[bool] = False  # its jobs take this machine's cores and GPUs
    can_detach: ClassVar[bool] = False  # it takes all jobs at once and limits how many run at a time
    poll_seconds: float  # between two looks at what runs

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError where it can't be used here."""

    @property
    def facts(self) -> dict[str, Any] | None:
        """Return what sweep.json holds of it."""
        return {"name": self.name, "settings": self.settings}

    def workers(self, jobs: int, wants_gpus: bool) -> int:
        """Return how many jobs run at a time by default."""
        return min(jobs, MOST_AT_A_TIME)

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with the threads of a job, where it is known how many."""
        return {}

    @abstractmethod
    def open(self, folder: Path, workers: int) -> None:
        """Prepare to start so many commands at a time; `folder` is for what a library writes."""

    @abstractmethod
    def start(self, command: Command) -> Running | None:
        """Start a command; CannotStart where that fails, None while there is no room for it beside those that run."""

    def under_way(self, logs: Iterable[Path]) -> set[Path]:
        """Return the logs of commands that an earlier process started and that continue without it: none here."""
        return set()


def usable_cores() -> int:
    """Return how many cores this process may use, a container's limit included."""
    cores = cores_of_process()
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_limit() -> int | None:
    """Return how much memory this machine has, or this container may use."""
    limit = _read(_CGROUP / "memory.max").strip()
    return int(limit) if limit.isdigit() else memory_bytes()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class LocalExecutor(Executor):
    """Processes of this machine, which share its GPUs, and its cores if several run at a time."""

    name = "local"
    is_here = True
    facts = None
    poll_seconds = 0.05
    _workers = 1
    _cores_each: int | None = None

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings)
        self._running: list[LocalProcess] = []

    def check(self) -> None:
        if self.settings:
            remedy = "Name one with --launcher submitit or --launcher ray."
            raise config_error("launcher", "settings are for another launcher than local.", None, remedy)

    def workers(self, jobs: int, wants_gpus: bool) -> int:
        """Return as many as there are cores, memory and, if any, GPUs for."""
        gpus, memory = len(self.gpus) if wants_gpus else 0, memory_limit()
        limits = [jobs, usable_cores(), *([gpus] if gpus else []), *([memory // JOB_BYTES] if memory else [])]
        return max(1, min(limits))

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables that give each of several jobs its share of the cores. Those that the user has set stay.

        Without them each of N jobs starts a thread per core, and N times as many threads wait for one another.
        """
        if workers <= 1:
            return {}
        threads = str(max(1, usable_cores() // workers))
        return {name: threads for name in THREAD_VARIABLES if name not in environment}

    def open(self, folder: Path, workers: int) -> None:
        """Give each job cores to itself, where there are as many as jobs. Variables alone do not do it: JAX makes a
        thread per core that its process may run on, whatever they say.
        """
        cores = len(os.sched_getaffinity(0))
        self._workers, self._cores_each = workers, cores // workers if 1 < workers <= cores else None

    @cached_property
    def gpus(self) -> list[str]:
        return visible_gpus(os.environ)

    def start(self, command: Command) -> "LocalProcess | None":
        self._running = [running for running in self._running if running.is_alive]
        gpus, cores = self._gpus_for(command), self._cores_for(command)
        if gpus is None:
            return None
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {}
        try:
            with open(command.log, "ab", opener=open_regular) as log:
                process = start_process(command.arguments, command.cwd, {**command.environment, **shown}, log, cores)
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(str(error)) from error
        self._running.append(LocalProcess(command, process, gpus, cores))
        return self._running[-1]

    def _gpus_for(self, command: Command) -> list[str] | None:
        """Return those that it gets; None while too few are free. More workers than GPUs share them."""
        if not command.gpus or not self.gpus:
            return []
        wanted, most = min(command.gpus, len(self.gpus)), ceil(self._workers / len(self.gpus))
        return least_used(self.gpus, wanted, [running.gpus for running in self._running], most)

    def _cores_for(self, command: Command) -> list[int]:
        """Return those that it is kept to; empty for all."""
        cores, count = sorted(os.sched_getaffinity(0)), command.cores or self._cores_each
        if count is None or count >= len(cores):
            return []
        return least_used(cores, count, [running.cores for running in self._running], inf) or []


def least_used(items: Sequence[Item], count: int, taken: Sequence[Collection[Item]], most: float) -> list[Item] | None:
    """Return `count` of the items, those that the fewest `taken` shares have; None while too many of all are in `most`
    shares already.

    >>> least_used("abc", 2, ["a", "c"], most=1), least_used("abc", 2, ["a", "c"], most=2)
    (None, ['b', 'a'])
    """
    load = {item: sum(item in share for share in taken) for item in items}
    free = sorted((item for item in items if load[item] < most), key=load.__getitem__)
    return free[:count] if len(free) >= count else None


class LocalProcess(Running):
    """A process of this machine, and its group."""

    def __init__(
        self, command: Command, process: "subprocess.Popen[Any]", gpus: Sequence[str], cores: Sequence[int]
    ) -> None:
        super().__init__(command)
        self._process, self._started_at = process, time.monotonic()
        self.gpus, self.cores = gpus, cores

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_at

    def poll(self) -> int | None:
        if self.is_alive and self._process.poll() is not None:
            signal_group(self._process.pid, signal.SIGKILL)
        return self._process.returncode

    def _signal(self, number: signal.Signals) -> None:
        if self.is_alive:
            signal_group(self._process.pid, number)


class NoAnswer(Exception):
    """A helper, or a cluster, said nothing of use; the message says why."""


def ask(arguments: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """Return what a helper that keeps nothing prints; NoAnswer where it fails. Past its time, and where this process is
    interrupted, it is killed.
    """
    try:
        return subprocess.run(
            arguments,
            env={**os.environ, **(environment or {})},
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
        ).stdout
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"no answer within {timeout_seconds:.0f} seconds") from error
    except subprocess.CalledProcessError as error:
        raise NoAnswer((error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]) from error
    except OSError as error:
        raise NoAnswer(str(error)) from error


def ask_object(
    arguments: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON object in the last line that a helper prints."""
    said = ask(arguments, timeout_seconds, environment).strip().splitlines()
    try:
        return dict(json.loads(said[-1]))
    except (IndexError, TypeError, ValueError) as error:
        raise NoAnswer("no JSON object in its last line") from error


@contextmanager
def spawning_by(statement: str) -> Iterator[None]:
    """Make processes that `multiprocessing` spawns run `statement`, with what `spawn_main` is given for %r. Those of
    its fork server, which differ in nothing that they see, are spawned too."""
    command_line, of_server = spawn.get_command_line, vars(ForkServerProcess)["_Popen"]

    def other(**given: Any) -> list[str]:
        line: list[str] = command_line(**given)
        line[line.index("-c") + 1] = statement.replace("%r", repr(given))
        return line

    spawn.get_command_line = other
    ForkServerProcess._Popen = vars(SpawnProcess)["_Popen"]  # type: ignore[method-assign]
    try:
        yield
    finally:
        spawn.get_command_line = command_line
        ForkServerProcess._Popen = of_server  # type: ignore[method-assign]


def at_end_of_forked(action: Callable[[], object]) -> None:
    """Call `action`, while somebody holds it, at the end of each process that `multiprocessing` forks."""
    util.register_after_fork(action, lambda action: util.Finalize(None, action, exitpriority=0))
