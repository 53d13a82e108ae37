"""environment.json: everything outside the configuration that a run's result may depend on."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import mpt_cli
from mpt_cli.runs.git import git_state
from mpt_cli.runs.machine import machine_facts

NAMED_PACKAGES = ("tensorflow", "keras", "jax", "jaxlib", "numpy", "hydra-core", "omegaconf", "rich", "scikit-learn")
# Only names that change a computation. No bare TF_ prefix: TF_VAR_… and TF_TOKEN_… are another program's secrets.
RECORDED_VARIABLES = re.compile(
    r"KERAS_BACKEND|XLA_FLAGS|XLA_PYTHON_CLIENT_\w+|CUDA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|OMP_NUM_THREADS"
    r"|JAX_(PLATFORMS|ENABLE_X64|DEFAULT_MATMUL_PRECISION|DISABLE_JIT)"
    r"|TF_(CPP|CUDNN|CUBLAS|XLA|ENABLE|DISABLE|DETERMINISTIC|FORCE|FP16|GPU|NUM|USE)_\w+|PYTHONHASHSEED"
)


@dataclass(frozen=True)
class RunFacts:
    """What only the run itself knows, from the framework it has imported by now."""

    backend: str
    jit_compile: bool | str
    devices: Sequence[str]
    seed: int
    dataset_fingerprint: str
    policy: str = ""
    distribute: str = "none"


def collect_environment(facts: RunFacts, command_line: Sequence[str] | None = None) -> dict[str, Any]:
    """The content of environment.json; `command_line` is by default that of this process."""
    packages = installed_packages()
    return {
        "mpt": mpt_cli.__version__,
        "python": sys.version.split()[0],
        "versions": {name: packages[name] for name in NAMED_PACKAGES if name in packages},
        "backend": facts.backend,
        "jit_compile": facts.jit_compile,
        "policy": facts.policy,
        "distribute": facts.distribute,
        "devices": list(facts.devices),
        "seed": facts.seed,
        "dataset_fingerprint": facts.dataset_fingerprint,
        "command_line": list(sys.argv if command_line is None else command_line),
        "working_directory": str(Path.cwd()),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": {"working_directory": git_state(Path.cwd()), "mpt": git_state(Path(mpt_cli.__file__).parent)},
        "machine": machine_facts(),
        "variables": recorded_variables(os.environ),
        "packages": packages,
    }


def installed_packages() -> dict[str, str]:
    """Every distribution of this interpreter and its version, as pip would list them."""
    found = {str(item.metadata["Name"]).lower().replace("_", "-"): item.version for item in metadata.distributions()}
    return dict(sorted(found.items()))


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables on the list above, and no others: an environment may hold secrets."""
    return {name: value for name, value in sorted(environment.items()) if RECORDED_VARIABLES.fullmatch(name)}
