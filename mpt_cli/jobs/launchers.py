"""Where commands run: a class for each launcher, and what is checked before anything starts. The settings that
`launcher.key=value` gives are those of the library. Light: `mpt sweep --help` reads the names here.
"""

import importlib.util
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mpt_cli.errors import ConfigError, DataError, Problem, config_error, first_line, install_command
from mpt_cli.jobs.capacity import THREAD_VARIABLES, cores_each, fitting_workers, thread_environment
from mpt_cli.jobs.local_processes import Executor, LocalExecutor
from mpt_cli.machine import visible_gpus
from mpt_cli.redaction import REDACTED
from mpt_cli.settings.key_type import read_number

if TYPE_CHECKING:
    from mpt_cli.jobs.submitit_executor import SlurmCluster

PREFIX = "launcher."
MOST_AT_A_TIME = 16  # where nobody said how many: so many jobs of one person wait in a cluster's queue without offence
_PROGRAMS = ("sbatch", "srun", "scancel", "squeue", "scontrol")  # of Slurm


@dataclass(frozen=True)
class Launcher(ABC):
    """A place where jobs run, with what follows `launcher.` on the command line, such as {"sbatch.hold": "true"}."""

    settings: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str]
    extra: ClassVar[str]  # of ours, which installs the library of the launcher's name
    is_here: ClassVar[bool] = False  # its jobs take this machine's cores and GPUs
    can_detach: ClassVar[bool] = False  # it takes all jobs at once and limits how many run at a time

    def check(self) -> None:
        """Raise ConfigError where it can't be used here."""
        if importlib.util.find_spec(self.name) is None:
            remedy = install_command(self.extra)
            raise config_error("--launcher", f"{self.name} is not installed.", self.name, remedy)

    @property
    def facts(self) -> dict[str, Any] | None:
        """Return what sweep.json holds of it."""
        return {"name": self.name, "settings": dict(self.settings)}

    def workers(self, jobs: int, wants_gpus: bool = False) -> int:
        """Return how many jobs run at a time by default."""
        return min(jobs, MOST_AT_A_TIME)

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with the threads of a job, where it is known how many."""
        return {}

    @abstractmethod
    def executor(self, folder: Path, workers: int = 1) -> Executor:
        """Return what starts the commands, so many at a time. `folder` is for the library, which it imports."""


class LocalLauncher(Launcher):
    """Processes of this machine."""

    name = "local"
    is_here = True
    facts = None

    def check(self) -> None:
        if self.settings:
            remedy = "Name one with --launcher submitit or --launcher ray."
            raise config_error("launcher", "settings are for another launcher than local.", None, remedy)

    def workers(self, jobs: int, wants_gpus: bool = False) -> int:
        return fitting_workers(jobs, len(visible_gpus(os.environ)) if wants_gpus else 0)

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        return thread_environment(workers, environment)

    def executor(self, folder: Path, workers: int = 1) -> Executor:
        return LocalExecutor(workers, cores_each(workers))


class SubmititLauncher(Launcher):
    """A Slurm job each.

    Settings are the parameters of submitit's executor, those of Slurm alone without `slurm_`. `setup` is a line of
    shell before the job, `python` what starts Python there. `sbatch` and `srun` hold further options of these programs
    by their long names: launcher.sbatch.mail-type=FAIL. One without a value is true: launcher.sbatch.exclusive=true.
    """

    name = "submitit"
    extra = "slurm"
    can_detach = True

    def check(self) -> None:
        super().check()
        if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
            rule = f"must have Slurm on this machine: there is no {', '.join(missing)}."
            raise config_error(
                "--launcher", rule, self.name, "Start the sweep on a machine of the cluster, or leave it out."
            )
        try:
            with tempfile.TemporaryDirectory() as folder:
                self.executor(Path(folder)).prepared(Path(folder))
        except (AssertionError, NameError, TypeError, ValueError) as error:  # whatever submitit has against them
            raise config_error("launcher", "must have settings of submitit.", None, first_line(error)) from error

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        threads = self.settings.get("cpus_per_task")
        return {} if threads is None else dict.fromkeys(THREAD_VARIABLES, threads)

    def executor(self, folder: Path, workers: int = 1) -> "SlurmCluster":
        from mpt_cli.jobs.submitit_executor import SlurmCluster

        return SlurmCluster(self.settings, folder / self.name)


class RayLauncher(Launcher):
    """A job of Ray's each. `address` is that of a Ray that runs, by default RAY_ADDRESS."""

    name = "ray"
    extra = "ray"
    _options: ClassVar[dict[str, str]] = {
        "num_cpus": "entrypoint_num_cpus",
        "num_gpus": "entrypoint_num_gpus",
        "memory_gb": "entrypoint_memory",  # in bytes
    }

    def check(self) -> None:
        super().check()
        rule = f"must be address, or a number for {', '.join(self._options)}."
        problems = [
            Problem(f"launcher.{name}", rule, text)
            for name, text in self.settings.items()
            if name != "address" and (name not in self._options or read_number(text) is None)
        ]
        if not self.address or REDACTED in self.address:
            rule = "must be given, or RAY_ADDRESS be set. A password in it is not recorded: give it again."
            remedy = "`ray start --head` starts a Ray on this machine, at http://127.0.0.1:8265."
            problems.append(Problem("launcher.address", rule, self.address or None, remedy))
        if problems:
            raise ConfigError(problems)

    @property
    def address(self) -> str:
        return str(self.settings.get("address") or os.environ.get("RAY_ADDRESS", ""))

    def executor(self, folder: Path, workers: int = 1) -> Executor:
        from mpt_cli.jobs.ray_executor import RayCluster

        given = {"num_cpus": "1", **self.settings}
        options = {option: read_number(given[name]) or 0 for name, option in self._options.items() if name in given}
        if "memory_gb" in given:
            options["entrypoint_memory"] = int(options["entrypoint_memory"] * 2**30)
        return RayCluster(self.address, options, folder / self.name)


LAUNCHERS: dict[str, type[Launcher]] = {kind.name: kind for kind in (LocalLauncher, SubmititLauncher, RayLauncher)}


def recorded_launcher(facts: Mapping[str, Any]) -> Launcher:
    """Return the launcher of a sweep.json, which need not be usable here; DataError where that is damaged."""
    found = facts.get("launcher")
    if found is None:
        return LocalLauncher()
    kind, settings = LAUNCHERS.get(str(found.get("name"))), found.get("settings")
    if kind is None or not isinstance(settings, dict) or not all(isinstance(text, str) for text in settings.values()):
        raise DataError(f"sweep.json is damaged: launcher must not be {str(found)[:200]}.")
    return kind(settings)


def split_launcher_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the jobs, and those about the launcher."""
    own = [override for override in overrides if override.startswith(PREFIX)]
    return [override for override in overrides if override not in own], own


def choose_launcher(name: str, overrides: Sequence[str]) -> Launcher:
    """Return the launcher of this name with these settings; ConfigError where it can't be used here."""
    pairs = (override.removeprefix(PREFIX).partition("=") for override in overrides)
    launcher = LAUNCHERS[name]({key: text.strip("'\"") for key, _, text in pairs})
    launcher.check()
    return launcher
