"""How long the first step takes, beside Keras's own, over the depth, the width and the number of variables of a model.

    python -m benchmarks.compile_time [--backends tensorflow,jax] [--sections depth,width,variables] [--seconds 170]
    python -m benchmarks.compile_time --quick      # two cells, writes nothing

A process per cell, without a cache of compiled programs: `mpt`'s first call into its compiled loop (one step, float32
with dynamic loss scaling, all records) and Keras's first `train_on_batch` with the same setting of `jit_compile`. It
holds the CPU seconds of the call (user + system of all threads, so that other work matters little), wall seconds,
operations in the traced step and the CPU seconds of a later step. A cell that takes longer than `--seconds` is said to.
Writes results/compile_time.json and compile_time.md; rows that were not measured now stay.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.growing.fits import end_exponent
from benchmarks.growth import machine
from benchmarks.on_gpu.children import Deadline, run_child

RESULTS = Path(__file__).parent / "results" / "compile_time.json"
TARGET, BATCH, LATER_STEPS = 1.5, 64, 10
DEPTHS = [8, 24, 40, 80, 200]
KINDS: dict[str, tuple[str, list[int], dict[str, Any]]] = {  # model, shape of an example, other arguments
    "residual MLP": ("residual_mlp", [64], {}),
    "transformer": ("transformer", [16, 32], {}),
    "ResNet": ("resnet", [16, 16, 3], {}),
}
WIDTHS = [64, 256, 1024]
VARIABLES = [10, 100, 1000, 5000]
SETTINGS = {"tensorflow": ("XLA", "no XLA"), "jax": ("XLA",)}
COMMON = (
    "conf=digits_mlp", "model=builder", "data=synthetic", f"trainer.batch_size={BATCH}", "data.validation_fraction=0",
    f"data.examples={BATCH * 4}", "optimizer=adam", "optimizer.learning_rate=1e-3", "loss_scale.mode=dynamic",
    "optimizer.schedule.name=constant", "optimizer.schedule.warmup_steps=0", "trainer.deterministic=false",
    "backend.compile_cache=null", "logger.console=quiet", "trainer.save_model=false",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One measurement: `who` is mpt or keras, `value` the size that its section varies."""

    section: str
    kind: str
    value: int
    backend: str
    setting: str
    who: str

    @property
    def row(self) -> tuple[str, ...]:
        """What its row of the table is called."""
        return self.section, self.kind, self.backend, self.setting

    def model(self) -> tuple[str, list[int], dict[str, Any]]:
        """Builder, shape of an example and arguments."""
        if self.section == "variables":
            return "benchmarks.growing.many:many_variables", [16], {"count": self.value}
        function, shape, arguments = KINDS[self.kind]
        sized = {"depth": self.value} if self.section == "depth" else {"depth": 8, "width": self.value}
        return f"benchmarks.growing.kinds:{function}", shape, {**arguments, **sized}


def all_cells(backends: list[str], sections: list[str]) -> list[Cell]:
    """The small ones first, so that what the time allows is a table from its upper end."""
    sizes = {"depth": (list(KINDS), DEPTHS), "width": (["residual MLP"], WIDTHS), "variables": (["many"], VARIABLES)}
    cells = [
        Cell(section, kind, value, backend, setting, who)
        for section in sections for kind in sizes[section][0] for value in sizes[section][1]
        for backend in backends for setting in SETTINGS[backend] for who in ("keras", "mpt")
    ]  # fmt: skip
    return sorted(cells, key=lambda cell: cell.value)


def measure(cell: Cell) -> dict[str, float]:
    """Build the model and take its first steps, in this process."""
    from mpt_cli.engine.backend import prepare_backend
    from mpt_cli.settings import load_settings

    builder, shape, arguments = cell.model()
    settings = load_settings([
        *COMMON, f"backend={cell.backend}", f"trainer.jit_compile={'true' if cell.setting == 'XLA' else 'false'}",
        f"model.builder={builder}", f"model.kwargs={json.dumps(arguments).replace(chr(34), '')}",
        f"data.input_shape={shape}", "data.num_classes=10",
    ])  # fmt: skip
    platform = prepare_backend(settings)
    from mpt_cli.data.load import load_data

    data = load_data(settings.data, 0)
    return _mpt(settings, platform, data) if cell.who == "mpt" else _keras(settings, data)


def _mpt(settings: Any, platform: Any, data: Any) -> dict[str, float]:
    from mpt_cli.training.assembly import assemble
    from mpt_cli.training.program import SettingsProgram

    parts = assemble(SettingsProgram(settings), platform, data)
    parts.train_feed.start(1)
    piece = parts.train_feed.take(1)
    assert piece is not None
    return _timed(lambda count: parts.engine.train(piece.source, piece.batch_indices, count).wait())


