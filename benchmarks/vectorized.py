"""What `mpt sweep --vectorize` saves: short jobs of initial scales by one program in one process, and one by one, each
in a Python of its own and each forked from a process that holds Keras.

    python -m benchmarks.vectorized [--jobs 24] [--quick]

Each job takes 50 steps of digits_mlp on JAX; the compile cache is one that was filled before. Wall and CPU seconds of
the whole sweeps, one after the other, with one job at a time; the ratio is to those that are fresh. Writes
results/vectorized.json; `--quick` runs three jobs and writes nothing.
"""

import argparse
import json
import os
import platform
import resource
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.sweep import ROOT, sweep
from mpt_cli.machine import cpu_model

RESULTS = ROOT / "benchmarks" / "results" / "vectorized.json"
TARGET = 0.1


def cpu_seconds() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, jobs: int) -> dict[str, Any]:
    words = ["backend=jax", "trainer.max_steps=50", f"backend.compile_cache={folder / 'cache'}"]
    sweep(folder, "first", [*words, "seed=0"], 1)
    scales = ",".join(f"2**{8 + number}" for number in range(jobs))
    found: dict[str, Any] = {"jobs": jobs, "steps": 50}
    kinds = {"fresh": ["--fresh-processes"], "forked": [], "vectorized": ["--vectorize", str(jobs)]}
    for name, more in kinds.items():
        before = cpu_seconds()
        seconds, results = sweep(folder, name, [*words, f"loss_scale.initial_scale={scales}", *more], 1)
        assert len(results["jobs"]) == jobs
        found[name] = {"seconds": seconds, "cpu_seconds": cpu_seconds() - before}
    pairs = [(found["vectorized"][kind], found["fresh"][kind]) for kind in ("seconds", "cpu_seconds")]
    found["ratio"], found["cpu_ratio"] = (mine / alone for mine, alone in pairs)
    return {**found, "target": TARGET}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), 3 if words.quick else words.jobs)
    verdict = f"target {TARGET} {'met' if found['ratio'] <= TARGET else 'MISSED'}"
    for name in ("fresh", "forked", "vectorized"):
        print(f"{name:<11} {found[name]['seconds']:7.1f} s, {found[name]['cpu_seconds']:7.1f} CPU seconds")
    print(f"{found['jobs']} jobs: {found['ratio']:.3f} of the time, {found['cpu_ratio']:.3f} of the CPU time", verdict)
    if not words.quick:
        about = {"date": datetime.now(UTC).date().isoformat(), "cpu": cpu_model(),
                 "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}  # fmt: skip
        RESULTS.write_text(json.dumps({**about, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
