"""The run directory: the only place that knows the file names in it."""

import fcntl
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

from mpt_cli.errors import DataError
from mpt_cli.runs.folders import make_folder, remove_empty
from mpt_cli.telemetry.setup import TelemetryFiles

DEFAULT_PARENT = "runs"
LOCK = ".lock"
# stems, also of temporary files
UNSTARTED = {"metrics", "events", "console", "tensorboard", "environment", "preprocessing", "config"}


@dataclass(frozen=True)
class RunDirectory:
    """A directory made by `create` or found by `open`, and the paths in it (a contract: scripts read them)."""

    path: Path
    made: tuple[Path, ...] = ()  # by `create`: the directory and those above it that were not there

    @classmethod
    def create(cls, path: str | Path | None, recipe: str) -> Self:
        """A new directory: `path`, or runs/<recipe>/<time>-<id>. Nothing that exists is ever written into.

        Raises DataError when `path` is a file or holds anything, or when it can't be made or written to.
        """
        chosen = Path(path).expanduser() if path is not None else _default_path(recipe)
        try:
            made = make_folder(chosen, exist_ok=path is not None)  # two runs never share a drawn name
            taken = any(path.name != LOCK for path in chosen.iterdir())
        except OSError as error:
            raise _cannot_create(chosen, error) from error
        if taken:
            raise DataError(
                f"run_dir {chosen} already exists and is not empty. Nothing in it was changed; choose another run_dir, "
                "or leave it out for a new one."
            )
        _check_writable(chosen)
        return cls(chosen, made)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The directory of an earlier run; DataError when there is none or it isn't one."""
        found = Path(path).expanduser()
        if not found.is_dir():
            what = "is a file" if found.exists() else "does not exist"
            raise DataError(f"run directory {found} {what}. Give the folder that `mpt train` wrote.")
        run = cls(found)
        if not run.config_yaml.is_file():
            raise DataError(f"{found} is not a run directory: it has no {run.config_yaml.name}.")
        return run

    @contextmanager
    def lock(self, key: str = "run_dir") -> Iterator[None]:
        """Hold the directory for this process; DataError when another one is writing in it.

        The lock goes with the process, also when it is killed. `key` is what names the directory.
        """
        with self._open_lock(key) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DataError(f"another process is writing in {self.path}. Wait for it, or stop it first.") from error
            yield

    def _open_lock(self, key: str) -> TextIO:
        try:
            return (self.path / LOCK).open("w")
        except OSError as error:
            raise _cannot_create(self.path, error, key) from error

    def clear_unstarted(self) -> bool:
        """Empty a directory whose run was killed before it had begun: no configuration yet, and only files of ours.

        Returns whether it is empty now. DataError when that run is still alive, and beginning.
        """
        names = {path.name.removeprefix(".").split(".")[0] for path in self.path.iterdir() if path.name != LOCK}
        if self.config_yaml.exists() or not (self.path / LOCK).exists() or not names <= UNSTARTED:
            return False
        with self.lock():
            self._clear(LOCK)
        return True

    def discard(self) -> None:
        """Take back a directory whose run never started: its files, and the folders that `create` made.

        Never fails: what kept the run from starting is what the user has to hear.
        """
        with suppress(OSError):
            self._clear()
        remove_empty(self.made)

    def _clear(self, kept: str = "") -> None:
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != kept:
                path.unlink()

    def clear_ending(self) -> None:
        """Take away what the end of an earlier attempt left: a run that trains again has not ended."""
        self.summary_json.unlink(missing_ok=True)
        self.postmortem_json.unlink(missing_ok=True)

    @property
    def config_yaml(self) -> Path:
        return self.path / "config.yaml"

    @property
    def environment_json(self) -> Path:
        return self.path / "environment.json"

    @property
    def preprocessing_json(self) -> Path:
        """Only where the source did something to the raw values: `DataSet.preprocessing`."""
        return self.path / "preprocessing.json"

    @property
    def metrics_jsonl(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events_jsonl(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    @property
    def postmortem_json(self) -> Path:
        """Only where a health rule ended the run."""
        return self.path / "postmortem.json"

    @property
    def metrics_csv(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def console_log(self) -> Path:
        return self.path / "console.log"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model_keras(self) -> Path:
        return self.path / "model.keras"

    def exported(self, kind: str) -> Path:
        """Where `mpt export` puts the model in that format."""
        return self.path / "exported" / {"keras": "model.keras", "savedmodel": "model", "onnx": "model.onnx"}[kind]

    @property
    def telemetry_files(self) -> TelemetryFiles:
        """What `build_telemetry` wants to know."""
        return TelemetryFiles(
            self.metrics_jsonl, self.events_jsonl, self.metrics_csv, self.tensorboard, self.console_log,
            self.path / "mlflow", self.path / "wandb",
        )


def default_parent(recipe: str) -> Path:
    """The folder that holds the runs of a recipe when `run_dir` is not given."""
    return Path(DEFAULT_PARENT) / (re.sub(r"[^\w.-]+", "_", recipe).lstrip(".") or "custom")


def _default_path(recipe: str) -> Path:
    return default_parent(recipe) / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _check_writable(path: Path) -> None:
    probe = path / ".writable"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _cannot_create(path, error) from error


def _cannot_create(path: Path, error: OSError, key: str = "run_dir") -> DataError:
    return DataError(f"{key} {path} can't be written: {error.strerror}. Choose a {key} in a folder of yours.")
