"""Where a diagnosis is kept, and the names of its files."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mpt_cli.errors import DataError
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.runs.folders import make_empty, remove_empty
from mpt_cli.telemetry.records import SCHEMA_VERSION
from mpt_cli.telemetry.strict_json import strict_json


@dataclass(frozen=True)
class DiagnosisDirectory:
    """A directory of its own beside the runs of the recipe; it holds no config.yaml, so that no run is looked for."""

    path: Path
    made: tuple[Path, ...] = ()  # by `create`: the directory and those above it that were not there

    @classmethod
    def create(cls, path: str | None, parent: Path) -> Self:
        """`path`, or `parent`/diagnose-<time>. DataError where it holds anything or can't be made."""
        chosen = Path(path).expanduser() if path is not None else _unused(parent / f"diagnose-{_now()}")
        return cls(chosen, make_empty(chosen, "--out"))

    @classmethod
    @contextmanager
    def making(cls, path: str | None, parent: Path) -> Iterator[Self]:
        """`create`; where the block ends with an error and nothing in it, the folders that were made go again."""
        directory = cls.create(path, parent)
        try:
            yield directory
        except BaseException:
            remove_empty(directory.made)
            raise

    @property
    def diagnosis_json(self) -> Path:
        return self.path / "diagnosis.json"

    @property
    def gradients_png(self) -> Path:
        return self.path / "gradients.png"

    @property
    def gradients_svg(self) -> Path:
        return self.path / "gradients.svg"

    @property
    def files(self) -> tuple[Path, ...]:
        """Those of a diagnosis of scales; that of an overflow has no pictures."""
        return self.diagnosis_json, self.gradients_png, self.gradients_svg

    def write(self, content: dict[str, Any]) -> None:
        write_atomic(self.diagnosis_json, strict_json({"schema_version": SCHEMA_VERSION, **content}, indent=2) + "\n")


def check_target(target: str | None) -> None:
    """DataError where the file exists or can't be made, before anything is measured; nothing is left of the trial."""
    if target is None:
        return
    path = Path(target).expanduser()
    if not path.parent.is_dir():
        raise DataError(f"{path} can't be written: there is no folder {path.parent}.")
    try:
        path.touch(exist_ok=False)
        path.unlink()
    except FileExistsError as error:
        raise DataError(f"{path} exists already. Nothing was changed; give another --write.") from error
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}. Give another --write.") from error


def _now() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def _unused(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}-{number}") for number in range(2, 100))
    return path if not path.exists() else next(other for other in numbered if not other.exists())
