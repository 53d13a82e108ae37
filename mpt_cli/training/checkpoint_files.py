"""One checkpoint on disk: a file of variables and its label, whole or not there, checked when read.

`NAME.npz` holds every variable, `NAME.json` the position of the run and the SHA-256 of the first. The label is renamed
into place last, so that its presence says that the variables are complete.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpt_cli.telemetry.strict_json import strict_json

SCHEMA_VERSION = 1
SPARE_BYTES = 2**16  # for the label and what the file system keeps for itself
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """Variables by name, and the position of the run: a JSON object."""

    step: int
    arrays: Arrays
    position: dict[str, Any]


def paths_of(folder: Path, name: str) -> tuple[Path, Path]:
    """Where the variables lie, and the label."""
    return folder / f"{name}.npz", folder / f"{name}.json"


def write_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Write both files, or none: OSError where there is no room or no right to, and what was there before stays."""
    check_room(folder, sum(array.nbytes for array in checkpoint.arrays.values()))
    data, label = paths_of(folder, name)
    label.unlink(missing_ok=True)  # an old label must never stand beside new variables
    arrays: dict[str, Any] = {name: _plain(array) for name, array in checkpoint.arrays.items()}
    _write_whole(data, lambda file: np.savez(file, **arrays))
    content = {
        "schema_version": SCHEMA_VERSION,
        "step": checkpoint.step,
        "sha256": _sha256(data),
        "dtypes": {name: str(array.dtype) for name, array in checkpoint.arrays.items()},
        "position": checkpoint.position,
    }
    text = strict_json({**content, "checksum": _checksum(content)}) + "\n"
    _write_whole(label, lambda file: file.write(text.encode()))


def read_checkpoint(folder: Path, name: str) -> Checkpoint:
    """Read and check both files; OSError, ValueError or KeyError with the reason where they are not whole."""
    data, label = paths_of(folder, name)
    content = json.loads(label.read_text())
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise ValueError("its label does not match its checksum")
    if content["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"it has schema_version {content['schema_version']}, this mpt reads {SCHEMA_VERSION}")
    if _sha256(data) != content["sha256"]:
        raise ValueError("its variables do not match their checksum")
    with np.load(data, allow_pickle=False) as stored:
        arrays = {name: stored[name].view(_dtype(dtype)) for name, dtype in content["dtypes"].items()}
    return Checkpoint(content["step"], arrays, content["position"])


def check_room(folder: Path, size_bytes: int) -> None:
    """OSError before the disk is filled to the brim, which would take the room that the run's other files need."""
    free = shutil.disk_usage(folder).free
    if free < size_bytes + SPARE_BYTES:
        needed = f"{os.strerror(errno.ENOSPC)}: {size_bytes / 2**20:.1f} MiB needed, {free / 2**20:.1f} MiB free"
        raise OSError(errno.ENOSPC, needed)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """NumPy's files know no bfloat16 or float8; their bits are stored as integers."""
    if array.dtype.kind != "V":
        return array
    return array.view({1: np.uint8, 2: np.uint16}[array.dtype.itemsize])


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(strict_json(dict(sorted(content.items()))).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_whole(path: Path, write: Callable[[Any], Any]) -> None:
    """Write beside `path`, force it to disk, rename. A crash leaves the old file or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
