"""A launcher as the sweep sees it: checked before anything starts, it turns a job's command into that of a proxy."""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.sweep.capacity import THREAD_VARIABLES, thread_environment, usable_cores
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.launchers.ray_head import OwnRay, ray_of_its_own
from mpt_cli.sweep.launchers.settings import KINDS, LauncherSettings, RaySettings, SubmititSettings, read_settings
from mpt_cli.sweep.plan import Job

MOST_AT_A_TIME = 16  # where nobody said how many: each has a proxy of 40 MB (submitit) to 150 MB (Ray) on this machine
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_ONLY_OF_SLURM = ("partition", "account", "qos", "constraint", "mem_gb", "gpus_per_node", "sbatch")


@dataclass(frozen=True)
class Launcher:
    """`name` is one of NAMES but local, `settings` its own. `ray` is one that was started for this sweep."""

    name: str
    settings: LauncherSettings
    ray: OwnRay | None = None

    @classmethod
    def choose(cls, name: str, words: Sequence[str]) -> Self | None:
        """None for local. ConfigError when a setting is wrong, a package is missing, or there is no Slurm here."""
        settings = read_settings(name, words)
        if settings is None:
            return None
        _check_package(name, settings)
        if isinstance(settings, SubmititSettings):
            _check_cluster(settings)
        return cls(name, settings)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self | None:
        """The one that a sweep was started with; its package is looked for again."""
        found = facts.get("launcher")
        if found is None:
            return None
        settings = KINDS[found["name"]](**found["settings"])
        _check_package(found["name"], settings)
        return cls(found["name"], settings)

    @property
    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "settings": asdict(self.settings)}

    @property
    def is_here(self) -> bool:
        """Whether its jobs take this machine's cores and GPUs."""
        if isinstance(self.settings, SubmititSettings):
            return self.settings.cluster == "local"
        return not (isinstance(self.settings, RaySettings) and _ray_address(self.settings))

    @property
    def gives_gpus(self) -> bool:
        """Whether it, and not the sweep's own pool, gives each job its GPUs."""
        return not self.is_here or (isinstance(self.settings, RaySettings) and self.settings.num_gpus is not None)

    @property
    def words(self) -> str:
        where = f" ({self.settings.cluster})" if isinstance(self.settings, SubmititSettings) else ""
        return f"through {self.name}{where}"

    def workers(self, jobs: int) -> int:
        """Jobs at a time where nobody said how many and they run elsewhere."""
        return min(jobs, MOST_AT_A_TIME)

    def environment(self, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
        """A job's threads: as many as it was given cores, else its share of this machine where it runs here."""
        if isinstance(self.settings, SubmititSettings) and self.settings.cpus_per_task is not None:
            return dict.fromkeys(THREAD_VARIABLES, str(self.settings.cpus_per_task))
        return thread_environment(workers, environment) if self.is_here else {}

    def command(self, command: Sequence[str], sweep: SweepDirectory, job: Job) -> list[str]:
        """What the queue starts in the place of `command`. Files of an earlier attempt go."""
        log = sweep.log(job).resolve()
        began, stop = self.began(sweep, job).resolve(), log.with_suffix(".stop")
        for path in (began, stop):
            path.unlink(missing_ok=True)
        own = {"address": self.ray.address} if self.ray else {}
        order = {
            "launcher": self.name, "settings": {**asdict(self.settings), **own}, "command": [*command], "log": str(log),
            "began": str(began), "stop": str(stop), "folder": str(log.parent / self.name / job.name),
            "environment": self.ray.environment if self.ray else {},
            "variables": [*job.environment, *([] if self.gives_gpus else _GPU_VARIABLES)],
        }  # fmt: skip
        return [sys.executable, "-P", "-m", "mpt_cli.sweep.launchers.proxy", json.dumps(order)]

    def began(self, sweep: SweepDirectory, job: Job) -> Path:
        """There once the job's command has begun: until then it waits in the launcher's own queue."""
        return sweep.log(job).with_suffix(".began")

    @contextmanager
    def session(self, workers: int) -> Iterator["Launcher"]:
        """The launcher while it runs jobs: where no Ray is running, one of its own."""
        if not isinstance(self.settings, RaySettings) or not self.is_here:
            yield self
            return
        cpus = max(usable_cores(), round(workers * self.settings.num_cpus))
        with ray_of_its_own(cpus) as own:
            yield replace(self, ray=own)


def _ray_address(settings: RaySettings) -> str | None:
    return settings.address or os.environ.get("RAY_ADDRESS")


def _check_package(name: str, settings: LauncherSettings) -> None:
    if importlib.util.find_spec(settings.package) is None:
        remedy = f"pip install 'mpt-cli[{settings.extra}]'" if settings.extra else f"pip install {settings.package}"
        raise ConfigError(Problem("--launcher", f"{settings.package} is not installed.", name, remedy))


def _check_cluster(settings: SubmititSettings) -> None:
    if settings.cluster not in ("slurm", "local"):
        raise ConfigError(Problem("launcher.cluster", "must be slurm or local.", settings.cluster))
    if settings.cluster == "local":
        given, default = asdict(settings), asdict(SubmititSettings())
        problems = [Problem(f"launcher.{key}", "is for launcher.cluster=slurm.", given[key])
                    for key in _ONLY_OF_SLURM if given[key] != default[key]]  # fmt: skip
        if problems:
            raise ConfigError(problems)
    elif missing := [program for program in ("sbatch", "srun", "scancel", "sacct") if shutil.which(program) is None]:
        remedy = "Start the sweep on a machine of the cluster, or try it out here with launcher.cluster=local."
        rule = f"must have Slurm on this machine: there is no {', '.join(missing)}."
        raise ConfigError(Problem("launcher.cluster", rule, settings.cluster, remedy))
