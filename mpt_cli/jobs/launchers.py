"""The launchers by the names that `--launcher` takes. Imports little, because the help of `mpt sweep` reads them."""

import importlib.util
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

from mpt_cli.errors import DataError, config_error, install_command
from mpt_cli.jobs.local_processes import Executor, LocalExecutor

PREFIX = "launcher."
LAUNCHERS = {  # with the extra of ours that installs the library, and the class, whose module imports it
    "local": ("", "local_processes:LocalExecutor"),
    "submitit": ("slurm", "submitit_executor:SlurmCluster"),
    "ray": ("ray", "ray_executor:RayCluster"),
}


def split_launcher_overrides(overrides: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split overrides into those of the jobs and the settings of the launcher.

    >>> split_launcher_overrides(["seed=1", "launcher.sbatch.hold='true'"])
    (['seed=1'], {'sbatch.hold': 'true'})
    """
    own = [override for override in overrides if override.startswith(PREFIX)]
    pairs = (override.removeprefix(PREFIX).partition("=") for override in own)
    settings = {key: text.strip("'\"") for key, _, text in pairs}
    return [override for override in overrides if override not in own], settings


def choose_launcher(name: str, settings: Mapping[str, str]) -> Executor:
    """Return the launcher of this name with these settings; ConfigError where it can't be used here."""
    extra, launcher_class = LAUNCHERS[name]
    if extra and importlib.util.find_spec(name) is None:
        raise config_error("--launcher", f"{name} is not installed.", name, install_command(extra))
    launcher: Executor = resolve_name(f"mpt_cli.jobs.{launcher_class}")(settings)
    launcher.check()
    return launcher


def recorded_launcher(facts: Mapping[str, Any]) -> Executor:
    """Return the launcher recorded in a sweep.json; DataError if damaged, ConfigError if it can't be used here."""
    found = facts.get("launcher") or {"name": LocalExecutor.name, "settings": {}}
    name, settings = str(found.get("name")), found.get("settings")
    if name in LAUNCHERS and isinstance(settings, dict) and all(isinstance(text, str) for text in settings.values()):
        return choose_launcher(name, settings)
    raise DataError(f"sweep.json is damaged: launcher must not be {str(found)[:200]}.")
