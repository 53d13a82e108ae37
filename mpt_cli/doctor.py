"""`mpt doctor`: what is installed, what this machine has and what is missing; as a person reads it.

`python -m mpt_cli.doctor BACKEND` examines one Keras backend; none is imported at the top.
"""

import importlib.util
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mpt_cli.errors import BAD_DATA, OK, install_command
from mpt_cli.jobs.local_processes import call, module_command
from mpt_cli.machine import machine_facts
from mpt_cli.runs.directory import DEFAULT_PARENT
from mpt_cli.runs.provenance import NAMED_PACKAGES, installed_packages
from mpt_cli.settings.schema import BACKENDS
from mpt_cli.telemetry.format import format_bytes
from mpt_cli.version import SCHEMA_VERSION, __version__

OPTIONAL_PACKAGES = {  # package -> what it is for, and the extra that has it, if one does
    "tensorflow": ("backend=tensorflow", "tensorflow"),
    "jax": ("backend=jax", "jax"),
    "jax_cuda12_plugin": ("mpt plan", "gpu-plan"),
    "tensorboard": ("logger.tensorboard=true", "tensorboard"),
    "mlflow": ("logger.mlflow=true", "mlflow"),
    "wandb": ("logger.wandb=true", "wandb"),
    "optuna": ("mpt sweep --trials", "optuna"),
    "submitit": ("mpt sweep --launcher submitit", "slurm"),
    "ray": ("mpt sweep --launcher ray", "ray"),
}


@dataclass(frozen=True)
class BackendReport:
    """One Keras backend: whether it runs here, on what, and which policies train under it."""

    name: str
    installed: bool
    works: bool
    error: str | None = None
    devices: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DoctorReport:
    """Everything `mpt doctor` found."""

    versions: dict[str, str]
    machine: dict[str, Any]
    backends: list[BackendReport]
    missing: list[dict[str, str]]  # name, purpose, and the command for install
    runs_parent: str
    runs_parent_writable: bool

    @property
    def backend(self) -> BackendReport | None:
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


def doctor() -> DoctorReport:
    """Examine this machine; some seconds per backend, most of it the import of the framework."""
    packages = installed_packages()
    machine = machine_facts()
    backends = [_examine_backend(name) for name in BACKENDS]
    return DoctorReport(
        versions={
            "mpt": __version__,
            "python": sys.version.split()[0],
            **{name: packages[name] for name in NAMED_PACKAGES if name in packages},
        },
        machine=machine,
        backends=backends,
        missing=_missing_packages(machine, backends),
        runs_parent=str(Path(DEFAULT_PARENT).absolute()),
        runs_parent_writable=_is_writable(Path(DEFAULT_PARENT).absolute()),
    )


PROBE_SECONDS = 180.0
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def _examine_backend(name: str) -> BackendReport:
    if importlib.util.find_spec(name) is None:
        return BackendReport(name, False, False, "not installed")
    return BackendReport(name, True, **probe_backend(name))


def probe_backend(backend: str) -> dict[str, Any]:
    """Return what a process of its own finds, because one can hold only one backend and a broken installation may bring
    it down; `works` is False with an `error` where there was no answer."""
    variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = call(module_command("mpt_cli.doctor", backend), PROBE_SECONDS, environment=variables)
    if answer.exit_code != OK or not answer.stdout.strip():
        said = answer.stderr.strip().splitlines() or ["no output"]
        return {"works": False, "error": answer.why or said[-1]}
    return answer.json


def _find_backend() -> dict[str, Any]:
    """Return what this process finds; imports Keras. A policy works where a layer under it computes finite numbers."""
    import keras

    policies = []
    for policy in POLICIES:
        output = keras.layers.Dense(4, dtype=policy)(keras.ops.ones((2, 3)))
        if keras.ops.all(keras.ops.isfinite(output)):
            policies.append(policy)
    devices = [name.lower() for name in keras.distribution.list_devices()]
    return {"works": True, "devices": devices, "policies": policies}


def _missing_packages(machine: dict[str, Any], backends: list[BackendReport]) -> list[dict[str, str]]:
    missing = [
        {"name": name, "purpose": purpose, "install": install_command(extra) if extra else f"pip install {name}"}
        for name, (purpose, extra) in OPTIONAL_PACKAGES.items()
        if importlib.util.find_spec(name) is None
    ]
    default = next(backend for backend in backends if backend.name == BACKENDS[0])
    if machine["gpus"] and default.works and not any("gpu" in device for device in default.devices):
        cuda = {"name": "CUDA libraries", "purpose": "the GPU of this machine", "install": install_command("cuda")}
        missing.append(cuda)
    return missing


def _is_writable(folder: Path) -> bool:
    """Of the folder, or of the nearest one above it that exists; nothing is made."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def doctor_report_rows(report: DoctorReport) -> list[tuple[str, str]]:
    """Return the whole report as label and text."""
    rows = [("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items()))]
    rows += _machine_rows(report.machine)
    for backend in report.backends:
        rows += _backend_rows(backend)
    rows += [("missing", "{name}, for {purpose}: {install}".format_map(each)) for each in report.missing]
    writable = "can be written" if report.runs_parent_writable else "can NOT be written: set run_dir"
    rows.append(("runs", f"{report.runs_parent} {writable}"))
    return [*rows, ("result", _format_result(report))]


def _machine_rows(machine: dict[str, Any]) -> list[tuple[str, str]]:
    features = ", ".join(machine["cpu_precision_features"]) or "none"
    gpus = [f"{gpu['name']}, {gpu['memory']}, driver {gpu['driver']}" for gpu in machine["gpus"]]
    cores = f"{machine['usable_cores']} of {machine['cpu_cores']} cores"
    return [
        ("system", machine["os"]),
        ("CPU", f"{machine['cpu']}, {cores}, {format_bytes(machine['memory_bytes'])}"),
        ("16-bit", f"instructions of the CPU: {features}"),
        *[("GPU", gpu) for gpu in gpus or ["none that nvidia-smi knows"]],
    ]


def _backend_rows(backend: BackendReport) -> list[tuple[str, str]]:
    if not backend.works:
        return [(backend.name, backend.error or "does not work")]
    return [(backend.name, f"works on {', '.join(backend.devices)}; computes under {', '.join(backend.policies)}")]


def _format_result(report: DoctorReport) -> str:
    if report.exit_code == 0:
        named = "" if report.backend in (None, report.backends[0]) else f" backend={report.backend.name}"
        return f"ready: mpt train conf=digits_cnn{named}"
    return "NOT ready: see above"


if __name__ == "__main__":
    print(json.dumps(_find_backend()))
