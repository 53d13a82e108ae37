"""How long mpt takes before it trains: help, a configuration error, and the way to the first step.

    python -m benchmarks.startup [--repeats 5] [--quick]

CPU seconds of whole processes (user + system, so that a busy machine matters little), the least and the median of the
repeats. The way to the first step ends with the first call into the compiled loop (`first_step`), and counts without
what a process takes that only imports the framework; "cold" has an empty cache of compiled programs, "warm" (JAX) one
that a run of the same model has filled. Targets: help 0.35 s, configuration error 0.7 s, first step 2 s
beyond the framework's import. Writes results/startup.json. `--quick` runs one case once and writes nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import children_seconds, machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "startup.json"
MPT = [sys.executable, "-m", "mpt_cli"]
FIRST_STEP = [sys.executable, "-m", "benchmarks.first_step"]
CASES = {
    "mpt --help": ([*MPT, "--help"], 0.35),
    "configuration error": ([*MPT, "train", "conf=digits_cnn", "loss_scale.mode=dinamic", "trainer.epoch=3"], 0.7),
    "import keras, tensorflow": ([sys.executable, "-c", "import keras"], None),
    "import keras, jax": ([sys.executable, "-c", "import keras"], None),
    **{
        f"first step, {recipe}, {cache}, {backend}": ([*FIRST_STEP, f"conf={recipe}", f"backend={backend}"], None)
        for backend in ("tensorflow", "jax")
        for recipe in ("digits_mlp", "digits_cnn")
        for cache in (("cold", "warm") if backend == "jax" else ("cold",))
    },
}
FIRST_STEP_TARGET = 2.0


def cpu_seconds(name: str, folder: str, repeat: int) -> float:
    backend = "jax" if name.endswith("jax") else "tensorflow"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend}
    environment["JAX_COMPILATION_CACHE_DIR"] = cache_folder(name, folder, repeat)
    must_work = name.startswith("first step")
    command = list(CASES[name][0])
    before = children_seconds()
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=must_work)
    return children_seconds() - before


def fill_cache(name: str, folder: str) -> None:
    """By a whole run: what a process wrote that ended in the middle is taken for half a program, and dropped."""
    recipe, _, backend = name.split(", ")[1:]
    words = [f"conf={recipe}", f"backend={backend}", "trainer.max_steps=2", "--quiet"]
    cache = cache_folder(name, folder, 0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": cache}
    subprocess.run([*MPT, "train", *words], cwd=folder, env=environment, capture_output=True, check=True)


def cache_folder(name: str, folder: str, repeat: int) -> str:
    which = f"cold-{repeat}" if "cold" in name else "warm"
    return f"{folder}/{which}-{name.split(', ')[1]}" if name.startswith("first step") else folder


def measure(cases: list[str], repeats: int) -> dict[str, dict[str, float | None]]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for name in cases if "warm" in name]:
            fill_cache(name, folder)
        for repeat in range(repeats):  # all cases alternate, so that a busy minute hits all of them
            for name in cases:
                times[name].append(cpu_seconds(name, folder, repeat))
    rows: dict[str, dict[str, float | None]] = {
        name: {"least": min(t), "median": statistics.median(t), "target": CASES[name][1]} for name, t in times.items()
    }
    for name in [name for name in cases if name.startswith("first step")]:
        imported = times[f"import keras, {name.rpartition(', ')[2]}"]
        beyond = [total - own for total, own in zip(times[name], imported, strict=True)]
        rows[f"{name}, beyond the import"] = {
            "least": min(beyond),
            "median": statistics.median(beyond),
            "target": FIRST_STEP_TARGET,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    quick = ["mpt --help", "import keras, jax", "first step, digits_mlp, cold, jax"]
    results = measure(quick, 1) if words.quick else measure(list(CASES), words.repeats)
    for name, row in results.items():
        verdict = ""
        if row["target"] is not None and row["median"] is not None:
            verdict = f"target {row['target']} {'met' if row['median'] <= row['target'] else 'MISSED'}"
        print(f"{name:<60}{row['median']:7.2f} s median {row['least']:7.2f} s least   {verdict}")
    if words.quick:
        return
    RESULTS.write_text(json.dumps({**machine(), "cpu_seconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
