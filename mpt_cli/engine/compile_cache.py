"""What XLA has compiled, kept on disk: a small CNN on JAX takes 8 CPU seconds to its first step without and 1.2 with
it, an MLP on TensorFlow 3.0 and 1.3. Both look programs up by a hash of the whole program; the processor and the
version, which they leave out, are in the folder's name. No run fails for what is wrong there, nor runs what is damaged.
"""

import atexit
import hashlib
import math
import os
import platform
import re
import shutil
import stat
import warnings
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Self

from mpt_cli.machine import cpu_description
from mpt_cli.settings.limits import open_file, open_to_append, read_file
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import expanded

LEAST_FREE_BYTES = 2**30
LARGEST_CACHE_BYTES = 2 * 2**30  # beyond this the programs that were not used for longest go
CHECKSUMS = "checksums"  # of the programs, a line each as `_Checksum` has it
_LINE = re.compile(r"^([0-9a-f]{64}) (\d+ \d+ \d+ \d+) (.+)$", re.MULTILINE)  # such a line
_KEPT_AS = "with checksums"  # folders of before have none, and runs of before write none
PACKAGES = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "jax": ("jaxlib",)}


def use_compile_cache(settings: Settings, environment: MutableMapping[str, str]) -> str | None:
    """Set the variables that make the framework keep its programs; to be called before it is imported.

    Nothing is set where `backend.compile_cache` is null and where the user's own variables choose a place already; nor,
    with a sentence that says so, where the folder can't be written, its disk is nearly full, or others could have put a
    program there, which would run as this user.
    """
    if settings.backend.compile_cache is None:
        return None
    try:
        folder = cache_folder(settings.backend.compile_cache, settings.backend.name)
        obstacle = _prepare_folder(folder)
    except OSError as error:  # whatever is wrong there, a run goes on without
        obstacle = f"{error.strerror or error} ({error.filename or settings.backend.compile_cache})"
    except RuntimeError:  # there is neither HOME nor an account of this user
        obstacle = "there is no home directory, and HOME is not set"
    if obstacle is not None:
        return f"Compiled programs are not kept: {obstacle}. backend.compile_cache=FOLDER takes another folder."
    if settings.backend.name == "jax":
        environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        for doing in ("reading", "writing"):  # then JAX compiles, which is all that matters to a run
            warnings.filterwarnings("ignore", message=f"Error {doing} persistent compilation cache entry")
    elif "persistent_cache_directory" not in environment.get("TF_XLA_FLAGS", ""):
        flag = f"--tf_xla_persistent_cache_directory={_quoted_flag(str(folder))}"
        environment["TF_XLA_FLAGS"] = f"{environment.get('TF_XLA_FLAGS', '')} {flag}".strip()
    return None


def _quoted_flag(text: str) -> str:
    """As TensorFlow reads the values of its flags, which end at a space.

    >>> _quoted_flag("/cache"), _quoted_flag("/my cache")
    ('/cache', '"/my cache"')
    """
    if re.fullmatch(r"[^\s'\"\\]+", text):
        return text
    return '"' + re.sub(r"([\"\\])", r"\\\1", text) + '"'


def _prepare_folder(folder: Path) -> str | None:
    """Make it, tidy it up and sign it, or say what keeps it from being used."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = folder.stat()
    if own.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if own.st_mode & stat.S_IWOTH:
        return f"everybody may write into {folder} (chmod o-w closes it)"
    if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
        return f"the disk of {folder} is nearly full"
    found = entries_of(folder)
    _drop_unfinished(folder, found)
    _drop_damaged(folder, found)
    drop_oldest(folder, found, LARGEST_CACHE_BYTES)
    _mark_running(folder)
    return None


def entries_of(folder: Path) -> dict[str, os.stat_result]:
    """What is in it by name, without following links. One look serves all that is checked before a run: a look for each
    check took 0.2 CPU seconds of every start where 5,000 programs are kept; now it is 0.05 in all.
    """
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found[entry.name] = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # another run may tidy up too
                continue
    return found


def cache_folder(chosen: str, backend: str) -> Path:
    """The folder for this backend's version on this kind of processor; `chosen` is `auto` or the folder around it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    around = caches / "mpt" / "compiled" if chosen == "auto" else expanded(chosen).absolute()
    return around / f"{backend}-{_package_version(backend)}-{_processor()}"


def drop_oldest(folder: Path, found: Mapping[str, os.stat_result], largest_bytes: int) -> None:
    """Delete the least recently used of the files that were found until the others take at most `largest_bytes`."""
    files = _leavings(found)
    total = sum(status.st_size for status in files.values())
    if total <= largest_bytes:
        return
    for name in sorted(files, key=lambda name: max(files[name].st_atime, files[name].st_mtime)):
        (folder / name).unlink(missing_ok=True)
        total -= files[name].st_size
        if total <= largest_bytes:
            return


def _leavings(found: Mapping[str, os.stat_result]) -> dict[str, os.stat_result]:
    """The programs, and what is left from writing some."""
    ours = {CHECKSUMS, *_marker_names(found)}
    return {name: status for name, status in found.items() if stat.S_ISREG(status.st_mode) and name not in ours}


_markers: list[Path] = []  # of this process, and of those that it was forked from


