"""One checkpoint on disk: a file of variables and its label, whole or not there, checked when read.

`NAME.npz` holds every variable; the label `NAME.json` the position of the run, and the name and SHA-256 of the first.
The label is renamed into place last, so that its presence says that the variables are complete. Where there is a
checkpoint of that name already, the new variables go into `NAME-again.npz` (and the next time into `NAME.npz`): the old
one is valid until its label is replaced.
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
AGAIN = "-again"
DAMAGED = (OSError, ValueError, KeyError, EOFError)  # whatever reading a file that is not whole can meet
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """Variables by name, and the position of the run: a JSON object."""

    step: int
    arrays: Arrays
    position: dict[str, Any]


def files_of(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """The label first, which makes the others a checkpoint, and the two places for the variables."""
    return folder / f"{name}.json", folder / f"{name}.npz", folder / f"{name}{AGAIN}.npz"


def name_of(file: Path) -> str:
    """Of the checkpoint that a file belongs to."""
    return file.stem.removesuffix(AGAIN)


def write_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Write both files, or none: OSError where there is no room or no right to, and what was there before stays."""
    check_room(folder, sum(array.nbytes for array in checkpoint.arrays.values()))
    label, *places = files_of(folder, name)
    data = next(place for place in places if place != _data_in_use(label))
    partial_label, partial_data = _partial(label), _partial(data)
    arrays: dict[str, Any] = {name: _plain(array) for name, array in checkpoint.arrays.items()}
    try:
        _write_durably(partial_data, lambda file: np.savez(file, **arrays))
        text = _label_text(checkpoint, data.name, _sha256(partial_data))
        _write_durably(partial_label, lambda file: file.write(text.encode()))
        for partial, place in ((partial_data, data), (partial_label, label)):
            os.replace(partial, place)
            _sync_folder(folder)
    except BaseException:
        partial_data.unlink(missing_ok=True)
        partial_label.unlink(missing_ok=True)
        raise
    for place in places:
        if place != data:
            place.unlink(missing_ok=True)


def read_label(folder: Path, name: str) -> dict[str, Any]:
    """The checked content of a label; OSError, ValueError or KeyError with the reason where it is not whole."""
    label, *places = files_of(folder, name)
    content = json.loads(label.read_text())
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise ValueError("its label does not match its checksum")
    if content["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"it has schema_version {content['schema_version']}, this mpt reads {SCHEMA_VERSION}")
    content.setdefault("data", f"{name}.npz")  # earlier labels do not name it
    if content["data"] not in [place.name for place in places]:
        raise ValueError("its label is of another checkpoint")
    return content


def read_checkpoint(folder: Path, name: str) -> Checkpoint:
    """Read and check both files; OSError, ValueError or KeyError with the reason where they are not whole."""
    content = read_label(folder, name)
    data = folder / content["data"]
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


def _data_in_use(label: Path) -> Path | None:
    """The variables of the checkpoint that stands; None where there is none, or none that can be read."""
    try:
        return label.with_name(read_label(label.parent, label.stem)["data"])
    except DAMAGED:
        return None


def _label_text(checkpoint: Checkpoint, data: str, sha256: str) -> str:
    content = {
        "schema_version": SCHEMA_VERSION,
        "step": checkpoint.step,
        "data": data,
        "sha256": sha256,
        "dtypes": {name: str(array.dtype) for name, array in checkpoint.arrays.items()},
        "position": checkpoint.position,
    }
    return strict_json({**content, "checksum": _checksum(content)}) + "\n"


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(strict_json(dict(sorted(content.items()))).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _write_durably(path: Path, write: Callable[[Any], Any]) -> None:
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Without this a rename may be lost when the machine goes down, or come after a later one."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
