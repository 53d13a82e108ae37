"""The launchers and the settings each takes, as `launcher.key=value` among the words of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.numbers import as_whole, read_number
from mpt_cli.settings.suggest import did_you_mean

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
KINDS: dict[str, type[LauncherSettings]] = {
    "joblib": JoblibSettings, "submitit": SubmititSettings, "ray": RaySettings
}  # fmt: skip
LOCAL = "local"
NAMES = (LOCAL, *KINDS)


def split_launcher_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
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
    given = _read_words(KINDS[name], words, problems)
    if problems:
        raise ConfigError(problems)
    return KINDS[name](**given)


def _read_words(kind: type[LauncherSettings], words: Sequence[str], problems: list[Problem]) -> dict[str, Any]:
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
