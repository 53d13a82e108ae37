"""`mpt doctor`: what is installed, what this machine has, what each policy gains here, what is missing."""

import importlib.util
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mpt_cli
from mpt_cli.errors import BAD_DATA, OK
from mpt_cli.runs.directory import DEFAULT_PARENT
from mpt_cli.runs.machine import machine_facts
from mpt_cli.runs.probe import probe_backend
from mpt_cli.runs.provenance import NAMED_PACKAGES, installed_packages
from mpt_cli.telemetry.records import SCHEMA_VERSION

DEFAULT_BACKEND = "tensorflow"
BACKENDS = (DEFAULT_BACKEND, "jax")
BUSY_SHARE = 0.25  # of the cores; chosen, not measured: a load that is left from mpt itself is mostly below
EXTRAS = {  # package -> what it is for
    "jax": "backend=jax", "tensorboard": "logger.tensorboard=true", "mlflow": "logger.mlflow=true",
    "wandb": "logger.wandb=true", "optuna": "mpt sweep --trials",
    "submitit": "mpt sweep --launcher submitit", "ray": "mpt sweep --launcher ray",
    "onnx": "mpt export --format onnx", "tf2onnx": "mpt export --format onnx",
}  # fmt: skip


@dataclass(frozen=True)
class Backend:
    """One Keras backend: whether it runs here, on what, and how fast in each dtype (see `probe`)."""

    name: str
    installed: bool
    works: bool
    error: str | None
    devices: list[str]
    timings: list[dict[str, Any]]


@dataclass(frozen=True)
class Missing:
    """Something optional that isn't there, what it would be for, and the command that installs it."""

    name: str
    purpose: str
    install: str


@dataclass(frozen=True)
class DoctorReport:
    """Everything `mpt doctor` found. `load_average` is of the minute before it began to measure."""

    versions: dict[str, str]
    machine: dict[str, Any]
    backends: list[Backend]
    missing: list[Missing]
    runs_parent: str
    runs_parent_writable: bool
    terminal: dict[str, Any]
    load_average: float

    @property
    def is_busy(self) -> bool:
        """Whether other programs used the cores just before, so that what was measured since may be theirs."""
        return self.load_average > BUSY_SHARE * int(self.machine["usable_cores"])

    @property
    def backend(self) -> Backend | None:
        """The one to run with here: the default backend, or the other where that is not installed."""
        return next((backend for backend in self.backends if backend.installed), None)

    @property
    def exit_code(self) -> int:
        """0 when that backend computes and runs can be written, else 3."""
        works = self.backend is not None and self.backend.works
        return OK if works and self.runs_parent_writable else BAD_DATA

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"schema_version": SCHEMA_VERSION, "exit_code": self.exit_code, **asdict(self)}


def doctor(measure: bool = True) -> DoctorReport:
    """Examine this machine; with `measure` about ten seconds per backend, most of it the import of the framework."""
    load_average = os.getloadavg()[0]
    packages = installed_packages()
    machine = machine_facts()
    backends = [_backend(name, measure) for name in BACKENDS]
    return DoctorReport(
        versions={
            "mpt": mpt_cli.__version__,
            "python": sys.version.split()[0],
            **{name: packages[name] for name in NAMED_PACKAGES if name in packages},
        },
        machine=machine,
        backends=backends,
        missing=_missing(machine, backends),
        runs_parent=str(Path(DEFAULT_PARENT).absolute()),
        runs_parent_writable=_is_writable(Path(DEFAULT_PARENT).absolute()),
        terminal=_terminal(),
        load_average=load_average,
    )


def _backend(name: str, measure: bool) -> Backend:
    if importlib.util.find_spec(name) is None:
        return Backend(name, False, False, "not installed", [], [])
    found = probe_backend(name, measure)
    return Backend(name, True, found["works"], found.get("error"), found.get("devices", []), found.get("timings", []))


def _missing(machine: dict[str, Any], backends: list[Backend]) -> list[Missing]:
    missing = [
        Missing(name, purpose, f"pip install {name}")
        for name, purpose in EXTRAS.items()
        if importlib.util.find_spec(name) is None
    ]
    default = next(backend for backend in backends if backend.name == DEFAULT_BACKEND)
    if machine["gpus"] and default.works and not any("gpu" in device for device in default.devices):
        missing.append(Missing("CUDA libraries", "the GPU of this machine", "pip install 'tensorflow[and-cuda]'"))
    return missing


def _is_writable(folder: Path) -> bool:
    """Of the folder, or of the nearest one above it that exists; nothing is made."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _terminal() -> dict[str, Any]:
    return {
        "interactive": sys.stdout.isatty(),
        "type": os.environ.get("TERM", ""),
        "encoding": sys.stdout.encoding,
        "colour": "NO_COLOR" not in os.environ,
    }
