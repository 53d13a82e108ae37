"""`mpt doctor`: what is installed, what this machine has, what each policy gains here, what is missing; as a person
reads it. `python -m mpt_cli.doctor BACKEND` measures one Keras backend; none is imported at the top.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.errors import BAD_DATA, OK, install_command
from mpt_cli.jobs.executor import call, module_command
from mpt_cli.machine import machine_facts
from mpt_cli.runs.directory import DEFAULT_PARENT
from mpt_cli.runs.provenance import NAMED_PACKAGES, installed_packages
from mpt_cli.telemetry.format import format_bytes
from mpt_cli.telemetry.records import SCHEMA_VERSION
from mpt_cli.version import __version__

DEFAULT_BACKEND = "tensorflow"
BACKENDS = (DEFAULT_BACKEND, "jax")
BUSY_SHARE = 0.25  # of the cores; chosen, not measured: a load that is left from mpt itself is mostly below
OPTIONAL_PACKAGES = {  # package -> what it is for, and the extra that has it, if one does
    "tensorflow": ("backend=tensorflow, mpt export --format savedmodel", "tensorflow"),
    "jax": ("backend=jax", "jax"), "jax_cuda12_plugin": ("mpt plan", "gpu-plan"),
    "matplotlib": ("the pictures of report, sweep, compare and diagnose", "plots"),
    "tensorboard": ("logger.tensorboard=true", "tensorboard"), "mlflow": ("logger.mlflow=true", "mlflow"),
    "wandb": ("logger.wandb=true", "wandb"), "optuna": ("mpt sweep --trials", "optuna"),
    "submitit": ("mpt sweep --launcher submitit", "slurm"), "ray": ("mpt sweep --launcher ray", "ray"),
    "onnx": ("mpt export --format onnx", None), "tf2onnx": ("mpt export --format onnx", None),
}  # fmt: skip


@dataclass(frozen=True)
class BackendReport:
    """One Keras backend: whether it runs here, on what, and how fast in each dtype (see `probe`)."""

    name: str
    installed: bool
    works: bool
    error: str | None
    devices: list[str]
    timings: list[dict[str, Any]]


@dataclass(frozen=True)
class MissingPackage:
    """Something optional that isn't there, what it would be for, and the command that installs it."""

    name: str
    purpose: str
    install: str


@dataclass(frozen=True)
class DoctorReport:
    """Everything `mpt doctor` found. `load_average` is of the minute before it began to measure."""

    versions: dict[str, str]
    machine: dict[str, Any]
    backends: list[BackendReport]
    missing: list[MissingPackage]
    runs_parent: str
    runs_parent_writable: bool
    terminal: dict[str, Any]
    load_average: float

    @property
    def is_busy(self) -> bool:
        """Whether other programs used the cores just before, so that what was measured since may be theirs."""
        return self.load_average > BUSY_SHARE * int(self.machine["usable_cores"])

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


def doctor(measure: bool = True) -> DoctorReport:
    """Examine this machine; with `measure` about ten seconds per backend, most of it the import of the framework."""
    load_average = os.getloadavg()[0]
    packages = installed_packages()
    machine = machine_facts()
    backends = [_examine_backend(name, measure) for name in BACKENDS]
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
        terminal=_terminal(),
        load_average=load_average,
    )


def _examine_backend(name: str, measure: bool) -> BackendReport:
    if importlib.util.find_spec(name) is None:
        return BackendReport(name, False, False, "not installed", [], [])
    found = probe_backend(name, measure)
    return BackendReport(
        name, True, found["works"], found.get("error"), found.get("devices", []), found.get("timings", [])
    )


def _missing_packages(machine: dict[str, Any], backends: list[BackendReport]) -> list[MissingPackage]:
    missing = [
        MissingPackage(name, purpose, install_command(extra) if extra else f"pip install {name}")
        for name, (purpose, extra) in OPTIONAL_PACKAGES.items()
        if importlib.util.find_spec(name) is None
    ]
    default = next(backend for backend in backends if backend.name == DEFAULT_BACKEND)
    if machine["gpus"] and default.works and not any("gpu" in device for device in default.devices):
        missing.append(
            MissingPackage("CUDA libraries", "the GPU of this machine", install_command("cuda"))
        )
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


_LABEL_WIDTH = 12
POLICY_DTYPES = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
FASTER, SLOWER = 1.1, 0.9  # within a tenth a measurement this short says nothing


def print_doctor_report(report: DoctorReport, console: Console) -> None:
    """Rows of label and text, then what to do about what is missing; folded in a terminal, whole lines elsewhere."""
    if not console.is_terminal:
        for label, text in doctor_report_rows(report):
            print(f"{label:<{_LABEL_WIDTH}}  {text}", file=console.file)
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=_LABEL_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    for label, text in doctor_report_rows(report):
        grid.add_row(label, Text(text))
    console.print(grid)


