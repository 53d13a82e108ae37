"""NumPy .npz files with x and y, and optionally x_val and y_val."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from mpt_cli.data.assemble import Raw, build_data_set
from mpt_cli.data.examples import Array, DataSet, Examples
from mpt_cli.data.files import readable_file
from mpt_cli.errors import DataError
from mpt_cli.settings.data import Npz
from mpt_cli.settings.suggest import did_you_mean


def load_npz(settings: Npz, seed: int) -> DataSet:
    """The arrays x, y, and where they exist x_val, y_val, which then are the validation set as they are."""
    file = readable_file(settings.path)
    arrays = _read(file)
    validation = None
    if "x_val" in arrays or "y_val" in arrays:
        validation = Examples(_named("x_val", arrays, file), _named("y_val", arrays, file))
    raw = Raw(file.name, Examples(_named("x", arrays, file), _named("y", arrays, file)), validation, settings.task)
    return build_data_set(raw, settings, seed)


def _read(file: Path) -> dict[str, Array]:
    try:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"data.path: {file} holds a single array. Save x and y together: np.savez(path, x=x, y=y).")
        with archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise DataError(f"data.path: {file} can't be read as .npz: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return "it is no .npz file, or holds Python objects (dtype object), which could run code. Save plain numbers."
    return f"{error}. Is it complete?"


def _named(name: str, arrays: dict[str, Array], file: Path) -> Array:
    if name not in arrays:
        raise DataError(f"data.path: {file} has no array {name!r}. It has: {', '.join(arrays) or 'none'}. "
                        f"{did_you_mean(name, arrays)}".rstrip())
    return arrays[name]
