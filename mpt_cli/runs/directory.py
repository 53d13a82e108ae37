"""The run directory: its files, how they are read, and the lock that says which process writes in it."""

import fcntl
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TextIO

from mpt_cli.errors import EXIT_CODES, DataError, naming
from mpt_cli.files import LONGEST_LINE, JsonObject, open_file, open_to_append, read_file, write_json
from mpt_cli.settings.search_path import expanded
from mpt_cli.signals import ForcedEnd, Interruption, at_forced_end, raise_for
from mpt_cli.telemetry.record_types import Summary, field_problem, line_problem
from mpt_cli.telemetry.sink_interface import File, TelemetryFiles
from mpt_cli.version import SCHEMA_VERSION


def make_folder(path: Path, exist_ok: bool = True) -> tuple[Path, ...]:
    """Make `path` with its parents; returns those of them that were not there, the innermost first."""
    made = tuple(folder for folder in (path, *path.parents) if not folder.exists())
    path.mkdir(parents=True, exist_ok=exist_ok)
    return made


def make_empty(path: Path) -> tuple[Path, ...]:
    """Make the folder that --out names; DataError where it holds anything or can't be made."""
    with naming(path, "Choose another --out."):
        made = make_folder(path)
        taken = any(path.iterdir())
    if taken:
        raise DataError(f"{path} is not empty. Nothing in it was changed; choose another --out.")
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders in order, and stop without an error at the first that is not empty or can't be removed."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def summary_dict(summary: Summary) -> JsonObject:
    """Return the content of summary.json, which `--json` prints too."""
    return {"schema_version": SCHEMA_VERSION, **asdict(summary)}


def write_summary(path: Path, summary: Summary) -> None:
    write_json(path, summary_dict(summary))


def read_json(path: Path, record: type | Mapping[str, Any] | None = None) -> JsonObject:
    """Return the object in the file.

    DataError when it is missing, damaged (fields of other types than those of `record`, if given) or written by a later
    version of mpt.

    Non-finite numbers stay the strings they are in the file ("NaN", "Infinity"); `float()` reads them.
    """
    try:
        value = json.loads(read_file(path))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}. A run that was killed leaves none.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged: it must hold a JSON object.")
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        rule = f"schema_version must be {SCHEMA_VERSION}"
        raise DataError(f"{path}: {rule}. Received: {version!r}. Read it with the version of mpt that wrote it.")
    if record is not None and (wrong := field_problem(record, value)) is not None:
        raise DataError(f"{path} is damaged: {wrong}.")
    return value


def read_lines(path: Path, tell_damaged: Callable[[int], None] = lambda number: None) -> Iterator[JsonObject]:
    """Yield every record of metrics.jsonl, events.jsonl or layers.jsonl; a missing file has none.

    `tell_damaged` is called with the number of each other line (0 where the file can't be read), but not for a last one
    without an end, which may be being written.
    """
    try:
        with open_file(path) as file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
                if (found := _read_record(line)) is not None:
                    yield found
                elif line.endswith(b"\n"):
                    tell_damaged(number)
    except FileNotFoundError:
        return
    except OSError:
        tell_damaged(0)


def read_whole_lines(path: Path) -> list[JsonObject]:
    """Return every record of such a file; DataError where a line is damaged."""

    def refuse(number: int) -> None:
        what = f"is damaged, see line {number}" if number else "can't be read"
        raise DataError(f"{path} {what}. Take out the damaged line, or start a new run.")

    return list(read_lines(path, refuse))


