"""How fast mpt trains beside Keras's own `fit` and the bare compiled loop: `make bench`.

    python -m benchmarks.speed [--repeats 4] [--text FILE] [--backends tensorflow,jax]
        [--models "digits MLP;LSTM"] [--quick | --memory]

Twelve models on two backends, under float32 and mixed_float16, the recipes among them also under mixed_bfloat16; a
process for each, in which the contenders of `contenders` take turns and all have what mpt sets before TensorFlow is
imported: float16 without oneDNN on a CPU where that has no kernels for it. Read the ratios: machines differ, and other
work on this one slows all contenders alike. Writes results/speed.json and results/speed.md, of which one backend, or
some models, alone replace their own rows. `--quick` runs one cell for a moment and writes nothing: it only shows that
the script works. `--memory` measures only the memory of the rows that results/speed.json has.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from benchmarks.on_gpu.children import Deadline, run_child
from benchmarks.speed_cell import MODELS, RECIPES
from benchmarks.speed_table import judge, table

RESULTS = Path(__file__).parent / "results"
BACKENDS = ["tensorflow", "jax"]
POLICIES = ["float32", "mixed_float16", "mixed_bfloat16"]  # the last one of recipes only
CONTENDERS = ["fit", "bare loop"]  # beside mpt
CHILD_SECONDS = 600.0


def child(task: dict[str, Any]) -> dict[str, Any]:
    """The result of one process, or why there is none."""
    return run_child("benchmarks.speed_cell", task, Deadline(CHILD_SECONDS))


def measure_speed(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per backend, model and policy."""
    rows: list[dict[str, Any]] = []
    for task in tasks:
        started = time.monotonic()
        rows += task_rows(task)
        print(f"{task['backend']}, {task['model']}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return rows


def task_rows(task: dict[str, Any]) -> list[dict[str, Any]]:
    names = {"backend": task["backend"], "model": task["model"]}
    rows = []
    for policy in task["policies"]:
        result = child({**task, "policies": [policy]})
        rows.append({**names, "policy": policy, **(result if "error" in result else result[policy])})
    return rows


def measure_memory(rows: list[dict[str, Any]]) -> None:
    """Peak memory of mpt, of fit and of fit that XLA compiles, each alone in its process, under the second policy or
    the first that works. On JAX the last two are the same."""
    first = {(row["backend"], row["model"]): row for row in reversed(rows) if "error" not in row}
    first |= {(r["backend"], r["model"]): r for r in rows if "error" not in r and r["policy"] == "mixed_float16"}
    tasks = [
        {"backend": row["backend"], "model": row["model"], "policies": [row["policy"]], "memory": name}
        for row in first.values()
        for name in peaks_of(row)
    ]
    with ThreadPoolExecutor(2) as pool:
        results = iter(list(pool.map(child, tasks)))
    for row in first.values():
        note_peaks(row, {name: next(results) for name in peaks_of(row)})


def peaks_of(row: dict[str, Any]) -> tuple[str, ...]:
    return ("mpt", "fit", "fit, XLA") if row["backend"] == "tensorflow" else ("mpt", "fit")


def note_peaks(row: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
    errors = [result["error"] for name, result in found.items() if "error" in result and name != "fit, XLA"]
    if errors:
        row["memory_error"] = errors[0]
        return
    peaks = {name: result["peak_bytes"] for name, result in found.items() if "error" not in result}
    row["peak_bytes"] = peaks
    row["memory_over_fit"] = peaks["mpt"] / peaks["fit"]
    row.pop("memory_over_fit_with_xla", None)
    if "fit, XLA" in peaks:
        row["memory_over_fit_with_xla"] = peaks["mpt"] / peaks["fit, XLA"]


def plan(backends: list[str], models: list[str], repeats: int, text: str | None) -> list[dict[str, Any]]:
    common = {"contenders": CONTENDERS, "turn_seconds": 0.4, "repeats": repeats, "text": text}
    asked = {model: POLICIES if model in RECIPES else POLICIES[:2] for model in models}
    return [
        {"backend": backend, "model": model, "policies": policies, **common}
        for backend in backends
        for model, policies in asked.items()
    ]


def quick_plan() -> list[dict[str, Any]]:
    task = plan(["jax"], ["digits MLP"], 1, None)[0]
    return [{**task, "policies": ["mixed_float16"], "turn_seconds": 0.0}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--text", help="text for the transformer instead of the source of Python's standard library")
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--models", default=";".join(MODELS), help="some of them, between semicolons")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", action="store_true")
    words = parser.parse_args()
    if unknown := {*words.models.split(";")} - {*MODELS}:
        parser.error(f"there is no model {', '.join(sorted(unknown))}, but {', '.join(MODELS)}")
    if words.memory:
        measure_memory_again(words.models.split(";"))
        return
    load_before = os.getloadavg()[0]
    backends = words.backends.split(",")
    tasks = quick_plan() if words.quick else plan(backends, words.models.split(";"), words.repeats, words.text)
    rows = measure_speed(tasks)
    if not words.quick:
        measure_memory(rows)
    for row in rows:
        row["targets"] = judge(row)
    load = {backend: {"before": load_before, "after": os.getloadavg()[0]} for backend in backends}
    report = {**machine(), "load_average": load, "cells": rows}
    if not words.quick:
        report = with_other_backends(report)
        write(report)
    print(table(report))


def measure_memory_again(models: list[str]) -> None:
    report = json.loads((RESULTS / "speed.json").read_text())
    rows = [row for row in report["cells"] if row["model"] in models]
    measure_memory(rows)
    for row in rows:
        row["targets"] = judge(row)
    write(report)
    print(table(report))


def with_other_backends(report: dict[str, Any]) -> dict[str, Any]:
    """`report` with the rows that the file has of backends and models which were not measured now."""
    file = RESULTS / "speed.json"
    before = json.loads(file.read_text()) if file.exists() else {"cells": [], "load_average": {}}
    loads = {**before["load_average"], **report["load_average"]}
    names = list(MODELS)
    now = {(row["backend"], row["model"]) for row in report["cells"]}
    rows = [row for row in before["cells"] if (row["backend"], row["model"]) not in now and row["model"] in names]
    rows = sorted(rows + report["cells"], key=lambda row: (BACKENDS.index(row["backend"]), names.index(row["model"])))
    return {**report, "load_average": loads, "cells": rows}


def write(report: dict[str, Any]) -> None:
    (RESULTS / "speed.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "speed.md").write_text(table(report) + "\n")


if __name__ == "__main__":
    main()
