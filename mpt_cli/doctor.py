"""`mpt doctor`: what is installed, what this machine has and what is missing; as a person reads it.

`python -m mpt_cli.doctor` examines the backend that KERAS_BACKEND names; none is imported at the top.
"""

import importlib.util
import json
import sys

from mpt_cli.errors import BAD_DATA, OK, install_command
from mpt_cli.files import JsonObject
from mpt_cli.jobs.local_processes import NoAnswer, helper_object, module_command
from mpt_cli.machine import machine_facts
from mpt_cli.runs.provenance import NAMED_PACKAGES, installed_packages
from mpt_cli.settings.schema import BACKENDS
from mpt_cli.telemetry.format import Rows, format_bytes
from mpt_cli.version import __version__

OPTIONAL_PACKAGES = {  # package -> what it is for, and the extra that has it
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
PROBE_SECONDS = 180.0


def doctor() -> JsonObject:
    """Examine this machine and return the report of `--json`; takes seconds for each backend, to import it.

    The exit code is 0 when the backend works that a run would have: the default one, or the other where that is not
    installed; else 3.
    """
    packages, machine = installed_packages(), machine_facts()
    backends = [{"name": name, **probe_backend(name)} for name in BACKENDS]
    default = next((each for each in backends if each["installed"]), backends[0])
    ready = f"ready: mpt train conf=digits_cnn backend={default['name']}"
    versions = {name: packages[name] for name in NAMED_PACKAGES if name in packages}
    return {
        "exit_code": OK if default["works"] else BAD_DATA,
        "versions": {"mpt": __version__, "python": sys.version.split()[0], **versions},
        "machine": machine,
        "backends": backends,
        "missing": _missing_packages(machine, backends[0]),
        "result": ready if default["works"] else "NOT ready: see above",
    }


def probe_backend(backend: str) -> JsonObject:
    """Examine a backend in a process of its own: one can hold only one backend, and a broken installation may bring it
    down. `works` is False with an `error` where there was no answer."""
    if importlib.util.find_spec(backend) is None:
        return {"installed": False, "works": False, "error": "not installed"}
    variables = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        found = helper_object(module_command("mpt_cli.doctor"), PROBE_SECONDS, variables)
    except NoAnswer as error:
        return {"installed": True, "works": False, "error": str(error)}
    return {"installed": True, "works": True, **found}


def _find_devices() -> JsonObject:
    """Compute a layer in this process and return its devices; imports Keras."""
    import keras

    keras.layers.Dense(4, dtype="mixed_float16")(keras.ops.ones((2, 3)))
    return {"devices": [name.lower() for name in keras.distribution.list_devices()]}


def _missing_packages(machine: JsonObject, default: JsonObject) -> list[dict[str, str]]:
    missing = [
        {"name": name, "purpose": purpose, "install": install_command(extra)}
        for name, (purpose, extra) in OPTIONAL_PACKAGES.items()
        if importlib.util.find_spec(name) is None
    ]
    if machine["gpus"] and default["works"] and not any("gpu" in device for device in default["devices"]):
        cuda = {"name": "CUDA libraries", "purpose": "the GPU of this machine", "install": install_command("cuda")}
        missing.append(cuda)
    return missing


def doctor_report_rows(report: JsonObject) -> Rows:
    """Return the whole report as label and text."""
    machine = report["machine"]
    cores = f"{machine['usable_cores']} of {machine['cpu_cores']} cores"
    gpus = [f"{gpu['name']}, {gpu['memory']}, driver {gpu['driver']}" for gpu in machine["gpus"]]
    return [
        ("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items())),
        ("system", machine["os"]),
        ("CPU", f"{machine['cpu']}, {cores}, {format_bytes(machine['memory_bytes'])}"),
        *[("GPU", gpu) for gpu in gpus or ["none that nvidia-smi knows"]],
        *[
            (each["name"], f"works on {', '.join(each['devices'])}" if each["works"] else each["error"])
            for each in report["backends"]
        ],
        *[("missing", "{name}, for {purpose}: {install}".format_map(each)) for each in report["missing"]],
        ("result", report["result"]),
    ]


if __name__ == "__main__":
    print(json.dumps(_find_devices()))
