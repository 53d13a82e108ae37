"""How files are written, whole or not at all, and JSON as strict parsers read it. Light: what runs in a cluster's job
imports it in a thousand processes.
"""

import json
import math
import os
from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO

from mpt_cli.errors import CHECK_DISK, TURNING, naming
from mpt_cli.redaction import without_secrets
from mpt_cli.version import SCHEMA_VERSION


def write_durably(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Have `write` fill a new file, and force it to disk. What has the name before is taken away, never written into:
    in a directory from elsewhere it may be a link."""
    path.unlink(missing_ok=True)
    with path.open("x+b") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def rename_durably(path: Path, place: Path) -> None:
    """Rename the file; otherwise that may be lost when the machine goes down, or come after a later one."""
    os.replace(path, place)
    descriptor = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write `content` beside `path`, force it to disk and rename: a reader or a crash never meets half a file, and a
    link at `path` is replaced, not followed. Halves of characters, as in names of files, are written as \\udcff.

    Raises DataError naming the file when it can't be written; an earlier version of the file then still stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    try:
        with naming(path, CHECK_DISK):
            write_durably(temporary, lambda file: file.write(data))
            rename_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write strict JSON, indented, whole or not at all; add `schema_version` where it is missing."""
    write_atomic(path, strict_json({"schema_version": SCHEMA_VERSION, **value}, indent=2) + "\n")


def strict_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as JSON text; nan and infinities become the strings "NaN", "Infinity" and "-Infinity".

    JSON has no such numbers, and Python's bare `NaN` stops strict parsers. Strings keep apart what null would blur
    (nan, infinite, not there), and `float("NaN")`, JavaScript's `Number("Infinity")` and Java's `parseDouble` read
    them back. `None` stays null: no value, such as the loss of an interval in which every step was skipped.

    >>> strict_json({"loss": float("inf"), "skipped_steps": 3})
    '{"loss": "Infinity", "skipped_steps": 3}'
    """
    try:
        text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):  # a NumPy number, or one that JSON lacks
        text = json.dumps(_finite_json(value), indent=indent, allow_nan=False, ensure_ascii=False)
    return without_secrets(text).translate(_ESCAPED)


# what a terminal obeys and JSON may have bare, what turns a line around, and halves of a character, which no file holds
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *TURNING, *range(0xD800, 0xE000))}


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _finite_json(value: Any) -> Any:
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, Integral):  # NumPy's integers and floats, which json refuses
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else _NON_FINITE[str(float(value))]
    if isinstance(value, dict):
        return {str(name): _finite_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite_json(item) for item in value]
    return value
