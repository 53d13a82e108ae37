"""Where the time of a step goes between the bare compiled loop and mpt: one part after the other is added to the loop.

    python -m benchmarks.step_parts [--rounds 8] [--backends tensorflow,jax] [--policies float32,mixed_float16]
        [--models "digits MLP;wide embedding"]
    python -m benchmarks.step_parts --quick        # one cell for a moment, writes nothing

Without `--models` the cells are those of results/speed.json that miss a target of speed. A process for each cell, in
which these take turns, each with what the one before has:

- bare loop: Keras's own `train_step` and optimizer (its own loss scaling in float16), the fastest loop
- choice: the same in the loop that mpt chooses (with XLA or without; on the host or the device)
- scaling: mpt's optimizer, with a check that says without looking that all gradients are finite
- check: it looks at them: one pass over each gradient
- skip: what is not finite is not applied (float16 alone: without scaling all is applied)
- whole step: mpt's training step: statistics and metrics are left alone in a skipped step too
- engine: in mpt's own loop: batches from the feed, a record of each step, streaks, a look at the weights
- mpt: the whole trainer with all files of telemetry

Figures are CPU seconds of the process (user + system of all threads), since other work on the machine moves those of
the clock more; the clock's are in the last column. Writes results/step_parts.json and step_parts.md; cells that are not
measured now stay.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.growth import machine
from benchmarks.speed import BACKENDS, POLICIES, child
from benchmarks.speed_cell import MODELS, build_cell, warm_up

RESULTS = Path(__file__).parent / "results"
PARTS = ("choice", "scaling", "check", "skip", "whole step", "engine", "mpt")
COLUMNS = ("backend", "model", "policy", "bare loop, CPU ms a step", *PARTS, "mpt over the bare loop", "by the clock")
LEGEND = ("Each part adds that much to the CPU time of a step, in percent of the bare loop's: medians over rounds in "
          "which all take turns, so that parts of 1 to 3 % may be noise. The last two columns are speeds: above 1 mpt "
          "is faster.")  # fmt: skip
Turn = Callable[[int], float]


def measure(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """CPU and clock seconds a step of each turn, in every round."""
    cell = build_cell(task, task["policy"], folder)
    turns = build_turns(cell)
    epochs = {name: warm_up(turn, task["turn_seconds"], cell.steps) for name, turn in turns.items()}
    found: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "clock": []} for name in turns}
    for number in range(task["rounds"]):
        names = list(turns)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            before, steps = time.process_time(), epochs[name] * cell.steps
            seconds = turns[name](epochs[name])
            found[name]["cpu"].append((time.process_time() - before) / steps)
            found[name]["clock"].append(seconds / steps)
    return {"steps_seconds": found}


def build_turns(cell: Any) -> dict[str, Turn]:
    """By name, in the order of `PARTS` behind the bare loop; a part that a policy lacks is left out."""
    from benchmarks.contenders import bare_turn, file_telemetry, keras_model, loop_turn, mpt_turn, prepared
    from mpt_cli.telemetry.sink import Telemetry

    engine_session = prepared(cell, Telemetry([]))
    chosen = chosen_loop(engine_session.trainer.engine)
    model = keras_model(cell)
    scaling = engine_session.assembly.scaling
    skips = {}
    if not scaling.applies_overflows:
        skips["skip"] = loop_turn(cell, wrapped_model(cell, scaling, "skip"), chosen)
    return {
        "bare loop": bare_turn(cell),
        "choice": loop_turn(cell, model, chosen),
        "scaling": loop_turn(cell, wrapped_model(cell, scaling, "apply", looks=False), chosen),
        "check": loop_turn(cell, wrapped_model(cell, scaling, "apply"), chosen),
        **skips,
        "whole step": loop_turn(cell, whole_step_model(cell, scaling), chosen),
        "engine": engine_turn(engine_session),
        "mpt": mpt_turn(cell, file_telemetry(cell)),
    }


def chosen_loop(engine: Any) -> str:
    """The name of mpt's loop among those of `bare_jax` or `bare_tensorflow`."""
    import keras

    if keras.backend.backend() == "tensorflow":
        return "XLA" if engine.jit_compile else "no XLA"
    return "device loop" if engine._loops_on_device else "host loop"


def wrapped_model(cell: Any, scaling: Any, on_overflow: str, looks: bool = True) -> Any:
    """The model of the bare loop with mpt's optimizer, which may say unseen that gradients are finite."""
    import keras

    from benchmarks.contenders import keras_model
    from mpt_cli.precision import LossScaleOptimizer
    from mpt_cli.precision.finite import Measured

    class Unseeing(LossScaleOptimizer):
        def measure(self, *given: Any) -> Measured:
            return Measured(keras.ops.convert_to_tensor(True), keras.ops.convert_to_tensor(1.0))

    kind = LossScaleOptimizer if looks else Unseeing
    optimizer = kind(keras.optimizers.Adam(1e-3), rule=scaling.rule, on_overflow=on_overflow)
    return keras_model(cell, optimizer)


