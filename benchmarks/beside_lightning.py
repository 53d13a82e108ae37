"""PyTorch Lightning's part of `benchmarks.speed`: what its process is told, and its steps per second beside mpt's."""

import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed_cell import cell_settings
from mpt_cli.data.load import load_data

PRECISIONS = {"float32": "32-true", "mixed_float16": "16-mixed", "mixed_bfloat16": "bf16-mixed"}
NAMES = ("torch", "lightning", "pytorch_lightning")
PROBE = f"""
import importlib.util, json
from importlib import metadata
print(json.dumps({{name: metadata.version(name) for name in {NAMES} if importlib.util.find_spec(name)}}))
"""


def lightning_versions(python: str) -> dict[str, str]:
    """Versions of torch and Lightning in the environment of this interpreter; empty unless it has both."""
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", PROBE], capture_output=True, check=True).stdout)
    if "lightning" in found:  # which brings pytorch_lightning as well
        found.pop("pytorch_lightning", None)
    return found if "torch" in found and len(found) > 1 else {}


def lightning_task(task: dict[str, Any], parameters: int, path: Path) -> dict[str, Any]:
    """What `lightning_cell` needs for the model of `task`, whose arrays are written to `path`."""
    settings = cell_settings(task, "float32")
    data = load_data(settings.data, 0)
    np.savez(path, x=data.train.x, y=data.train.y)
    return {
        "arrays": str(path), "model": asdict(settings.model), "num_classes": data.num_classes,
        "parameters": parameters, "batch_size": settings.trainer.batch_size,
        "learning_rate": settings.optimizer.learning_rate, "seconds": task["turn_seconds"] * task["repeats"],
        "precisions": {policy: PRECISIONS[policy] for policy in task["policies"]},
    }  # fmt: skip


def add_lightning(row: dict[str, Any], result: dict[str, Any]) -> None:
    """Lightning's figures under the row's policy, and mpt's steps per second over its."""
    found = result if "error" in result else result[row["policy"]]
    row["lightning"] = found
    if "error" not in found and "error" not in row:
        row["over_lightning"] = row["steps_per_second"]["mpt"] / found["steps_per_second"]


def measure_lightning(
    rows: list[dict[str, Any]], task: dict[str, Any], run: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Lightning's figures for the rows of `task`; `run` starts its process. Nothing where Keras could do none."""
    parameters = next((row["parameters"] for row in rows if "error" not in row), None)
    if parameters is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        result = run(lightning_task(task, parameters, Path(folder) / "arrays.npz"))
    for row in rows:
        add_lightning(row, result)
