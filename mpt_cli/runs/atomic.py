"""Files that are either whole or not there."""

import os
from pathlib import Path

from mpt_cli.errors import DataError


def write_atomic(path: Path, text: str) -> None:
    """Write `text` beside `path`, force it to disk and rename: a reader or a crash never meets half a file.

    Raises DataError naming the file when it can't be written; an earlier version of the file then still stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} can't be written: {error.strerror}. Check free space and permissions.") from error


def _sync_folder(folder: Path) -> None:
    """Without this the rename itself may be lost when the machine goes down."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