def whole_step_model(cell: Any, scaling: Any) -> Any:
    from mpt_cli.precision.train_step import keep_skips_whole

    return keep_skips_whole(wrapped_model(cell, scaling, "apply" if scaling.applies_overflows else "skip"))


def engine_turn(session: Any) -> Turn:
    """The engine over the feed, without the trainer around it."""
    engine, feed, seen = session.trainer.engine, session.trainer.train_feed, [0]

    def run(epochs: int) -> float:
        started = time.perf_counter()
        for _ in range(epochs):
            seen[0] += 1
            feed.start(seen[0])
            while (piece := feed.take(sys.maxsize)) is not None:
                engine.train(piece.source, piece.batch_indices, piece.count).wait()
        return time.perf_counter() - started

    return run


def shares(steps_seconds: dict[str, dict[str, list[float]]], unit: str) -> dict[str, float]:
    """Time of each turn over that of the bare loop: the median over the rounds of the ratio within a round.

    >>> shares({"bare loop": {"cpu": [2.0, 4.0, 2.0]}, "mpt": {"cpu": [3.0, 4.8, 2.2]}}, "cpu")["mpt"]
    1.2
    """
    bare = steps_seconds["bare loop"][unit]
    return {name: statistics.median(own / base for own, base in zip(seconds[unit], bare, strict=True))
            for name, seconds in steps_seconds.items()}  # fmt: skip


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    names = row["backend"], row["model"], row["policy"]
    if "error" in row:
        return (*names, f"not possible: {row['error']}", *[""] * (len(COLUMNS) - 4))
    found, cpu, clock = row["steps_seconds"], shares(row["steps_seconds"], "cpu"), shares(row["steps_seconds"], "clock")
    added, before = [], 1.0
    for part in PARTS:
        added.append(f"{100 * (cpu[part] - before):+.0f} %" if part in cpu else "")
        before = cpu.get(part, before)
    bare = f"{1000 * statistics.median(found['bare loop']['cpu']):.2f}"
    return (*names, bare, *added, f"{1 / cpu['mpt']:.2f}", f"{1 / clock['mpt']:.2f}")


def table(report: dict[str, Any]) -> str:
    """Markdown: the machine, a row per cell, how to read it."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    loads = " and ".join(f"{load:.1f}" for load in report["load_average"])
    title = (f"{report['cpu']} with {report['cores']} cores, {versions}; load average before and after the latest "
             f"cells: {loads}.")  # fmt: skip
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(cells(row) for row in report["cells"])]
    return "\n".join([title, "", *("| " + " | ".join(line) + " |" for line in lines), "", LEGEND])


def missed() -> list[tuple[str, str, str]]:
    """Backend, model and policy of what is slower than it should be in results/speed.json."""
    rows = json.loads((RESULTS / "speed.json").read_text())["cells"]
    return [(row["backend"], row["model"], row["policy"]) for row in rows
            if any(not met and "memory" not in name for name, met in row["targets"].items())]  # fmt: skip


def with_others(report: dict[str, Any]) -> dict[str, Any]:
    """`report` with the cells that the file has and that were not measured now."""
    file, names = RESULTS / "step_parts.json", list(MODELS)
    before = json.loads(file.read_text())["cells"] if file.exists() else []
    by_name = {(row["backend"], row["model"], row["policy"]): row for row in [*before, *report["cells"]]}
    order = sorted(by_name, key=lambda key: (BACKENDS.index(key[0]), names.index(key[1]), POLICIES.index(key[2])))
    return {**report, "cells": [by_name[key] for key in order]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", help="a process of its own for one cell: its description as JSON")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--models", help="all cells of these, between semicolons, instead of those missed")
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    if words.task:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(json.loads(words.task), Path(folder))))
    elif words.quick:
        print(table(run([("jax", "digits MLP", "mixed_float16")], {"turn_seconds": 0.0, "rounds": 1})))
    else:
        write(with_others(run(wanted(words), {"turn_seconds": 0.3, "rounds": words.rounds})))


def wanted(words: argparse.Namespace) -> list[tuple[str, str, str]]:
    backends, policies = words.backends.split(","), words.policies.split(",")
    if words.models is None:
        return [found for found in missed() if found[0] in backends and found[2] in policies]
    return [*product(backends, words.models.split(";"), policies)]


def run(names: list[tuple[str, str, str]], how: dict[str, Any]) -> dict[str, Any]:
    load_before, rows = os.getloadavg()[0], []
    for backend, model, policy in names:
        task = {"backend": backend, "model": model, "policy": policy}
        rows.append({**task, **child({**task, **how}, "benchmarks.step_parts")})
        print(*cells(rows[-1]), sep=" | ", file=sys.stderr, flush=True)
    return {**machine(), "load_average": [load_before, os.getloadavg()[0]], "cells": rows}


def write(report: dict[str, Any]) -> None:
    (RESULTS / "step_parts.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "step_parts.md").write_text(table(report) + "\n")
    print(table(report))


if __name__ == "__main__":
    main()
