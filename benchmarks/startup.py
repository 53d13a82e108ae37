"""How long mpt takes before it trains: help, a configuration error, and the way to the first step.

    python benchmarks/startup.py [--repeats 5] [--quick]

CPU seconds of whole processes (user + system, so that a busy machine matters little), the least and the median of the
repeats. The way to the first step is timed inside `mpt train` from its start to the end of the first call into the
compiled loop, beside a process that only imports the framework. Targets: help 0.4 s, configuration error 0.7 s, first
step 2 s beyond the framework's import. Writes benchmarks/results/startup.json.
`--quick` runs one case once and writes nothing.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "startup.json"
MPT = [sys.executable, "-m", "mpt_cli"]
CASES = {
    "mpt --help": ([*MPT, "--help"], 0.4),
    "configuration error": ([*MPT, "train", "conf=digits_cnn", "loss_scale.mode=dinamic", "trainer.epoch=3"], 0.7),
    "mpt list": ([*MPT, "list"], None),
    "mpt show conf=digits_cnn": ([*MPT, "show", "conf=digits_cnn"], None),
    "import keras on tensorflow": ([sys.executable, "-c", "import keras"], None),
    "mpt train, one step, tensorflow": ([*MPT, "train", "conf=digits_mlp", "trainer.max_steps=1"], None),
    "mpt train, one step of the CNN, tensorflow": ([*MPT, "train", "conf=digits_cnn", "trainer.max_steps=1"], None),
}


def cpu_seconds(command: list[str], folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(cases: list[str], repeats: int) -> dict[str, dict[str, float | None]]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):  # all cases alternate, so that a busy minute hits all of them
            for name in cases:
                times[name].append(cpu_seconds(CASES[name][0], folder))
    return {
        name: {"least": min(t), "median": statistics.median(t), "target": CASES[name][1]} for name, t in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    results = measure(["mpt --help"], 1) if words.quick else measure(list(CASES), words.repeats)
    for name, row in results.items():
        verdict = ""
        if row["target"] is not None:
            verdict = f"target {row['target']} {'met' if row['median'] <= row['target'] else 'MISSED'}"
        print(f"{name:<44}{row['median']:7.2f} s median {row['least']:7.2f} s least   {verdict}")
    if words.quick:
        return
    names = ("tensorflow", "keras", "hydra-core", "rich")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({
        "date": datetime.now(UTC).date().isoformat(), "machine": f"{platform.machine()}, {platform.system()}",
        "python": platform.python_version(), "versions": {name: metadata.version(name) for name in names},
        "cpu_seconds": results,
    }, indent=2) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
