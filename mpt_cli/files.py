"""Open files safely when something else may have their name, write them whole or not at all, and write JSON for strict
parsers. Imports little, because a thousand jobs of a cluster import it.
"""

import errno
import json
import os
import stat
from collections.abc import Callable
from io import BufferedReader
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

from mpt_cli.errors import CHECK_DISK, TURNING, DataError, naming
from mpt_cli.redaction import without_secrets
from mpt_cli.version import SCHEMA_VERSION

JsonObject = dict[str, Any]
MOST_FILE_BYTES = 2**26  # bytes of a run's file that is read as a whole (JSON, logs)
LONGEST_LINE = 2**24  # bytes of a line of a run's JSON lines


def open_file(path: Path) -> BufferedReader:
    """Open a file to be read. OSError where something else has its name: a pipe or a device may never answer."""
    return os.fdopen(open_regular(path, os.O_RDONLY | os.O_CLOEXEC), "rb")


def open_to_append(path: Path) -> TextIO:
    """Open a file, made where there is none. OSError as `open_file`: a pipe would wait until somebody reads it."""
    return open(path, "a", encoding="utf-8", opener=open_regular)


def open_regular(path: str | Path, flags: int) -> int:
    """Return a descriptor, as the `opener` of `open`. OSError unless it is a regular file and, for writing, for a link,
    whose target may not be meant.
    """
    is_read = flags & os.O_ACCMODE == os.O_RDONLY
    descriptor = os.open(path, flags | os.O_NONBLOCK | (0 if is_read else os.O_NOFOLLOW), 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_file(path: Path, most_bytes: int | None = MOST_FILE_BYTES, errors: str = "strict") -> str:
    """Return the text of a file. OSError as `open_file`, and where it is larger; UnicodeDecodeError, a ValueError."""
    with open_file(path) as file:
        content = file.read(-1 if most_bytes is None else most_bytes + 1)
    if most_bytes is not None and len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it must be at most {most_bytes:,} bytes", str(path))
    return content.decode("utf-8", errors).replace("\r\n", "\n")


def remove_file(path: Path) -> None:
    """Remove a file that may be gone already; DataError if a folder that is not empty has its name, or it can't be
    removed."""
    try:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path} can't be removed: {error.strerror}.") from error


def write_durably(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Let `write` fill a new file, and force it to disk. Anything that has the name is removed, never written into: in
    a directory from elsewhere it may be a link."""
    path.unlink(missing_ok=True)
    with path.open("x+b") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def rename_durably(path: Path, target: Path) -> None:
    """Rename the file; otherwise that may be lost when the machine goes down, or come after a later one."""
    os.replace(path, target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write `content` beside `path`, force it to disk and rename: a reader or a crash never meets half a file, and a
    link at `path` is replaced, not followed. Halves of characters, as in names of files, are written as \\udcff.

    Raises DataError naming the file if it can't be written; an earlier version of the file is then kept.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    try:
        with naming(path, CHECK_DISK):
            write_durably(temporary, lambda file: file.write(data))
            rename_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: JsonObject) -> None:
    """Write strict JSON, indented, whole or not at all; add `schema_version` where it is missing."""
    write_atomic(path, strict_json({"schema_version": SCHEMA_VERSION, **value}, indent=2) + "\n")


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON text; nan and infinities become the strings "NaN", "Infinity" and "-Infinity".

    JSON has no such numbers, and Python's bare `NaN` stops strict parsers. Strings keep apart what null would blur
    (nan, infinite, not there), and `float("NaN")`, JavaScript's `Number("Infinity")` and Java's `parseDouble` read
    them back. `None` stays null: no value, such as the loss of an interval in which every step was skipped.

    >>> strict_json({"loss": float("inf"), "skipped_steps": 3})
    '{"loss": "Infinity", "skipped_steps": 3}'
    >>> import numpy as np
    >>> strict_json([float("nan"), (-float("inf"), None, True), np.float32("nan"), np.float32(0.5), np.int64(7), "→"])
    '["NaN", ["-Infinity", null, true], "NaN", 0.5, 7, "→"]'
    >>> strict_json(object())
    Traceback (most recent call last):
    TypeError: Object of type object is not JSON serializable
    """
    try:
        text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):  # a NumPy number, or one that JSON lacks
        value = json.loads(json.dumps(value, default=_as_python), parse_constant=str)
        text = json.dumps(value, indent=indent, ensure_ascii=False)
    return without_secrets(text).translate(_ESCAPED)


# what a terminal obeys and JSON may have bare, what turns a line around, and halves of a character, which no file holds
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *TURNING, *range(0xD800, 0xE000))}


def _as_python(value: object) -> int | float:
    """Return NumPy's integers and floats as Python's; TypeError, as of json, for what is neither."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def fall_silent(stream: IO[str]) -> None:
    """Write nowhere from now on, also in Python's flush at exit, whose failure would change the exit code.

    The reader of a pipe (`head`) has gone, or a disk is full.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
