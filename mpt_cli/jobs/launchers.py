"""Where commands run: the launchers by name, the settings each takes as `launcher.key=value`, and what is checked
before anything starts. Light: `mpt sweep --help` reads the names here.
"""

import importlib.util
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mpt_cli.errors import ConfigError, DataError, Problem, did_you_mean, install_command
from mpt_cli.jobs.capacity import THREAD_VARIABLES, thread_environment, usable_cores
from mpt_cli.settings.key import as_whole, read_number

if TYPE_CHECKING:
    from mpt_cli.sweep.directory import SweepDirectory
    from mpt_cli.sweep.plan import Job

PREFIX = "launcher."
_SBATCH = "sbatch."


@dataclass(frozen=True)
class JoblibSettings:
    """A worker of joblib's loky on this machine; there is nothing to set."""

    package: ClassVar[str] = "joblib"
    extra: ClassVar[str] = ""


@dataclass(frozen=True)
class SubmititSettings:
    """A Slurm job each. With `cluster` local, submitit's processes on this machine, to try it out.

    `sbatch` holds further options of sbatch by their long names: launcher.sbatch.mail-type=FAIL.
    """

    package: ClassVar[str] = "submitit"
    extra: ClassVar[str] = "slurm"

    cluster: str = "slurm"
    timeout_min: int = 60
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    mem_gb: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RaySettings:
    """A Ray task each. `address` None: RAY_ADDRESS, else a Ray of its own on this machine for as long as it runs."""

    package: ClassVar[str] = "ray"
    extra: ClassVar[str] = "ray"

    address: str | None = None
    num_cpus: float = 1
    num_gpus: float | None = None
    memory_gb: float | None = None


LauncherSettings = JoblibSettings | SubmititSettings | RaySettings
SETTINGS_CLASSES: dict[str, type[LauncherSettings]] = {
    "joblib": JoblibSettings, "submitit": SubmititSettings, "ray": RaySettings
}  # fmt: skip
LOCAL = "local"
LAUNCHERS = (LOCAL, *SETTINGS_CLASSES)


def split_launcher_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the jobs, and those about the launcher."""
    own = [word for word in words if word.startswith(PREFIX)]
    return [word for word in words if word not in own], own


def read_settings(name: str, words: Sequence[str]) -> LauncherSettings | None:
    """The settings of this launcher, None for `local`. ConfigError with every problem of the words."""
    if name == LOCAL:
        if words:
            remedy = "Name one with --launcher submitit, --launcher ray or --launcher joblib."
            raise ConfigError(Problem(words[0].partition("=")[0], "is for another launcher than local.", None, remedy))
        return None
    problems: list[Problem] = []
    given = _read_overrides(SETTINGS_CLASSES[name], words, problems)
    if problems:
        raise ConfigError(problems)
    return SETTINGS_CLASSES[name](**given)


def _read_overrides(kind: type[LauncherSettings], words: Sequence[str], problems: list[Problem]) -> dict[str, Any]:
    known = {entry.name: entry for entry in fields(kind)}
    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.removeprefix(PREFIX).partition("=")
        if key.startswith(_SBATCH) and "sbatch" in known and equals:
            given.setdefault("sbatch", {})[key.removeprefix(_SBATCH)] = text
        elif key not in known or key == "sbatch" or not equals:
            names = [f"{PREFIX}{name}" for name in known]
            remedy = did_you_mean(f"{PREFIX}{key}", names) or f"It has {', '.join(names) or 'none'}."
            problems.append(Problem(f"{PREFIX}{key}", f"is no setting of {kind.package}.", None, remedy))
        else:
            _read_value(known[key], text.strip("'\""), given, problems)
    return given


def _read_value(entry: Any, text: str, given: dict[str, Any], problems: list[Problem]) -> None:
    """Numbers are > 0, but for those of GPUs, which may be 0."""
    if text == "null" and entry.default is None:
        given[entry.name] = None
        return
    wants_whole, wants_number = "int" in str(entry.type), "float" in str(entry.type)
    number = as_whole(read_number(text)) if wants_whole or wants_number else None
    least = 0 if "gpus" in entry.name else 1 if wants_whole else 1e-9
    if not wants_whole and not wants_number:
        given[entry.name] = text
    elif isinstance(number, int | float) and number >= least and (isinstance(number, int) or wants_number):
        given[entry.name] = number
    else:
        rule = f"must be a {'whole ' if wants_whole else ''}number {'>= 0' if least == 0 else '> 0'}."
        problems.append(Problem(f"{PREFIX}{entry.name}", rule, text))


MOST_AT_A_TIME = 16  # where nobody said how many: each has a proxy of 40 MB (submitit) to 150 MB (Ray) on this machine
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_ONLY_OF_SLURM = ("partition", "account", "qos", "constraint", "mem_gb", "gpus_per_node", "sbatch")


@dataclass(frozen=True)
class OwnRay:
    """Where it is, and what must stand in the environment of a process before that imports Ray."""

    address: str
    environment: dict[str, str]


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
        settings = SETTINGS_CLASSES[found["name"]](**found["settings"])
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

    def command(self, command: Sequence[str], sweep: "SweepDirectory", job: "Job") -> list[str]:
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
        return [sys.executable, "-P", "-m", "mpt_cli.jobs.proxy", json.dumps(order)]

    def began(self, sweep: "SweepDirectory", job: "Job") -> Path:
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
        remedy = install_command(settings.extra) if settings.extra else f"pip install {settings.package}"
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


@contextmanager
def ray_of_its_own(cpus: int) -> Iterator[OwnRay]:
    """It ends with the sweep, also when that is killed: the process waits for the end of its input."""
    command = [sys.executable, "-P", "-m", "mpt_cli.jobs.launchers", str(cpus)]
    with tempfile.TemporaryDirectory() as folder:  # that only this user can read
        token = Path(folder) / "token"  # without which nobody can give it work
        token.write_text(secrets.token_hex(32))
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **own}, start_new_session=True
        ) as head:
            assert head.stdin is not None and head.stdout is not None
            try:
                address = head.stdout.readline().decode().strip()
                if not address:
                    raise DataError("Ray could not be started on this machine: see the lines above.")
                yield OwnRay(address, own)
            finally:
                head.stdin.close()


def hold_ray(cpus: int) -> None:
    import ray

    context: Any = ray.init(address="local", num_cpus=cpus, include_dashboard=False, logging_level=logging.ERROR)
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    hold_ray(int(sys.argv[1]))