def _mark_running(folder: Path) -> None:
    """A file that says this process may be writing; it goes when the process ends by itself, after what it has written
    was noted."""
    marker = folder / f"{_marker_prefix()}{os.getpid()}"
    if marker not in _markers:
        _markers.append(marker)
        marker.touch()
        atexit.register(marker.unlink, missing_ok=True)
        atexit.register(_note_new, folder)


def _drop_unfinished(folder: Path, found: dict[str, os.stat_result]) -> None:
    """Delete what was written since the start of a process that was killed: its last file may be half a program."""
    for marker in _marker_names(found):
        number = marker.rpartition("-")[2]
        if not number.isdecimal() or _is_at_work(folder / marker):  # a copy that a backup made is no marker
            continue
        started = found.pop(marker).st_mtime
        for name, status in _leavings(found).items():
            if status.st_mtime >= started:
                (folder / name).unlink(missing_ok=True)
                del found[name]
        (folder / marker).unlink(missing_ok=True)


def _marker_names(found: Mapping[str, object]) -> list[str]:
    prefix = _marker_prefix()
    return [name for name in found if name.startswith(prefix)]


@dataclass(frozen=True)
class _Checksum:
    """What a program was when the run that compiled it ended. Where nothing wrote the file since, its `status` is as it
    was, and it is not read again: in a folder of 2 GiB that would take seconds of every start.
    """

    digest: str
    status: str  # size, inode, times of change in ns

    @classmethod
    def of(cls, path: Path) -> Self:
        status = _status(path.lstat())  # before it is read: what is written meanwhile has another
        with open_file(path) as file:
            return cls(hashlib.file_digest(file, "sha256").hexdigest(), status)

    def line(self, name: str) -> str:
        return f"{self.digest} {self.status} {name}\n"


def _status(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"


def _is_program(name: str) -> bool:
    """Of those that TensorFlow and JAX look up."""
    return name.endswith((".pb", "-cache"))


def _drop_damaged(folder: Path, found: dict[str, os.stat_result]) -> None:
    """Delete the programs that are not as the run left them that compiled them (cut off, changed, another's), and those
    that no run has noted, but for what runs that go on may have written. TensorFlow ends with an error of its own where
    it can't read one, and both run whatever they can read.
    """
    known, since = _read_checksums(folder), _earliest_at_work(folder, found)
    sound: dict[str, _Checksum] = {}
    for name in list(filter(_is_program, found)):
        checked = _check(folder, name, found[name], known.get(name))
        if checked is not None:
            sound[name] = checked
        elif name in known or not _is_own_file(found[name]) or found[name].st_mtime < since:
            _remove(folder / name)
            del found[name]
    if sound != known:
        _write_checksums(folder, sound)


def _check(folder: Path, name: str, found: os.stat_result, noted: _Checksum | None) -> _Checksum | None:
    """Its checksum as it is now; None where it is not as it was noted."""
    if noted is None or not _is_own_file(found):
        return None
    if noted.status == _status(found):
        return noted
    try:
        now = _Checksum.of(folder / name)
    except OSError:  # it can't be read
        return None
    return now if now.digest == noted.digest else None


def _is_own_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & stat.S_IWOTH


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _note_new(folder: Path) -> None:
    """Note the programs that nobody has noted; what was, is not vouched for anew."""
    with suppress(OSError):  # then they are compiled again
        known = _read_checksums(folder)
        new = [name for name in os.listdir(folder) if _is_program(name) and name not in known]
        lines = [_Checksum.of(folder / name).line(name) for name in new]
        with open_to_append(folder / CHECKSUMS) as file:
            file.write("".join(lines))


def _read_checksums(folder: Path) -> dict[str, _Checksum]:
    """Those of the lines that can be read; the first of each name."""
    found: dict[str, _Checksum] = {}
    with suppress(OSError):
        text = read_file(folder / CHECKSUMS, limit=None, errors="replace")
        for digest, status, name in _LINE.findall(text):
            found.setdefault(name, _Checksum(digest, status))
    return found


def _write_checksums(folder: Path, sound: Mapping[str, _Checksum]) -> None:
    """Anew. What another run notes meanwhile may be lost: it is compiled again."""
    text = "".join(checksum.line(name) for name, checksum in sound.items())
    write_whole(folder / CHECKSUMS, text.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Whole or not at all, and nothing beside it; not forced to disk, as all that is here can be made again."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _earliest_at_work(folder: Path, found: Mapping[str, os.stat_result]) -> float:
    """When the first of the processes began that are at work with this folder; infinity where there is none."""
    begun = [found[marker].st_mtime for marker in _marker_names(found) if _is_at_work(folder / marker)]
    return min(begun, default=math.inf)


def _is_at_work(marker: Path) -> bool:
    """Whether the process runs that has made it; this one, where an earlier one had its number, has not."""
    number = marker.name.rpartition("-")[2]
    if not number.isdecimal():
        return False
    return marker in _markers if number == str(os.getpid()) else _is_running(int(number))


def _marker_prefix() -> str:
    return f"running-{platform.node()}-"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter is no number that a process has
        return False
    except PermissionError:
        return True
    return True


def _package_version(backend: str) -> str:
    for name in PACKAGES[backend]:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


def _processor() -> str:
    """A short hash of the processor's kind and instructions: code compiled for another may not run here."""
    kind = platform.machine() + platform.processor() + cpu_description() + _KEPT_AS
    return hashlib.sha256(kind.encode()).hexdigest()[:12]
