"""Mixed precision on a GPU: speed, memory, what scaling and telemetry cost, and whether the numbers are right.

    python -m benchmarks.gpu [--backend jax,tensorflow] [--models resnet50] [--policies float32] [--minutes 8]
    python -m benchmarks.gpu policy.head=null trainer.deterministic=true    # more words for mpt, in every cell
    python -m benchmarks.gpu --dry-run                                      # tiny sizes on the CPU, writes nothing

ResNet-50 and a GPT-2-small-sized transformer on synthetic input, as `mpt train` runs them: a process per backend,
model and policy. Needs a GPU, Keras and one backend.
Each cell is written into gpu.json and gpu.md as it is done (`--results DIR`, by default benchmarks/results), so that a
run that is cut short keeps what it has; what `--minutes` has no room for is left out and said.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine
from benchmarks.on_gpu.checks import check_dtypes, check_runs
from benchmarks.on_gpu.children import ROOT, Deadline, run_child
from benchmarks.on_gpu.plan import FULL, POLICIES, SCALINGS, TINY
from benchmarks.on_gpu.report import add_shares, judge, markdown
from mpt_cli.machine import machine_facts

CHECK_MINUTES = 2.0  # kept back for the checks
NAMES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "keras", "tensorflow")
NOTES = [
    "A step is timed over whole epochs of mpt's own training loop: data on the device, the loss scale, records, "
    "telemetry files and epoch ends; median of 3 rounds in which the contenders of a process take turns. Kernels need "
    "not be deterministic (`trainer.deterministic=false`), the learning rate is constant, and gradients are not "
    "sampled for underflow (by default two more passes every 2000 steps, about 0.1 %). Plain Keras is Keras's own "
    "train_step in a compiled loop on the device, without scaling, checks or records; Keras fit is `Model.fit` over "
    "NumPy arrays with Adam and Keras's LossScaleOptimizer, its set-up left out.",
    "Share of peak: model FLOPs (multiply-adds of the model's own layers x 2 x 3 for training, attention over the "
    "full square, nothing for what is computed twice) over the data sheet's dense peak: 16 bit, or TF32 where float32 "
    "products are seen to use it. The head computes in float32, as by default; `policy.head=null` puts it into 16 "
    "bit. Peak memory is that of the first contender of its process, without the others.",
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    installed = [name for name in ("jax", "tensorflow") if importlib.util.find_spec(name)]
    parser.add_argument("--backend", default=",".join(installed[:1]), help="default: jax where it is installed")
    parser.add_argument("--models", default=",".join(FULL))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--batch-size", type=int, help="for every model, instead of 16 and 256")
    parser.add_argument("--turn-seconds", type=float, default=1.5, help="of each contender in each of 3 rounds")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("words", nargs="*", help="key=value words for mpt, in every cell")
    return parser.parse_args()


def tasks(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """A task per process, the most telling ones first."""
    models = TINY if chosen.dry_run else FULL
    if chosen.batch_size:
        models = {name: replace(model, batch_size=chosen.batch_size) for name, model in models.items()}
    device = ["backend.device=cpu"] if chosen.dry_run else ["backend.device=gpu"]
    wanted = [
        (b, m, p)
        for b in chosen.backend.split(",")
        for m in chosen.models.split(",")
        for p in POLICIES
        if p in chosen.policies.split(",")
    ]
    made = [models[model].task(backend, policy) for backend, model, policy in wanted]
    seconds = 0.0 if chosen.dry_run else chosen.turn_seconds
    return [{**task, "words": [*task["words"], *device, *chosen.words], "turn_seconds": seconds} for task in made]


def new_report(chosen: argparse.Namespace) -> dict[str, Any]:
    gpus = machine_facts()["gpus"]
    return {
        **machine(NAMES),
        "device": gpus[0]["name"] if gpus else "no NVIDIA GPU",
        "driver": gpus[0]["driver"] if gpus else "none",
        "backends": chosen.backend.split(","),
        "models": chosen.models.split(","),
        "words": chosen.words,
        "sizes": {},
        "tf32": {},
        "rows": [],
        "checks": [],
        "notes": NOTES,
    }


def add_cell(report: dict[str, Any], task: dict[str, Any], found: dict[str, Any]) -> None:
    names = {key: task[key] for key in ("backend", "model", "policy")}
    if "error" in found:
        report["rows"].append({**names, "scaling": SCALINGS[task["policy"]][0], "error": found["error"]})
        return
    report["device"] = found["device"]
    report["sizes"][task["model"]] = (
        f"batch {found['batch_size']}, {found['parameters']:,} parameters, "
        f"{found['training_flops_per_example'] / 1e9:.4g} GFLOP per example, {found['steps_per_epoch']} steps per epoch"
    )
    report["rows"] += found["rows"]


def finish(report: dict[str, Any], chosen: argparse.Namespace) -> None:
    """Judge what there is so far, and write it."""
    add_shares(report)
    report["targets"] = judge(report)
    if chosen.dry_run:
        return
    chosen.results.mkdir(parents=True, exist_ok=True)
    (chosen.results / "gpu.json").write_text(json.dumps(report, indent=2) + "\n")
    (chosen.results / "gpu.md").write_text(markdown(report))


def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    report, checks_end = new_report(chosen), Deadline(60 * chosen.minutes)
    deadline = Deadline(60 * max(chosen.minutes - (0.0 if chosen.no_checks else CHECK_MINUTES), 0.5))
    for backend in report["backends"]:
        row, report["tf32"][backend] = check_dtypes(backend, folder, deadline)
        report["checks"].append(row)
    together = 2 if chosen.dry_run else 1  # nothing else may run on the device while it is timed
    planned = tasks(chosen)
    with ThreadPoolExecutor(together) as pool:
        results = pool.map(lambda task: run_child("benchmarks.on_gpu.cell", task, deadline), planned)
        for task, found in zip(planned, results, strict=True):
            add_cell(report, task, found)
            print(*(task[key] for key in ("backend", "model", "policy")), found.get("error", "done"), file=sys.stderr)
            finish(report, chosen)
    for backend in [] if chosen.no_checks else report["backends"]:
        report["checks"] += check_runs(backend, folder, checks_end, 2 if chosen.dry_run else 4)
    finish(report, chosen)
    return report


def main() -> int:
    chosen = arguments()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(chosen, Path(folder))
    print(markdown(report))
    measured = any("error" not in row for row in report["rows"])
    return 0 if measured and all(row["holds"] for row in report["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
