"""environment.json: everything outside the configuration that a run's result may depend on, and the differences between
two of them.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError
from mpt_cli.files import JsonObject
from mpt_cli.machine import machine_facts
from mpt_cli.runs.directory import RunDirectory, read_json
from mpt_cli.telemetry.record_types import field_problem
from mpt_cli.version import __version__

GIT_SECONDS = 5.0  # a run must not wait for a slow file system
DIFF = (
    *("-c", "core.quotePath=false", "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary"),
    *("--ignore-submodules=dirty", "--src-prefix=a/", "--dst-prefix=b/"),
)


def git_state(folder: Path) -> JsonObject | None:
    """Return the commit, whether tracked files differ from it, and those that do, each with a hash of its difference.

    None without git or a checkout.

    Untracked files are not part of it. `modified` is None where git took too long to tell.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(folder, *DIFF)
    modified = None if diff is None else bool(diff)
    changes = {  # each difference begins with `a/FILE b/FILE`
        each.partition(b"\n")[0].rpartition(b" b/")[2].decode(errors="replace"): hashlib.sha256(each).hexdigest()[:12]
        for each in re.split(rb"^diff --git ", diff or b"", flags=re.MULTILINE)[1:]
    }
    return {"commit": commit.decode().strip(), "modified": modified, "changes": changes}


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return what git prints; None where it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


NAMED_PACKAGES = ("tensorflow", "keras", "jax", "jaxlib", "numpy", "hydra-core", "omegaconf", "rich", "scikit-learn")
# Only names that change a computation. No bare TF_ prefix: TF_VAR_… and TF_TOKEN_… are another program's secrets.
RECORDED_VARIABLES = re.compile(
    r"KERAS_BACKEND|XLA_FLAGS|XLA_PYTHON_CLIENT_\w+|CUDA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|(OMP|OPENBLAS)_NUM_THREADS|NPROC"
    r"|JAX_(PLATFORMS|ENABLE_X64|DEFAULT_MATMUL_PRECISION|DISABLE_JIT)"
    r"|TF_(CPP|CUDNN|CUBLAS|XLA|ENABLE|DISABLE|DETERMINISTIC|FORCE|FP16|GPU|NUM|USE)_\w+|PYTHONHASHSEED"
)


def collect_environment(facts: JsonObject, command_line: Sequence[str] | None = None) -> JsonObject:
    """Return the content of environment.json: `facts` are what only the run knows, from the framework it has imported.

    `command_line` defaults to that of this process.
    """
    packages = installed_packages()
    return {
        "mpt": __version__,
        "python": sys.version.split()[0],
        "versions": {name: packages[name] for name in NAMED_PACKAGES if name in packages},
        **facts,
        "command_line": list(sys.argv if command_line is None else command_line),
        "working_directory": str(Path.cwd()),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": {"working_directory": git_state(Path.cwd())},
        "machine": machine_facts(),
        "cluster": cluster_job(os.environ),
        "variables": recorded_variables(os.environ),
        "packages": packages,
    }


