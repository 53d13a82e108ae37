"""One process of `benchmarks.growth`: how long a step takes at one size after the other.

`python -m benchmarks.growing.points TASK`; prints a JSON object per size as soon as it is measured, so that what was
measured before the time was up is kept. The policy is float32 with dynamic loss scaling: the same checks and records as
under mixed_float16, which many CPUs only emulate.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt_cli.settings.load import load_settings

if TYPE_CHECKING:
    from benchmarks.contenders import Cell, Turn

STEPS, VARIABLES_STEPS = 64, 320  # per epoch; the end of an epoch costs a small model as much as many steps
FEATURES, MAPPED_FEATURES, MAPPED_BATCH = 64, 1024, 256
COMMON = (
    "conf=digits_mlp",
    "policy=float32",
    "loss_scale.mode=dynamic",
    "data.validation_fraction=0",
    "optimizer=sgd",
    "optimizer.learning_rate=1e-3",
    "optimizer.schedule.name=constant",
    "optimizer.schedule.warmup_steps=0",
    "trainer.deterministic=false",
    "trainer.checkpoint_every_minutes=null",
    "trainer.save_model=false",
    "trainer.gradient_health_every_steps=null",
    "logger.console=quiet",
    "trainer.epochs=1000000",  # jit_compile as a long run has it
)


def _synthetic(features: int, batch: int, steps: int = STEPS) -> list[str]:
    return [
        "data=synthetic",
        f"data.input_shape=[{features}]",
        f"data.examples={batch * steps}",
        "data.num_classes=10",
        f"trainer.batch_size={batch}",
    ]


def words_model_size(value: float, folder: str) -> list[str]:
    return [*_synthetic(FEATURES, 64), f"model.hidden_units=[{value:.0f},{value:.0f}]"]


def words_batch_size(value: float, folder: str) -> list[str]:
    return [*_synthetic(FEATURES, int(value)), "model.hidden_units=[256,256]"]


def words_variables(value: float, folder: str) -> list[str]:
    builder = "model.builder=benchmarks.growing.many:many_variables"
    return [*_synthetic(16, 16, VARIABLES_STEPS), "model=builder", builder, f"model.kwargs={{count: {value:.0f}}}"]


def words_data_size(value: float, folder: str) -> list[str]:
    """`value` in GiB, written first."""
    from benchmarks.growing.mapped import write_data

    write_data(folder, max(MAPPED_BATCH * 4, int(value * 2**30 / (4 * MAPPED_FEATURES))), MAPPED_FEATURES)
    return [
        "data=loader",
        "data.loader=benchmarks.growing.mapped:memory_mapped",
        f"data.kwargs={{folder: {folder}}}",
        "trainer.feed=stream",
        f"trainer.batch_size={MAPPED_BATCH}",
        "model.hidden_units=[64]",
    ]


WORDS: dict[str, Callable[[float, str], list[str]]] = {
    "model size": words_model_size,
    "batch size": words_batch_size,
    "data size": words_data_size,
    "variables": words_variables,
}


def measure(task: dict[str, Any], value: float, folder: Path) -> dict[str, Any]:
    """mpt's step with full telemetry; of `variables` also that of Keras's own train_step without scaling."""
    backend, jit = task["backend"], task["jit"]
    settings = load_settings(
        [*COMMON, *WORDS[task["section"]](value, str(folder)), f"backend={backend}", f"trainer.jit_compile={jit}"]
    )
    from mpt_cli.engine.backend import prepare_backend

    platform = prepare_backend(settings)
    from benchmarks.contenders import Cell, file_telemetry, mpt_turn, plain_turn
    from mpt_cli.data.sources import load_data

    started = time.perf_counter()
    cell = Cell(settings, platform, load_data(settings.data, 0), folder)
    loaded = time.perf_counter() - started
    telemetry = file_telemetry(cell)
    point = {"value": value, "load_seconds": loaded, **timed(mpt_turn(cell, telemetry), cell)}
    telemetry.close()
    point["anonymous_bytes"] = anonymous_bytes()
    if task["section"] == "variables":
        plain = timed(plain_turn(cell, xla=jit != "false"), cell)
        point |= {
            "plain_step_seconds": plain["step_seconds"],
            "plain_compile_seconds": plain["compile_seconds"],
            "over_plain": point["step_seconds"] / plain["step_seconds"],
        }
    return point


def timed(turn: "Turn", cell: "Cell") -> dict[str, Any]:
    """Median seconds per step of three turns, after the first epoch, which compiles, and another."""
    compiling = turn(1)
    epochs = max(1, round(0.2 / turn(1)))
    seconds = [turn(epochs) / (epochs * cell.steps) for _ in range(3)]
    return {"step_seconds": statistics.median(seconds), "compile_seconds": compiling}


def anonymous_bytes() -> int | None:
    """Memory of this process that is not a file's, which is what memory-mapped data must not add to."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), None)


def main() -> None:
    task = json.loads(sys.argv[1])
    for value in task["values"]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(task, value, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
