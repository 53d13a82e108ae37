"""Commands, executors and running commands: the interface of every place where commands run, and the executor for this
machine. Nothing here imports Keras, NumPy or a cluster's library.
"""

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, inf
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from mpt_cli.errors import config_error
from mpt_cli.files import JsonObject, open_regular
from mpt_cli.jobs.job_process import signal_group, start_process
from mpt_cli.machine import cores_within_limit, memory_limit, visible_gpus
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
MOST_AT_A_TIME = 16  # the default: that many jobs of one person in a cluster's queue are acceptable


@dataclass(frozen=True)
class Command:
    """A command to run. `name` is unique among the commands that run together.

    `subject` is returned to the caller with the ending, unread. Its output is appended to `log`. `environment` adds
    to that of the machine. `gpus` is the largest number of GPUs it can use; `cores` limits its cores, if the result
    depends on their number.
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
    """The end of a command, as its queue or its cluster saw it.

    `exit_code` is negative for a signal, and None if the command could not be started. `seconds` is how long it ran.
    `cause` says why the queue ended it: timeout, interrupt or pruner; None if it ended by itself.
    """

    exit_code: int | None
    seconds: float
    cause: str | None = None
    note: str = ""  # why it could not be started, or how it was lost


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the arguments of `python -m MODULE arguments…`. -P keeps files of the working directory from standing in
    for modules of Python, as the `mpt` script does.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class CannotStart(Exception):
    """The command could not be started; the message says why."""


@dataclass(frozen=True)
class Limits:
    """How many commands run at a time, and for how long."""

    workers: int = 1
    timeout_seconds: float | None = None
    grace_seconds: float = GRACE_SECONDS


class Running(ABC):
    """A command that was started, or given to a cluster, where it may wait in a queue. Use it from one thread; no
    method waits longer than one call of a library.
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
        """Return the cluster's word for its state while it waits; empty once it runs."""
        return ""

    @abstractmethod
    def poll(self) -> int | None:
        """Return its exit code, negative for a signal, TERMINATED if it was lost; None while it runs.

        Once it has one, every process that the command left behind is gone.
        """

    @abstractmethod
    def _signal(self, number: signal.Signals) -> None:
        """Ask it to save and end (SIGTERM), or end it now with its child processes (SIGKILL)."""

    def stop(self, cause: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it once to end, at which `mpt train` saves a checkpoint; or kill it (SIGKILL)."""
        if number not in self._sent_at:
            self._sent_at[number] = time.monotonic()
            self.cause = self.cause or cause
            self._signal(number)

    def check_limits(self, limits: Limits) -> Ending | None:
        """Return its ending; None while it runs. End it after its timeout, and kill it after its grace period."""
        asked_at = self._sent_at.get(signal.SIGTERM)
        if asked_at is not None and time.monotonic() - asked_at > limits.grace_seconds:
            self.stop("", signal.SIGKILL)
        elif limits.timeout_seconds is not None and self.seconds > limits.timeout_seconds:
            self.stop("timeout")
        code = self.poll()
        return None if code is None else self.ending(code)

    def ending(self, code: int) -> Ending:
        return Ending(code, round(self.seconds, 3), self.cause, self.note)


@dataclass
class Executor(ABC):
    """A place where commands run. `settings` are what `launcher.KEY=VALUE` gives, such as {"sbatch.hold": "true"}."""

    settings: Mapping[str, str] = field(default_factory=dict)

    name: ClassVar[str]  # as `--launcher` takes it, and that of its library
    is_here: ClassVar[bool] = False  # its jobs take this machine's cores and GPUs
    can_detach: ClassVar[bool] = False  # it takes all jobs at once and limits how many run at a time
    poll_seconds: ClassVar[float]  # between two looks at what runs

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError if it can't be used here."""

    @property
    def facts(self) -> JsonObject | None:
        """Return its entry in sweep.json."""
        return {"name": self.name, "settings": self.settings}

    def workers(self, jobs: int, wants_gpus: bool) -> int:
        """Return how many jobs run at a time by default."""
        return min(jobs, MOST_AT_A_TIME)

    def environment(self, workers: int) -> dict[str, str]:
        """Return environment variables that set the threads of a job, if their number is known."""
        return {}

    @abstractmethod
    def open(self, folder: Path, workers: int) -> None:
        """Prepare to start so many commands at a time; `folder` is for what a library writes."""

    @abstractmethod
    def start(self, command: Command) -> Running | None:
        """Start a command; return None while there is no room for it. CannotStart if it fails to start."""

    def under_way(self, logs: Iterable[Path]) -> set[Path]:
        """Return the logs of commands that an earlier process started and that continue without it: none here."""
        return set()


@dataclass
class LocalExecutor(Executor):
    """Processes of this machine, which share its GPUs, and its cores if several run at a time."""

    _running: list["LocalProcess"] = field(default_factory=list)

    name = "local"
    is_here = True
    facts = None
    poll_seconds = 0.05
    _workers = 1
    _cores_each: int | None = None

    def check(self) -> None:
        if self.settings:
            remedy = "Name one with --launcher submitit or --launcher ray."
            raise config_error("launcher", "settings are for another launcher than local.", None, remedy)

    def workers(self, jobs: int, wants_gpus: bool) -> int:
        """Return how many jobs the cores, the memory and the GPUs, if any, allow."""
        gpus = len(self.gpus) if wants_gpus else 0
        return max(1, min(jobs, cores_within_limit(), gpus or jobs, memory_limit() // JOB_BYTES))

    def environment(self, workers: int) -> dict[str, str]:
        """Return variables that give each of several jobs its share of the cores. Variables that the user set stay.

        Without them each of N jobs starts a thread per core, and N times too many threads compete.
        """
        if workers <= 1:
            return {}
        threads = str(max(1, cores_within_limit() // workers))
        return {name: threads for name in THREAD_VARIABLES if name not in os.environ}

    def open(self, folder: Path, workers: int) -> None:
        """Pin each job to separate cores, if there are as many cores as jobs. Variables alone are not enough: JAX
        starts a thread for each core that its process may run on, whatever they say.
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
        """Return the GPUs for a command; None while too few are free. More workers than GPUs share them."""
        if not command.gpus or not self.gpus:
            return []
        wanted, most = min(command.gpus, len(self.gpus)), ceil(self._workers / len(self.gpus))
        return least_used(self.gpus, wanted, [running.gpus for running in self._running], most)

    def _cores_for(self, command: Command) -> list[int]:
        """Return the cores that a command is pinned to; empty for all."""
        cores, count = sorted(os.sched_getaffinity(0)), command.cores or self._cores_each
        if count is None or count >= len(cores):
            return []
        return least_used(cores, count, [running.cores for running in self._running], inf) or []


def least_used(items: Sequence[Item], count: int, taken: Sequence[Collection[Item]], most: float) -> list[Item] | None:
    """Return the `count` items that occur least in `taken`; None if too few occur less than `most` times.

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
    """A helper or a cluster gave no usable answer; the message says why."""


def helper_output(
    arguments: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> str:
    """Return the output of a helper without state; NoAnswer if it fails. It is killed after its timeout, or if this
    process is interrupted.
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


def helper_object(
    arguments: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> JsonObject:
    """Return the JSON object in the last line that a helper prints."""
    said = helper_output(arguments, timeout_seconds, environment).strip().splitlines()
    try:
        return dict(json.loads(said[-1]))
    except (IndexError, TypeError, ValueError) as error:
        raise NoAnswer("no JSON object in its last line") from error