def latest_line(path: Path) -> JsonObject | None:
    """Return the last whole record, without reading the rest of the file."""
    with suppress(OSError), open_file(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return next(filter(None, map(_read_record, reversed(file.read().splitlines()))), None)
    return None


def _read_record(line: bytes) -> JsonObject | None:
    try:
        found = json.loads(line)
        return found if line_problem(found) is None else None
    except (ValueError, RecursionError, TypeError, AttributeError):
        return None


def read_summary(path: Path) -> JsonObject:
    """Return the content of summary.json as a dict, which may have fields of later versions.

    DataError if it is damaged, also by an exit code that no run has.
    """
    found = read_json(path, Summary)
    if "exit_code" in found and found["exit_code"] not in EXIT_CODES:
        raise DataError(f"{path} is damaged: exit_code must not be {found['exit_code']}.")
    return found


DEFAULT_PARENT = "runs"
TAIL_BYTES = 8192
LOCK_FILE = ".lock"
# stems, also of temporary files
UNSTARTED_STEMS = {"metrics", "events", "console", "tensorboard", "environment", "config"}


@dataclass(frozen=True)
class RunDirectory(TelemetryFiles):
    """A directory made by `create` or found by `open`, and the paths in it (a contract: scripts read them)."""

    made: tuple[Path, ...] = ()  # by `create`: the directory and those above it that were not there

    @classmethod
    def create(cls, path: str | Path | None, recipe: str) -> Self:
        """Make a new directory: `path`, or runs/<recipe>/<time>-<id>. Nothing that exists is ever written into.
        Raises DataError when `path` is a file or holds anything, or when it can't be made.
        """
        chosen = expanded(path) if path is not None else default_path(recipe)
        try:
            made = make_folder(chosen, exist_ok=path is not None)  # two runs never share a drawn name
            run = cls(chosen, made)
            run._check_unused()
        except OSError as error:
            if path is None and isinstance(error, FileExistsError) and chosen.is_dir():
                return cls.create(None, recipe)  # begun in the same second, or before the clock was set back
            raise _cannot_create(chosen, error) from error
        return run

    def _check_unused(self) -> None:
        """Raise DataError where the directory holds anything but the lock of a process that starts there."""
        if any(path.name != LOCK_FILE for path in self.path.iterdir()):
            go_on = "continue the run in it by mpt train … resume=auto, " if self.checkpoints.is_dir() else ""
            raise DataError(
                f"run_dir {self.path} already exists and is not empty. Nothing in it was changed; {go_on}"
                "choose another run_dir, or leave it out for a new one."
            )

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return the directory of an earlier run; DataError when there is none or it isn't one."""
        found = expanded(path)
        if not found.is_dir():
            what = "is a file" if found.exists() else "does not exist"
            raise DataError(f"run directory {found} {what}. Give the folder that `mpt train` wrote.")
        run = cls(found)
        if not run.config_yaml.is_file():
            raise DataError(f"{found} is not a run directory: it has no {run.config_yaml.name}.")
        return run

    @classmethod
    @contextmanager
    def begin(cls, path: str | Path | None, recipe: str) -> Iterator[Self]:
        """Create and lock a directory for a run that starts in the block; remove it if the block ends before the run
        starts.
        """
        with ExitStack() as stack:
            with Interruption() as early:  # whoever removes it must know what was made
                run = cls.create(path, recipe)
                stack.enter_context(run.lock())
                run._check_unused()  # another run may have begun, and even ended, before it was held
                discard = partial(run.discard_unstarted, run.path.stat())
                stack.callback(discard)
                stack.enter_context(at_forced_end(discard))
            raise_for(early.requested)
            yield run

    @contextmanager
    def lock(self, key: str = "run_dir") -> Iterator[None]:
        """Hold the directory for this process; DataError when another one is writing in it.

        The lock goes with the process, also when it is killed. `key` is what names the directory.
        """
        try:
            file = open_to_append(self.lock_file)  # whoever holds it has written its name there
        except OSError as error:
            raise _cannot_create(self.path, error, key) from error
        with file:
            if not try_lock(file):
                holder = read_holder(self.lock_file)
                named = f" (process {holder.pid} of {holder.host}, by its {LOCK_FILE})" if holder else ""
                unknown = " If it has ended, remove that file." if holder and holder.is_gone is None else ""
                words = f"another process is writing in {self.path}{named}. Wait for it, or stop it first.{unknown}"
                raise DataError(words)
            try:
                write_holder(file, LockHolder.for_process(os.getpid()))
            except OSError as error:
                raise _cannot_create(self.path, error, key) from error
            with suppress(OSError):  # unfinished files of `write_atomic` in a killed process; nobody else writes now
                for path in self.path.glob(".*.tmp"):
                    path.unlink()
            try:
                yield
            finally:
                clear_holder(file)

    def clear_unstarted(self) -> None:
        """Empty a directory whose run was killed before it began, which holds no configuration and only files of mpt.

        DataError when that run is still alive, and beginning.
        """
        names = {path.name.removeprefix(".").split(".")[0] for path in self.path.iterdir() if path.name != LOCK_FILE}
        if not self.config_yaml.exists() and self.lock_file.exists() and names <= UNSTARTED_STEMS:
            with self.lock():
                self._clear(LOCK_FILE)

    def discard_unstarted(self, made: os.stat_result, _: ForcedEnd | None = None) -> None:
        """Discard the directory, unless the run has started or another directory has replaced the `made` one."""
        with suppress(OSError):
            if os.path.samestat(made, self.path.stat()) and not self.config_yaml.exists():
                self.discard()

    def discard(self) -> None:
        """Remove a directory whose run never started: its files, and the folders that `create` made.

        Never fails, so that the user sees the error that kept the run from starting.
        """
        with suppress(OSError):
            self._clear()
        remove_empty(self.made)

    def _clear(self, kept: str = "") -> None:
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != kept:
                path.unlink()

    lock_file = File(LOCK_FILE)
    config_yaml = File("config.yaml")
    environment_json = File("environment.json")
    summary_json = File("summary.json")
    checkpoints = File("checkpoints")
    model_keras = File("model.keras")
    model_weights = File("model.weights.h5")  # instead of it, of a model that Keras could not read again

    @property
    def ending(self) -> JsonObject:
        """Return the content of summary.json; empty where it is missing or damaged."""
        try:
            return read_summary(self.summary_json)
        except DataError:
            return {}

    @property
    def is_unfinished(self) -> bool:
        """Return whether the run still trains, or was interrupted or killed, as far as its summary.json says."""
        return not self.summary_json.exists() or self.ending.get("status") in ("interrupted", "terminated")

    def summary_for(self, exit_code: int | None) -> JsonObject:
        """Return the content of summary.json of a process that ended with this exit code; empty where it wrote none.

        A summary with another code comes from an earlier attempt, or from another run.
        """
        return found if (found := self.ending).get("exit_code") == exit_code else {}


def default_parent(recipe: str) -> Path:
    """Return the folder that holds the runs of a recipe when `run_dir` is not given."""
    return Path(DEFAULT_PARENT) / (re.sub(r"[^\w.-]+", "_", recipe).lstrip(".") or "custom")


def default_path(recipe: str) -> Path:
    """Return the directory of a run when `run_dir` is not given."""
    return default_parent(recipe) / random_name()


def numbered_path(path: str | Path | None, recipe: str, number: int) -> Path:
    """Return the directory of a program's run with this number: the first gets `path`, later ones a suffix."""
    if path is None:
        return default_path(recipe)
    return Path(f"{expanded(path)}-{number}") if number > 1 else expanded(path)


def random_name() -> str:
    """Return the time and a few random letters."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def _cannot_create(path: Path, error: OSError, key: str = "run_dir") -> DataError:
    return DataError(f"{key} {path} can't be written: {error.strerror}. Choose a {key} in a folder of yours.")


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a directory. `started`, in clock ticks since boot, tells it from a later process with the
    same number.
    """

    pid: int
    host: str
    started: str

    @classmethod
    def for_process(cls, pid: int) -> Self:
        """Return the entry for a process of this machine."""
        return cls(pid, platform.node(), _process_start(pid) or "")

    @property
    def is_gone(self) -> bool | None:
        """Return whether it has ended; None if that can't be known, for a process of another host."""
        return None if self.host != platform.node() else _process_start(self.pid) != self.started


def try_lock(lock_file: TextIO) -> bool:
    """Lock the file and return whether this process now holds it, which lasts until it closes the file or ends.

    On a file system without locks, the name in the file says who holds it; whether a process of another machine has
    ended can't be known.
    """
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        holder = read_holder(Path(lock_file.name))
        return holder is None or holder.is_gone is True or holder == LockHolder.for_process(os.getpid())
    return True


def write_holder(lock_file: TextIO, holder: LockHolder) -> None:
    """Write the holder into the lock file. OSError if it can't be written; the write is unbuffered, because closing the
    file would try a buffer again.
    """
    clear_holder(lock_file)
    os.write(lock_file.fileno(), json.dumps(asdict(holder)).encode())


def clear_holder(lock_file: TextIO) -> None:
    """Remove the name of the holder. A process that was killed leaves its name."""
    lock_file.seek(0)
    lock_file.truncate()


def read_holder(lock_file: Path) -> LockHolder | None:
    """Return the process that holds the directory, or held it when it was killed; None where none does. The lock is not
    touched.
    """
    try:
        found = json.loads(read_file(lock_file))
        return LockHolder(**found) if field_problem(LockHolder, found) is None else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _process_start(pid: int) -> str | None:
    """Return the start time of a process; None where it does not exist or has ended and is only still listed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]
