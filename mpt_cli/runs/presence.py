"""What a run tells those who look at it from outside while it goes on: which process writes, and what it announced."""

import fcntl
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TextIO, get_type_hints

from mpt_cli.errors import DataError
from mpt_cli.plugins import PluginError
from mpt_cli.precision.scale_rules import RuleState, ScaleRule
from mpt_cli.settings.limits import read_file
from mpt_cli.settings.loss_scale import mode_settings
from mpt_cli.telemetry.records import RunHeader, Scaling
from mpt_cli.telemetry.validation import misfit, required_fields


@dataclass(frozen=True)
class Holder:
    """The process that holds a directory. `started` is its start in clock ticks since boot, which tells it from a
    later one of the same number; `namespace` is the one that the number is of, as containers have their own.
    """

    pid: int
    host: str
    namespace: str
    started: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """A process of this machine."""
        return cls(pid, platform.node(), _namespace(), _start_of(pid) or "")

    @property
    def is_gone(self) -> bool | None:
        """Whether it has ended; None where that can't be known from here, of another host or container."""
        if (self.host, self.namespace) != (platform.node(), _namespace()):
            return None
        return _start_of(self.pid) != self.started


def take_lock(lock_file: TextIO) -> bool:
    """Whether this process holds the file now, until whoever has it open has closed it or ended.

    Where the file system has no locks, the name in the file says who holds it; of a process of another machine or
    container it can't be known whether it has ended.
    """
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        holder = read_holder(Path(lock_file.name))
        return holder is None or holder.is_gone is True or holder == Holder.of(os.getpid())
    return True


def note_holder(lock_file: TextIO, pid: int | None = None) -> None:
    """Write the process that holds it into the lock file; by default this one."""
    forget_holder(lock_file)
    lock_file.write(json.dumps(asdict(Holder.of(pid or os.getpid()))))
    lock_file.flush()


def forget_holder(lock_file: TextIO) -> None:
    """Nobody holds it any more. A process that was killed leaves its name."""
    lock_file.seek(0)
    lock_file.truncate()


def read_holder(lock_file: Path) -> Holder | None:
    """Who holds the directory, or held it when it was killed; None where nobody does. The lock is not touched."""
    try:
        found = json.loads(read_file(lock_file))
        return Holder(**found) if misfit(Holder, found) is None else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """None where there is no such process, or one that has ended and is only still listed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


def header_dict(header: RunHeader) -> dict[str, Any]:
    """The header as it stands in header.json."""
    scaling = header.scaling
    tree = {declared.name: getattr(header, declared.name) for declared in fields(header)}
    return {**tree, "scaling": {
        "mode": scaling.mode, "numbers": asdict(scaling.rule), "on_overflow": scaling.on_overflow,
        "is_needed": scaling.is_needed,
    }}  # fmt: skip


HEADER = {  # the types of what stands in header.json
    **get_type_hints(RunHeader), "scaling": dict[str, Any],
}  # fmt: skip


def header_from(tree: Mapping[str, Any]) -> RunHeader:
    """Back from header.json; what a later version may have added is passed over. DataError where a field is missing."""
    known = {declared.name for declared in fields(RunHeader)}
    lacking = next((name for name in required_fields(RunHeader) if name not in tree), None)
    if lacking is not None:
        raise DataError(f"header.json is damaged: {lacking} is missing.")
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in tree.items() if name in known
    }
    scaling: dict[str, Any] = tree.get("scaling") or {}
    rule = _rule_from(scaling.get("mode", "none"), scaling.get("numbers", {}))
    return RunHeader(**{**found, "scaling": Scaling(rule, scaling.get("on_overflow", "skip"),
                                                    scaling.get("is_needed", False))})  # fmt: skip


@dataclass(frozen=True)
class _RuleOfElsewhere(ScaleRule):
    """Stands for a mode that is not installed here: where its scale is, is known, what moves it is not."""

    mode: ClassVar[str] = "of another package"

    def advance(self, state: RuleState, measured: Any) -> RuleState:
        """Nothing is trained with it."""
        return state


def _rule_from(mode: str, numbers: Mapping[str, Any]) -> ScaleRule:
    try:
        return mode_settings(mode).rule_class(**numbers)
    except (PluginError, IndexError, TypeError, ValueError):
        return _RuleOfElsewhere()
