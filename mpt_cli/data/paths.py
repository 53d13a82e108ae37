"""Checks of the user's paths before Keras is imported or a sweep begins: they exist, are readable and not empty.
Imports no NumPy.
"""

import os
from pathlib import Path

from mpt_cli.errors import DataError, did_you_mean, raise_problems
from mpt_cli.settings.checks import imported_objects
from mpt_cli.settings.model_data_optimizer_keys import Loader, Saved
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import expanded
from mpt_cli.user_code import missing_problem


def readable_file(path: str, key: str = "data.path") -> Path:
    """Return the path of a file with something in it; DataError otherwise, with the nearest name in its folder."""
    file = expanded(path)
    if not file.exists():
        where = "" if file.is_absolute() else " in the current folder"
        folder = file.parent
        names = sorted(os.listdir(folder)) if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK) else []
        raise DataError(f"{key}: there is no file {file}{where}. {did_you_mean(file.name, names)}".rstrip())
    try:
        with file.open("rb") as stream:
            is_empty = not stream.read(1)
    except OSError as error:
        raise DataError(f"{key}: {file} can't be read: {error.strerror}.") from error
    if is_empty:
        raise DataError(f"{key}: {file} is empty.")
    return file


def check_run_present(settings: Settings) -> None:
    """Check that what a run names exists, without loading it: ConfigError for functions of the user's, all at once,
    DataError for a file of its data or model that can't be read.
    """
    raise_problems(problem for key, name in imported_objects(settings) if (problem := missing_problem(name, key)))
    path = getattr(settings.data, "path", None)
    if path is not None and not isinstance(settings.data, Loader):  # only the loader knows what the path means
        readable_file(path)
    if isinstance(settings.model, Saved):
        readable_file(settings.model.path, "model.path")