def _keras(settings: Any, data: Any) -> dict[str, float]:
    import keras

    from mpt_cli.training.assembly import build_under_policy

    model = build_under_policy(settings, data)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=settings.trainer.jit_compile,
                  auto_scale_loss=False)  # fmt: skip
    batch = data.train.as_batch()

    def steps(count: int) -> None:
        for _ in range(count):
            model.train_on_batch(batch.x[:BATCH], batch.y[:BATCH])

    return _timed(steps)


def _timed(steps: Any) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    steps(1)
    first = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    cpu = time.process_time()
    steps(LATER_STEPS)
    return {**first, "later_step_seconds": (time.process_time() - cpu) / LATER_STEPS}


def run(cell: Cell, seconds: float) -> dict[str, Any]:
    """The cell with what its process found, or with the reason why it found nothing."""
    found = run_child("benchmarks.compile_time", asdict(cell), Deadline(seconds))
    print(*cell.row, cell.value, cell.who, json.dumps(found), file=sys.stderr, flush=True)
    return {**asdict(cell), **found}


def exponents(cells: list[dict[str, Any]]) -> dict[tuple[str, ...], float | None]:
    """How the CPU seconds of the first step grow with the size, by row and `who`, over the larger sizes."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        if "error" not in cell:
            groups.setdefault((*_row(cell), cell["who"]), []).append(cell)
    return {name: end_exponent(points, "cpu_seconds") for name, points in groups.items()}


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    return cell["section"], cell["kind"], cell["backend"], cell["setting"]


def markdown(cells: list[dict[str, Any]]) -> str:
    """A line per row and size, both contenders side by side, and the exponents after the last size of a row."""
    found = {(*_row(cell), cell["value"], cell["who"]): cell for cell in cells}
    growth = exponents(cells)
    lines = ["| over | model | backend | size | mpt: CPU s | wall s | Keras: CPU s | wall s | ratio | exponents |",
             "|" + "---|" * 10]  # fmt: skip
    sizes: dict[tuple[str, ...], list[int]] = {}
    for cell in cells:
        sizes.setdefault(_row(cell), []).append(cell["value"])
    for row, values in sorted(sizes.items()):
        for value in sorted(set(values)):
            ours, keras = (found.get((*row, value, who), {"error": "not measured"}) for who in ("mpt", "keras"))
            fits = [growth.get((*row, who)) for who in ("mpt", "keras")] if value == max(values) else []
            both = ", ".join(f"{fit:.2f}" for fit in fits if fit is not None)
            backend = f"{row[2]}, {row[3]}"
            lines.append("| " + " | ".join([*row[:2], backend, str(value), *_pair(ours, keras), both]) + " |")
    return "\n".join(lines)


def _pair(ours: dict[str, Any], keras: dict[str, Any]) -> list[str]:
    if "error" in ours or "error" in keras:
        cells = [text for one in (ours, keras) for text in _seconds(one)]
        return [*cells, ""]
    ratio = ours["cpu_seconds"] / keras["cpu_seconds"]
    mark = f"{ratio:.2f}" if ratio <= TARGET else f"**{ratio:.2f}**"
    return [*_seconds(ours), *_seconds(keras), mark]


def _seconds(one: dict[str, Any]) -> list[str]:
    if "error" in one:
        return [one["error"].partition(":")[0], ""]
    return [f"{one['cpu_seconds']:.1f}", f"{one['wall_seconds']:.1f}"]


def with_earlier(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`cells` and those of the file that were not measured now."""
    earlier = json.loads(RESULTS.read_text())["cells"] if RESULTS.exists() else []
    key = lambda cell: (*_row(cell), cell["value"], cell["who"])  # noqa: E731
    now = {key(cell) for cell in cells}
    return sorted([cell for cell in earlier if key(cell) not in now] + cells, key=key)


def write(cells: list[dict[str, Any]]) -> None:
    RESULTS.write_text(json.dumps({**machine(), "cells": cells}, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(markdown(cells) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="tensorflow,jax")
    parser.add_argument("--sections", default="depth,width,variables")
    parser.add_argument("--kinds", default=",".join([*KINDS, "many"]))
    parser.add_argument("--smallest", type=int, default=0, help="leave out smaller ones")
    parser.add_argument("--largest", type=int, default=max(VARIABLES), help="leave out greater depths, widths, counts")
    parser.add_argument("--seconds", type=float, default=170.0, help="for a cell")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(measure(Cell(**json.loads(sys.argv[1])))))
        return
    chosen = arguments()
    cells = [cell for cell in all_cells(chosen.backends.split(","), chosen.sections.split(","))
             if chosen.smallest <= cell.value <= chosen.largest and cell.kind in chosen.kinds.split(",")]  # fmt: skip
    if chosen.quick:
        print(markdown([run(cell, 60.0) for cell in all_cells(["jax"], ["variables"])[:2]]))
        return
    found: list[dict[str, Any]] = []
    for cell in cells:
        found.append(run(cell, chosen.seconds))
        write(with_earlier([found[-1]]))
    print(markdown(found))


if __name__ == "__main__":
    main()