def doctor_report_rows(report: DoctorReport) -> list[tuple[str, str]]:
    """The whole report as label and text."""
    rows = [("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items()))]
    rows += _machine_rows(report.machine)
    for backend in report.backends:
        rows += _backend_rows(backend)
    if report.is_busy and any(backend.timings for backend in report.backends):
        load = f"load average {report.load_average:.1f} on {report.machine['usable_cores']} cores"
        rows.append(("", f"uncertain speeds: the machine is busy ({load}). Measure again when it is quiet"))
    rows += [("missing", f"{item.name}, for {item.purpose}: {item.install}") for item in report.missing]
    writable = "can be written" if report.runs_parent_writable else "can NOT be written: set run_dir"
    rows.append(("runs", f"{report.runs_parent} {writable}"))
    terminal = "live screen" if report.terminal["interactive"] else "plain lines (not a terminal)"
    rows.append(("terminal", f"{terminal}, {report.terminal['encoding']}"))
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
    rows = [(backend.name, f"works on {', '.join(backend.devices)}")]
    for device in sorted({row["device"] for row in backend.timings}):
        rows += [("", _format_gain(backend, device, policy, dtype)) for policy, dtype in POLICY_DTYPES.items()]
    return rows


def _format_gain(backend: BackendReport, device: str, policy: str, dtype: str) -> str:
    """Measured here, on this device: the policy's arithmetic against float32's."""
    speeds = {
        row["operation"]: row["speed_against_float32"]
        for row in backend.timings
        if row["device"] == device and row["dtype"] == dtype
    }
    figures = ", ".join(f"{operation} {speed:.2f}x" for operation, speed in speeds.items())
    return f"{device} {policy}: {figures} the speed of float32, {_gain(list(speeds.values()))}"


def _gain(speeds: list[float]) -> str:
    if min(speeds) >= FASTER:
        return "faster"
    if max(speeds) <= SLOWER:
        return "slower: use it here for memory or for rehearsal"
    return "faster for some layers only" if max(speeds) >= FASTER else "no gain in speed"


def _format_result(report: DoctorReport) -> str:
    if report.exit_code == 0:
        named = "" if report.backend in (None, report.backends[0]) else f" backend={report.backend.name}"
        return f"ready: mpt train conf=digits_cnn{named}"
    return "NOT ready: see above"


DTYPES = ("float32", "float16", "bfloat16")
PROBE_SECONDS = 180.0
ROUNDS, ROUND_SECONDS, MOST_CALLS = 3, 0.1, 200
MATRIX_SIZE = {"cpu": 512, "gpu": 4096}
IMAGE_SHAPE = {"cpu": (16, 32, 32, 32), "gpu": (128, 56, 56, 64)}  # batch, height, width, channels


def probe_backend(backend: str, measure: bool = True, jit_compile: bool = True) -> dict[str, Any]:
    """What a process of its own finds, because one can hold only one backend and a broken installation may bring it
    down; `works` is False with an `error` where there was no answer.

    `jit_compile` False times TensorFlow without XLA, as models that convolve are trained on a CPU.
    """
    manner = "quick" if not measure else "measure" if jit_compile else "plain"
    variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = call(module_command("mpt_cli.doctor", backend, manner), PROBE_SECONDS, environment=variables)
    if answer.exit_code != OK or not answer.stdout.strip():
        said = answer.stderr.strip().splitlines() or ["no output"]
        return {"works": False, "error": answer.why or said[-1]}
    return answer.json


def _measure_backend(backend: str, measure: bool, jit_compile: bool = True) -> dict[str, Any]:
    """What this process finds; imports Keras."""
    import keras

    devices = [name.lower() for name in keras.distribution.list_devices()]
    kinds = sorted({"gpu" if "gpu" in name or "cuda" in name else "cpu" for name in devices} | {"cpu"})
    timings = [row for kind in kinds for row in _timings(backend, kind, jit_compile)] if measure else []
    return {"works": True, "keras": keras.__version__, "devices": devices, "timings": timings}


def _timings(backend: str, kind: str, jit_compile: bool) -> list[dict[str, Any]]:
    import keras

    rows = []
    with keras.device(f"{kind}:0"):
        for operation, build in (("matmul", _matmul), ("conv", _conv)):
            times = {dtype: _best_seconds(_compiled(backend, build(kind, dtype), jit_compile)) for dtype in DTYPES}
            for dtype in DTYPES:
                speed = times["float32"] / times[dtype]
                row = {"device": kind, "operation": operation, "dtype": dtype, "seconds": times[dtype]}
                rows.append({**row, "speed_against_float32": round(speed, 3)})
    return rows


def _matmul(kind: str, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    import keras

    matrix = keras.random.normal((MATRIX_SIZE[kind],) * 2, seed=1, dtype="float32")
    return keras.ops.matmul, [keras.ops.cast(matrix, dtype)] * 2


def _conv(kind: str, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    import keras

    shape = IMAGE_SHAPE[kind]
    images = keras.random.normal(shape, seed=1, dtype="float32")
    kernel = keras.random.normal((3, 3, shape[-1], shape[-1]), seed=2, dtype="float32")

    def conv(x: Any, y: Any) -> Any:
        return keras.ops.conv(x, y, padding="same")

    return conv, [keras.ops.cast(images, dtype), keras.ops.cast(kernel, dtype)]


def _compiled(backend: str, work: tuple[Callable[..., Any], list[Any]], jit_compile: bool) -> Callable[[], Any]:
    """Under XLA, as most training is by default; JAX has nothing else."""
    function, arguments = work
    if backend == "jax":
        import jax

        compiled = jax.jit(function)
    else:
        import tensorflow as tf

        compiled = tf.function(function, jit_compile=jit_compile)
    return lambda: compiled(*arguments)


def _best_seconds(call: Callable[[], Any]) -> float:
    """Seconds per call, the fastest of some rounds; each ends by reading one element, which waits for the device."""
    _seconds(call, 1)  # compiles
    calls = max(1, min(MOST_CALLS, int(ROUND_SECONDS / _seconds(call, 1))))
    return min(_seconds(call, calls) / calls for _ in range(ROUNDS))


def _seconds(call: Callable[[], Any], calls: int) -> float:
    import keras

    started = time.perf_counter()
    for _ in range(calls):
        result = call()
    keras.ops.convert_to_numpy(keras.ops.cast(result[(0,) * len(result.shape)], "float32"))
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(_measure_backend(sys.argv[1], sys.argv[2] != "quick", sys.argv[2] != "plain")))
