"""Folders that are made, and taken back where nothing came of it."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def make_folder(path: Path, exist_ok: bool = True) -> tuple[Path, ...]:
    """Make `path` with its parents; returns those of them that were not there, the innermost first."""
    made = tuple(folder for folder in (path, *path.parents) if not folder.exists())
    path.mkdir(parents=True, exist_ok=exist_ok)
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders in their order, up to the first that is not empty or can't be removed; that is no error."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
