"""Which sizes are measured, and the processes that measure them."""

import argparse
import json
import subprocess
import time
from typing import Any

from benchmarks.on_gpu.children import Deadline, OutOfTime, run_python

SECTIONS: dict[str, list[float]] = {
    "model size": [64, 128, 256, 512, 1024, 2048],
    "batch size": [8, 32, 128, 512, 2048],
    "data size": [0.01, 0.03, 0.1, 0.3, 1.0],  # shares of --data-gb
    "variables": [10, 30, 100, 300, 1000, 3000, 5000],
}


def measure_series(section: str, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """A series per backend; over the number of variables also TensorFlow without XLA."""
    series = [(backend, backend, "auto") for backend in chosen.backends.split(",")]
    if section == "variables" and "tensorflow" in chosen.backends:
        series.append(("tensorflow, no XLA", "tensorflow", "false"))
    values = SECTIONS[section][: 2 if chosen.quick else None]
    if section == "data size":
        values = [value * chosen.data_gb for value in values]
    return [
        _measure_one({"section": section, "backend": backend, "jit": jit}, name, values, chosen.seconds)
        for name, backend, jit in series
    ]


def _measure_one(task: dict[str, Any], name: str, values: list[float], seconds: float) -> dict[str, Any]:
    deadline, points, why = Deadline(seconds), [], ""
    groups = [[value] for value in values] if task["section"] == "data size" else [values]  # memory is a process's
    started = time.monotonic()
    for group in groups:
        found, why = _points({**task, "values": group}, deadline)
        points += found
        if why:
            break
    left = [f"{value:g}" for value in values[len(points) :]]
    note = f"not reached: {', '.join(left)} ({why})" if left else "all sizes reached"
    return {"name": name, "points": points, "note": note, "seconds": time.monotonic() - started}


def _points(task: dict[str, Any], deadline: Deadline) -> tuple[list[dict[str, Any]], str]:
    """What a process printed, also before its time was up, and why there is no more."""
    try:
        done = run_python(["-m", "benchmarks.growing.points", json.dumps(task)], deadline)
    except OutOfTime:
        return [], "no time left"
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        return _read(printed.decode() if isinstance(printed, bytes) else printed), "no time left"
    why = (done.stderr.strip().splitlines() or ["ended"])[-1][:200] if done.returncode else ""
    return _read(done.stdout), why


def _read(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