def cluster_job(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return Slurm's job number and node of this process; None outside of a job.

    >>> cluster_job({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"})
    {'job_id': '7_1', 'node': ''}
    """
    job, array, task, node = (
        environment.get(f"SLURM{name}", "") for name in ("_JOB_ID", "_ARRAY_JOB_ID", "_ARRAY_TASK_ID", "D_NODENAME")
    )
    return {"job_id": f"{array}_{task}" if array else job, "node": node} if job else None


@cache
def installed_packages() -> dict[str, str]:
    """Return every distribution of this interpreter and its version, as pip would list them.

    Read once: a search, or a script with many fits, has many runs in a process.
    """
    each = (item.metadata for item in metadata.distributions())
    return dict(sorted((str(about["Name"]).lower().replace("_", "-"), str(about["Version"])) for about in each))


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the list above, and no others: an environment may hold secrets."""
    return {name: value for name, value in sorted(environment.items()) if RECORDED_VARIABLES.fullmatch(name)}


_EXPLAINING = (
    "mpt",
    "python",
    "packages",
    "keras",
    "backend",
    "jit_compile",
    "policy",
    "distribute",
    "devices",
    "seed",
    "dataset_fingerprint",
    "git",
    "variables",
)
_OF_THREADS = re.compile(r"(OMP|OPENBLAS)_NUM_THREADS|NPROC|TF_NUM_\w+_THREADS")
_OF_THE_MACHINE = ("os", "cpu", "usable_cores", "gpus")


def environment_differences(before: JsonObject, now: JsonObject) -> list[str]:
    """Return a line for each fact that has changed, those that explain most first.

    >>> environment_differences({"packages": {"keras": "3.12"}}, {"packages": {"keras": "3.15"}})
    ['packages.keras: 3.12 -> 3.15']
    """
    old, new = _facts_that_explain(before), _facts_that_explain(now)
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return [f"{name}: {_format_fact(old.get(name))} -> {_format_fact(new.get(name))}" for name in names]


def code_differences(before: JsonObject, now: JsonObject) -> list[str]:
    """Return the `environment_differences` in code, as far as git tracks its files; none without an old environment.

    >>> code_differences({"mpt": "0.1", "seed": 1}, {"mpt": "0.2", "seed": 2})
    ['mpt: 0.1 -> 0.2']
    """
    of_code = ("mpt", "python", "packages", "git")
    return [line for line in environment_differences(before, now) if before and line.startswith(of_code)]


def thread_variables(environment: JsonObject) -> dict[str, str]:
    """Return the variables that set how many threads a run had: sums depend on it.

    >>> thread_variables({"variables": {"KERAS_BACKEND": "jax", "TF_NUM_INTRAOP_THREADS": "1"}})
    {'TF_NUM_INTRAOP_THREADS': '1'}
    """
    variables = environment.get("variables") or {}
    return {name: value for name, value in variables.items() if _OF_THREADS.fullmatch(name)}


def recorded_cores(environment: JsonObject) -> int | None:
    """Return how many cores a run on the CPU had: JAX starts a thread for each, whatever variables say.

    None if that is unknown, and for a run on another device.

    >>> recorded_cores({"devices": ["CPU"], "machine": {"usable_cores": 1}}), recorded_cores({"devices": ["GPU"]})
    (1, None)
    """
    cores = (environment.get("machine") or {}).get("usable_cores")
    on_cpu = all(str(device).upper().startswith("CPU") for device in environment.get("devices") or [""])
    return cores if on_cpu and type(cores) is int and cores > 0 else None


ENVIRONMENT: dict[str, Any] = {  # the types of what is read of environment.json
    "versions": dict[str, str],
    "machine": JsonObject,
    "devices": list[str],
    "variables": JsonObject | None,
    "examples": dict[str, int | None],
    "git": dict[str, JsonObject | None] | None,
    "attempts": list[JsonObject],
    "seed": int | None,
    "command_line": list[str] | None,
    "started_at": str,
    "not_recorded": list[str],
    "keras": JsonObject,
}


ATTEMPT: dict[str, Any] = {  # and of what is read of each of the attempts in it
    "from_step": int,
    "earlier_seconds": float,
}


def known_environment(run: RunDirectory) -> JsonObject:
    """Return the content of environment.json; empty where it is missing or damaged."""
    try:
        found = read_json(run.environment_json, ENVIRONMENT)
    except DataError:
        return {}
    return {} if any(field_problem(ATTEMPT, attempt) for attempt in found.get("attempts", [])) else found


def _facts_that_explain(environment: JsonObject) -> JsonObject:
    machine = environment.get("machine") or {}
    facts = {name: environment[name] for name in _EXPLAINING if name in environment}
    return flatten({**facts, "machine": {name: machine[name] for name in _OF_THE_MACHINE if name in machine}})


def flatten(tree: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Return every leaf by its dotted key; an empty mapping has none.

    >>> flatten({"seed": 1, "policy": {"name": "float32"}})
    {'seed': 1, 'policy.name': 'float32'}
    """
    flat: JsonObject = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _format_fact(value: Any) -> str:
    if value is None:
        return "none"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
