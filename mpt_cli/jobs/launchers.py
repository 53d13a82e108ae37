"""Where commands run: a class for each launcher, whose fields are what it takes as `launcher.key=value`, and what is
checked before anything starts. Light: `mpt sweep --help` reads the names here.
"""

import importlib.util
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from mpt_cli.errors import ConfigError, DataError, Problem, did_you_mean, install_command
from mpt_cli.jobs.capacity import (
    THREAD_VARIABLES,
    cores_each,
    fitting_workers,
    thread_environment,
)
from mpt_cli.jobs.executor import Executor, LocalExecutor
from mpt_cli.redaction import REDACTED, note_passwords
from mpt_cli.settings.key import BadValue, Key, default_of, read_value
from mpt_cli.telemetry.records import field_problem

if TYPE_CHECKING:
    from mpt_cli.jobs.cluster import Cluster

PREFIX = "launcher."
MOST_AT_A_TIME = 16  # where nobody said how many: so many jobs of one person wait in a cluster's queue without offence
_PROGRAMS = ("sbatch", "srun", "scancel", "squeue", "scontrol")  # of Slurm
_LOCAL_SETTINGS = ("cluster", "timeout_min", "cpus_per_task")  # what submitit's processes of this machine take


@dataclass(frozen=True)
class Launcher(ABC):
    """A place where jobs run. Its fields are its settings."""

    name: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]

    def check(self) -> None:
        """Raise ConfigError where it can't be used here."""
        if importlib.util.find_spec(self.package) is None:
            remedy = install_command(self.extra)
            raise ConfigError(Problem("--launcher", f"{self.package} is not installed.", self.name, remedy))

    @property
    @abstractmethod
    def is_here(self) -> bool:
        """Return whether its jobs take this machine's cores and GPUs."""

    @property
    def can_detach(self) -> bool:
        """Return whether it takes all jobs at once and limits how many run at a time."""
        return False

    @property
    def description(self) -> str:
        """Return the words for it in the first line of a sweep."""
        return f"through {self.name}"

    @property
    def facts(self) -> dict[str, Any] | None:
        """Return what sweep.json holds of it."""
        return {"name": self.name, "settings": asdict(self)}

    def workers(self, jobs: int, gpus: int = 0) -> int:
        """Return how many jobs run at a time by default."""
        return fitting_workers(jobs, gpus) if self.is_here else min(jobs, MOST_AT_A_TIME)

    def cores_each(self, workers: int) -> int | None:
        """Return how many cores the queue keeps each job to; None where the launcher starts its jobs itself."""
        return None

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with the threads of a job: its share of this machine where it runs here."""
        return thread_environment(workers, environment) if self.is_here else {}

    @abstractmethod
    def executor(self, workers: int, folder: Path) -> Executor:
        """Return what starts the commands. `folder` takes the files of the launcher. Imports its library."""


class LocalLauncher(Launcher):
    """Processes of this machine."""

    name = "local"
    is_here = True
    description = ""
    facts = None

    def check(self) -> None:
        """Accept it: it needs nothing."""

    def cores_each(self, workers: int) -> int | None:
        return cores_each(workers)

    def executor(self, workers: int, folder: Path) -> Executor:
        return LocalExecutor()


@dataclass(frozen=True)
class SubmititLauncher(Launcher):
    """A Slurm job each. With `cluster` local, submitit's processes on this machine, to try it out.

    `sbatch` and `srun` hold further options of these programs by their long names: launcher.sbatch.mail-type=FAIL. One
    without a value is true: launcher.sbatch.exclusive=true.
    """

    name: ClassVar[str] = "submitit"
    package: ClassVar[str] = "submitit"
    extra: ClassVar[str] = "slurm"

    cluster: str = "slurm"  # or local: processes of this machine, to try it out
    timeout_min: int = 60  # minutes that a job is given
    cpus_per_task: int | None = None  # cores of a job, and its threads
    gpus_per_node: int | None = None  # GPUs of a job
    gpus_per_task: int | None = None  # GPUs of each of its tasks, to which it is bound
    nodes: int | None = None  # that a job runs on, one task on each
    tasks_per_node: int | None = None  # that train together
    mem_gb: float | None = None  # memory of a job
    partition: str | None = None  # as sbatch has it
    account: str | None = None  # as sbatch has it
    qos: str | None = None  # as sbatch has it
    constraint: str | None = None  # as sbatch has it
    setup: str | None = None  # a line of shell before the job: modules, variables
    python: str | None = None  # what starts Python there, for a container: apptainer exec image.sif python3
    sbatch: dict[str, str] = field(default_factory=dict)  # other options of sbatch, by their long names
    srun: dict[str, str] = field(default_factory=dict)  # options of srun, by their long names

    @property
    def is_here(self) -> bool:
        return self.cluster == "local"

    @property
    def can_detach(self) -> bool:
        return not self.is_here

    @property
    def description(self) -> str:
        return f"through {self.name} ({self.cluster})"

    def check(self) -> None:
        super().check()
        if self.cluster not in ("slurm", "local"):
            raise ConfigError(Problem("launcher.cluster", "must be slurm or local.", self.cluster))
        if self.is_here:
            problems = [
                Problem(f"launcher.{key}", "is for launcher.cluster=slurm.", value)
                for key, value in asdict(self).items()
                if value and key not in _LOCAL_SETTINGS
            ]
            if problems:
                raise ConfigError(problems)
        elif missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
            remedy = "Start the sweep on a machine of the cluster, or try it out here with launcher.cluster=local."
            rule = f"must have Slurm on this machine: there is no {', '.join(missing)}."
            raise ConfigError(Problem("launcher.cluster", rule, self.cluster, remedy))

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with as many threads as it was given cores, where that is said."""
        if self.cpus_per_task is not None:
            return dict.fromkeys(THREAD_VARIABLES, str(self.cpus_per_task))
        return super().environment(workers, environment)

    def executor(self, workers: int, folder: Path) -> "Cluster":
        from mpt_cli.jobs.submitit_executor import ProcessesOfSubmitit, SlurmCluster

        parameters: dict[str, Any] = {"timeout_min": self.timeout_min}
        if self.is_here:
            return ProcessesOfSubmitit(parameters, {}, folder / self.name)
        of_srun = [f"--{name}" if value is True else f"--{name}={value}" for name, value in _flags(self.srun).items()]
        parameters |= {  # None stands for what Slurm does by default
            "slurm_signal_delay_s": min(90, 15 * self.timeout_min),  # before the end of its time, to save
            "cpus_per_task": self.cpus_per_task,
            "gpus_per_node": self.gpus_per_node,
            "mem_gb": self.mem_gb,
            "slurm_gpus_per_task": self.gpus_per_task,
            "nodes": self.nodes,
            "tasks_per_node": self.tasks_per_node,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_qos": self.qos,
            "slurm_constraint": self.constraint,
            "slurm_additional_parameters": _flags(self.sbatch) or None,
            "slurm_setup": [self.setup] if self.setup else None,
            "slurm_srun_args": of_srun or None,
        }
        given = {name: value for name, value in parameters.items() if value is not None}
        own = {} if self.python is None else {"slurm_python": self.python}
        return SlurmCluster(given, own, folder / self.name)


