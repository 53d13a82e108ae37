"""Folders that are made, and taken back where nothing came of it."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mpt_cli.errors import DataError


def make_folder(path: Path, exist_ok: bool = True) -> tuple[Path, ...]:
    """Make `path` with its parents; returns those of them that were not there, the innermost first."""
    made = tuple(folder for folder in (path, *path.parents) if not folder.exists())
    path.mkdir(parents=True, exist_ok=exist_ok)
    return made


def make_empty(path: Path, option: str, exist_ok: bool = True) -> tuple[Path, ...]:
    """`make_folder` of the folder that `option` names; DataError where it holds anything or can't be made."""
    try:
        made = make_folder(path, exist_ok)
        taken = any(path.iterdir())
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}. Choose another {option}.") from error
    if taken:
        raise DataError(f"{path} is not empty. Nothing in it was changed; choose another {option}.")
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders in their order, up to the first that is not empty or can't be removed; that is no error."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
