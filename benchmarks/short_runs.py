"""How long a short run takes from its first moment to its last: `mpt train` beside a script with plain `fit`.

    python -m benchmarks.short_runs [--backends tensorflow,jax] [--models "LSTM;wide MLP"] [--policy float32]
        [--epochs 1,3] [--repeats 1]
    python -m benchmarks.short_runs --quick        # one model for a moment, writes nothing

Whole processes: import, data, building, compiling, training, saving the model; 8,192 examples in batches of 64 (128
steps an epoch), no validation, no compiled program from an earlier run. Both train the same model on the same numbers;
everything of mpt is at its default but what names the model, data and optimizer. Plain `fit` has what mpt sets before
TensorFlow is imported (no oneDNN in float16 on a CPU where that has no kernels for it). CPU seconds are of the process
(user + system of all threads), so that other work on the machine matters little. Target: at most 1.1 of plain `fit` for
one epoch, less than it from the third on. Writes results/short_runs.json and short_runs.md; rows not measured now stay.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measuring import children_seconds, machine, markdown_table
from benchmarks.on_gpu.children import error_line
from benchmarks.speed_cell import OWN_MODELS, own_model_words
from mpt_cli.engine.backend import import_variables
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import Settings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "short_runs.json"
EXAMPLES, BATCH, SECONDS = 8192, 64, 600
BACKENDS = ("tensorflow", "jax")


def words(model: str, policy: str, backend: str, epochs: int, folder: Path) -> list[str]:
    return [
        *own_model_words(model, examples=EXAMPLES),
        "data.validation_fraction=0",
        f"trainer.epochs={epochs}",
        f"trainer.batch_size={BATCH}",
        f"policy={policy}",
        f"backend={backend}",
        "optimizer=adam",
        "optimizer.learning_rate=1e-3",
        "optimizer.schedule.name=constant",
        "optimizer.schedule.warmup_steps=0",
        f"run_dir={folder}/run",
    ]


def fit(model: str, policy: str, epochs: int, folder: str) -> None:
    """What a user of Keras would write."""
    import keras

    builder, kwargs, loader, given = OWN_MODELS[model]
    here = import_module("benchmarks.speed_models")
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy(policy)
    x, y = getattr(here, loader)(**given, examples=EXAMPLES)
    network = getattr(here, builder)(x.shape[1:], 10, **kwargs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    network.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=2)
    network.save(f"{folder}/model.keras")


def run_process(command: list[str], settings: Settings) -> dict[str, Any]:
    """CPU and wall seconds of a process, or why it has none."""
    own = import_variables(settings, os.environ)
    environment = {
        **os.environ,
        "KERAS_BACKEND": settings.backend.name,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(ROOT),
        **own,
    }
    before, started = children_seconds(), time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {SECONDS} s"}
    if done.returncode:
        return {"error": error_line(done.stderr)}
    return {"cpu": round(children_seconds() - before, 2), "wall": round(time.monotonic() - started, 2)}


def measure_row(model: str, policy: str, backend: str, epochs: int, repeats: int) -> dict[str, Any]:
    """Both in turns; of each the repeat that took least."""
    found: dict[str, list[dict[str, Any]]] = {"mpt": [], "fit": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            task = json.dumps([model, policy, epochs, folder])
            commands = {
                "fit": [sys.executable, "-m", "benchmarks.short_runs", "--fit", task],
                "mpt": [sys.executable, "-m", "mpt_cli", "train", *words(model, policy, backend, epochs, Path(folder))],
            }
            for who, command in commands.items():
                found[who].append(run_process(command, load_settings(commands["mpt"][4:])))
    row: dict[str, Any] = {"backend": backend, "model": model, "policy": policy, "epochs": epochs}
    for who, results in found.items():
        timed = [result for result in results if "error" not in result]
        row[who] = {key: min(r[key] for r in timed) for key in ("cpu", "wall")} if timed else results[0]
    if "error" not in row["mpt"] and "error" not in row["fit"]:
        row["ratio"] = {key: row["mpt"][key] / row["fit"][key] for key in ("cpu", "wall")}
    return row


def is_met(row: dict[str, Any]) -> bool:
    return bool(row["ratio"]["cpu"] <= (1.1 if row["epochs"] < 3 else 1.0))


def table(rows: list[dict[str, Any]]) -> str:
    columns = (
        "model",
        "policy",
        "backend",
        "epochs",
        "mpt: CPU s",
        "wall s",
        "fit: CPU s",
        "wall s",
        "ratio, CPU",
        "ratio, wall",
        "target",
    )
    lines = []
    for row in rows:
        names = row["model"], row["policy"], row["backend"], str(row["epochs"])
        figures = [text for who in ("mpt", "fit") for text in _seconds(row[who])]
        judged = ("", "", "")
        if "ratio" in row:
            judged = (*(f"{row['ratio'][key]:.2f}" for key in ("cpu", "wall")), "met" if is_met(row) else "missed")
        lines.append((*names, *figures, *judged))
    return markdown_table(columns, lines)


def _seconds(one: dict[str, Any]) -> tuple[str, str]:
    if "error" in one:
        return "fails: " + one["error"].replace("|", " "), ""
    return f"{one['cpu']:.1f}", f"{one['wall']:.1f}"


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`rows`, and those of the file that were not measured now."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return list(OWN_MODELS).index(row["model"]), BACKENDS.index(row["backend"]), row["policy"], row["epochs"]

    before = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    return sorted({key(row): row for row in [*before, *rows] if row["model"] in OWN_MODELS}.values(), key=key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--models", default=";".join(OWN_MODELS), help="some of them, between semicolons")
    parser.add_argument("--policy", default="mixed_float16")
    parser.add_argument("--epochs", default="1,3")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fit:
        fit(*json.loads(given.fit))
        return
    if given.quick:
        print(table([measure_row("wide MLP", "float32", "jax", 1, 1)]))
        return
    for model in given.models.split(";"):
        for backend in given.backends.split(","):
            for epochs in map(int, given.epochs.split(",")):
                row = measure_row(model, given.policy, backend, epochs, given.repeats)
                print(table([row]).splitlines()[-1], flush=True)
                rows = merged([row])
                RESULTS.write_text(json.dumps({**machine(), "rows": rows}, indent=1) + "\n")
                RESULTS.with_suffix(".md").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