def _flags(options: Mapping[str, str]) -> dict[str, str | bool]:
    """Return options with True for those without a value, and without those that are false.

    >>> _flags({"hold": "true", "requeue": "false", "exclusive": "user"})
    {'hold': True, 'exclusive': 'user'}
    """
    words = {"true": True, "false": False}
    found = {name: words.get(value.lower(), value) for name, value in options.items()}
    return {name: value for name, value in found.items() if value is not False}


@dataclass(frozen=True)
class RayLauncher(Launcher):
    """A job of Ray's each."""

    name: ClassVar[str] = "ray"
    package: ClassVar[str] = "ray"
    extra: ClassVar[str] = "ray"
    is_here = False

    address: str | None = None  # of a Ray that runs; null = RAY_ADDRESS
    num_cpus: float = 1  # cores of a job
    num_gpus: float | None = None  # GPUs of a job
    memory_gb: float | None = None  # memory of a job

    def __post_init__(self) -> None:
        note_passwords(self.cluster_address)  # before it is written or said

    def check(self) -> None:
        super().check()
        if not self.cluster_address:
            remedy = "`ray start --head` starts a Ray on this machine, at http://127.0.0.1:8265."
            raise ConfigError(Problem("launcher.address", "must be given, or RAY_ADDRESS be set.", None, remedy))
        if REDACTED in self.cluster_address:
            rule = "is not in the record as it was, which holds no passwords."
            remedy = "Give it again: --launcher ray launcher.address=…"
            raise ConfigError(Problem("launcher.address", rule, self.address, remedy))

    @property
    def cluster_address(self) -> str:
        return self.address or os.environ.get("RAY_ADDRESS", "")

    def executor(self, workers: int, folder: Path) -> "Cluster":
        from mpt_cli.jobs.ray_executor import RayCluster

        options = {
            "entrypoint_num_cpus": self.num_cpus,
            "entrypoint_num_gpus": self.num_gpus,
            "entrypoint_memory": None if self.memory_gb is None else int(self.memory_gb * 2**30),
        }
        return RayCluster(self.cluster_address, options, folder / self.name)


