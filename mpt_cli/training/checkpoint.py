"""Checkpoints on disk: whole or not there, checked when read, the last few kept.

One checkpoint is two files: `step-N.npz` with every variable, and `step-N.json` with the position and the SHA-256 of
the first. The second is renamed into place last, so that its presence says that the first is complete.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import DataError
from mpt_cli.telemetry.strict_json import strict_json

SCHEMA_VERSION = 1
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """Variables by name, and the position of the run: a JSON object."""

    step: int
    arrays: Arrays
    position: dict[str, Any]


class CheckpointStore:
    """The checkpoints in one folder. `say` receives a sentence for the user about anything that is not right."""

    def __init__(self, folder: Path, keep: int, say: Callable[[str], None]) -> None:
        self.folder, self.keep, self.say = folder, keep, say

    def save(self, checkpoint: Checkpoint) -> None:
        """Write both files and drop the oldest; OSError where there is no room, and what was there before stays."""
        self.folder.mkdir(exist_ok=True)
        data, label = self._paths(checkpoint.step)
        plain: dict[str, Any] = {name: _plain(array) for name, array in checkpoint.arrays.items()}
        _write_whole(data, lambda file: np.savez(file, **plain))
        content = {
            "schema_version": SCHEMA_VERSION,
            "step": checkpoint.step,
            "sha256": _sha256(data),
            "dtypes": {name: str(array.dtype) for name, array in checkpoint.arrays.items()},
            "position": checkpoint.position,
        }
        text = strict_json({**content, "checksum": _checksum(content)}) + "\n"
        _write_whole(label, lambda file: file.write(text.encode()))
        self._prune()

    def newest(self) -> Checkpoint | None:
        """The latest checkpoint that is whole; None when the folder has none.

        A damaged one is reported and the one before it is taken. DataError when there are checkpoints and none is
        whole: starting again from the beginning must be the user's choice.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self._read(step)
            except (OSError, ValueError, KeyError, EOFError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                self.say(f"checkpoint of step {step} is damaged ({reason}); trying the one before it")
        if steps:
            raise DataError(f"none of the {len(steps)} checkpoints in {self.folder} is whole. Start again in another "
                            "run_dir, or put an undamaged copy in place.")
        return None

    def steps(self) -> list[int]:
        """The steps of the checkpoints that have both files or only the label, ascending."""
        names = [path.stem.removeprefix("step-") for path in self.folder.glob("step-*.json")]
        return sorted(int(name) for name in names if name.isdigit())

    def _paths(self, step: int) -> tuple[Path, Path]:
        return self.folder / f"step-{step:09d}.npz", self.folder / f"step-{step:09d}.json"

    def _read(self, step: int) -> Checkpoint:
        data, label = self._paths(step)
        content = json.loads(label.read_text())
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("its label does not match its checksum")
        if content["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"it has schema_version {content['schema_version']}, this mpt reads {SCHEMA_VERSION}")
        if _sha256(data) != content["sha256"]:
            raise ValueError("its variables do not match their checksum")
        with np.load(data, allow_pickle=False) as stored:
            arrays = {name: stored[name].view(_dtype(dtype)) for name, dtype in content["dtypes"].items()}
        return Checkpoint(step, arrays, content["position"])

    def _prune(self) -> None:
        for step in self.steps()[: -self.keep]:
            for path in reversed(self._paths(step)):  # the label first: without it the data is no checkpoint
                path.unlink(missing_ok=True)


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
