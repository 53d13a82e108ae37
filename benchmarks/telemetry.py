"""What telemetry costs: the same training with all of it, with none, and read back after every step, in 3 minutes.

    python -m benchmarks.telemetry [--repeats 6] [--quick]

Two models on two backends under mixed_float16, a process each. Prints a table and writes results/telemetry.json.
`--quick` runs one cell for a moment and writes nothing: it only shows that the script works.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

from benchmarks.speed import RESULTS, child, machine
from benchmarks.telemetry_cell import FULL, NAIVE, NONE

MOST_SHARE = 0.01
COLUMNS = ("backend", "model", "steps/s without", "with telemetry", "read back every step", "telemetry's own time",
           "one sample", "samples' share", "within 1%")  # fmt: skip
LEGEND = (
    "Steps per second as multiples of those without telemetry: medians over rounds in which the three take turns. "
    "Telemetry's own time is its share of the seconds, by its own clock, which noise spares; a sample of the gradients "
    "is taken every 2000 steps."
)


def plan(repeats: int) -> list[dict[str, Any]]:
    common = {"policy": "mixed_float16", "turn_seconds": 0.5, "repeats": repeats}
    return [{"backend": backend, "model": model, **common}
            for backend in ("tensorflow", "jax") for model in ("digits MLP", "digits CNN")]  # fmt: skip


def quick_plan() -> list[dict[str, Any]]:
    return [{"backend": "jax", "model": "digits MLP", "policy": "mixed_float16", "turn_seconds": 0.0, "repeats": 1}]


def is_cheap(row: dict[str, Any]) -> bool:
    """Whether lines, events and samples together take at most a hundredth of the time."""
    return bool(row["telemetry_share"] + row["sample_share"] <= MOST_SHARE)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(cells(row) for row in rows)]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), "", LEGEND])


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = row["backend"], row["model"]
    if "error" in row:
        return (*names, f"not possible: {row['error']}", *[""] * (len(COLUMNS) - 3))
    ratio = row["over_none"]
    return (*names, f"{row['steps_per_second'][NONE]:.0f}", f"{ratio[FULL]:.3f}", f"{ratio[NAIVE]:.3f}",
            f"{row['telemetry_share']:.2%}", f"{1000 * row['sample_seconds']:.0f} ms", f"{row['sample_share']:.2%}",
            "yes" if is_cheap(row) else "no")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    load_before, rows = os.getloadavg()[0], []
    for task in quick_plan() if words.quick else plan(words.repeats):
        started = time.monotonic()
        rows.append({"backend": task["backend"], "model": task["model"], **child(task, "benchmarks.telemetry_cell")})
        print(f"{task['backend']}, {task['model']}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(table(rows))
    if not words.quick:
        load = {"before": load_before, "after": os.getloadavg()[0]}
        RESULTS.mkdir(exist_ok=True)
        content = {**machine(), "load_average": load, "cells": rows}
        (RESULTS / "telemetry.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