LAUNCHERS: dict[str, type[Launcher]] = {kind.name: kind for kind in (LocalLauncher, SubmititLauncher, RayLauncher)}


def choose_launcher(name: str, overrides: Sequence[str]) -> Launcher:
    """Return the launcher of this name; ConfigError where a setting is wrong or it can't be used here."""
    launcher = read_launcher(name, overrides)
    launcher.check()
    return launcher


def recorded_launcher(facts: Mapping[str, Any]) -> Launcher:
    """Return the launcher of a sweep.json, which need not be usable here; DataError where that is damaged."""
    found = facts.get("launcher")
    if found is None:
        return LocalLauncher()
    kind, settings = LAUNCHERS.get(str(found.get("name"))), found.get("settings")
    is_whole = kind is not None and isinstance(settings, dict) and {each.name for each in fields(kind)} >= {*settings}
    if kind is None or not is_whole or field_problem(kind, settings) is not None:
        raise DataError(f"sweep.json is damaged: launcher must not be {str(found)[:200]}.")
    return kind(**settings)


def split_launcher_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the jobs, and those about the launcher."""
    own = [override for override in overrides if override.startswith(PREFIX)]
    return [override for override in overrides if override not in own], own


def read_launcher(name: str, overrides: Sequence[str]) -> Launcher:
    """Return the launcher of this name with these settings, which need not be usable here."""
    kind = LAUNCHERS[name]
    if overrides and not fields(kind):
        remedy = "Name one with --launcher submitit or --launcher ray."
        raise ConfigError(Problem(overrides[0].partition("=")[0], "is for another launcher than local.", None, remedy))
    problems: list[Problem] = []
    given = _read_overrides(kind, overrides, problems)
    if problems:
        raise ConfigError(problems)
    return kind(**given)


def _read_overrides(kind: type[Launcher], overrides: Sequence[str], problems: list[Problem]) -> dict[str, Any]:
    known, given = _keys(kind), dict[str, Any]()
    for override in overrides:
        path, equals, text = override.removeprefix(PREFIX).partition("=")
        name, _, option = path.partition(".")
        is_group = name in known and known[name].is_mapping
        if is_group and option and equals:
            given.setdefault(name, {})[option] = text
        elif path not in known or is_group or not equals:
            names = [f"{PREFIX}{each}" for each in known]
            remedy = did_you_mean(f"{PREFIX}{path}", names) or f"It has {', '.join(names) or 'none'}."
            problems.append(Problem(f"{PREFIX}{path}", f"is no setting of {kind.package}.", None, remedy))
        else:
            try:
                given[name] = read_value(known[name], None if text == "null" else text.strip("'\""))
            except BadValue as bad:
                problems.append(Problem(f"{PREFIX}{name}", bad.rule, text, bad.remedy))
    return given


def _keys(kind: type[Launcher]) -> dict[str, Key]:
    """Return its settings. Numbers are > 0, but for those of GPUs, which may be 0."""
    hints = get_type_hints(kind)
    return {
        each.name: Key(
            f"{PREFIX}{each.name}",
            hints[each.name],
            default_of(each),
            bounds={"at_least": 0} if "gpus" in each.name else {"above": 0},
        )
        for each in fields(kind)
    }
