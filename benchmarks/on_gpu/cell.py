"""One process of `benchmarks.gpu`: one model under one policy on one backend, with every way of scaling it has.

`python -m benchmarks.on_gpu.cell TASK`, a JSON object of `plan.Model.task`; prints a JSON object. All contenders take
turns over the same data, which stays on the device. A contender that can't be built or run here says why.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import Settings

if TYPE_CHECKING:
    from benchmarks.contenders import Turn
    from mpt_cli.training.session import Session

ROUNDS = 3


class Contenders:
    """The contenders of one process, built one after the other; `steps` per epoch, `epochs` per turn."""

    def __init__(self, settings: Settings, platform: Any, folder: Path) -> None:
        self.settings, self.platform, self.folder = settings, platform, folder
        self.turns: dict[str, Turn] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.telemetry: dict[str, Any] = {}
        self.flops, self.steps, self.parameters, self.epochs = 0.0, 0, 0, 1

    def add(self, scaling: str) -> None:
        """Build and compile it, noting how long that takes; the first one's peak memory is its own alone."""
        started = time.perf_counter()
        built = self._mpt(scaling) if "Keras" not in scaling else {scaling: self._of_keras(scaling)}
        for turn in built.values():
            turn(1)
        facts: dict[str, Any] = {"seconds_to_first_epoch": time.perf_counter() - started}
        if not self.facts:
            from mpt_cli.engine.backend import peak_memory

            facts["peak_bytes"] = peak_memory()
        self.facts[scaling] = facts
        self.turns.update(built)

    def _mpt(self, scaling: str) -> "dict[str, Turn]":
        """One session with its telemetry and without: the same compiled program."""
        from benchmarks.contenders import Cell, file_telemetry
        from mpt_cli.telemetry.sink_interface import Telemetry
        from mpt_cli.training.checkpoint import CheckpointStore
        from mpt_cli.training.run_from_settings import RunDefinition
        from mpt_cli.training.session import prepare

        settings = replace(self.settings, loss_scale=replace(self.settings.loss_scale, mode=scaling))
        silent = Telemetry([])
        store = CheckpointStore(self.folder, 1, silent.message)
        session = prepare(RunDefinition(settings), self.platform, silent, store)
        session.checkpointer.save = lambda *_: None  # type: ignore[method-assign]
        cell = Cell(settings, self.platform, session.parts.data, self.folder)
        written = self.telemetry[scaling] = file_telemetry(cell)
        written.start(session.header(self.folder))
        self._count(session, cell.steps)
        return {scaling: _turn(session, written), f"{scaling}, no telemetry": _turn(session, silent)}

    def _count(self, session: "Session", steps: int) -> None:
        from benchmarks.on_gpu.flops import training_flops

        model = session.parts.model
        self.flops, self.steps, self.parameters = training_flops(model), steps, model.count_params()

    def _of_keras(self, scaling: str) -> "Turn":
        from benchmarks.contenders import Cell, fit_turn, plain_turn
        from mpt_cli.data.sources import load_data

        cell = Cell(self.settings, self.platform, load_data(self.settings.data, self.settings.seed or 0), self.folder)
        return plain_turn(cell) if scaling == "plain Keras" else fit_turn(cell)


def _turn(session: "Session", telemetry: Any) -> "Turn":
    """As `contenders.mpt_turn`, on a session that is shared."""

    def run(epochs: int) -> float:
        session.telemetry = telemetry
        session.epochs = session.progress.epochs_completed + epochs
        started = time.perf_counter()
        outcome = session.fit()
        assert outcome.stop is None, outcome.stop
        return time.perf_counter() - started

    return run


def measure(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A row per scaling, the device and what the model costs."""
    from mpt_cli.engine.backend import prepare_backend

    settings = load_settings(task["words"])
    platform = prepare_backend(settings)
    contenders = Contenders(settings, platform, folder)
    errors = {}
    for scaling in task["scalings"]:
        try:
            contenders.add(scaling)
        except Exception as error:
            errors[scaling] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    seconds = _take_turns(contenders, task["turn_seconds"])
    rows = [_row(task, scaling, contenders, seconds) for scaling in contenders.facts]
    failed = [{"scaling": scaling, "error": why} for scaling, why in errors.items()]
    names = [{key: task[key] for key in ("backend", "model", "policy")} | row for row in [*rows, *failed]]
    return {
        "device": platform.device,
        "gpus": platform.gpus,
        "framework": platform.backend,
        "rows": names,
        "training_flops_per_example": contenders.flops,
        "parameters": contenders.parameters,
        "batch_size": settings.trainer.batch_size,
        "steps_per_epoch": contenders.steps,
    }


def _take_turns(contenders: Contenders, turn_seconds: float) -> dict[str, list[float]]:
    """Seconds per step of every contender in every round."""
    if not contenders.turns:
        return {}
    slowest = max(turn(1) for turn in contenders.turns.values())
    contenders.epochs = max(1, round(turn_seconds / slowest))
    for telemetry in contenders.telemetry.values():
        telemetry.seconds = 0.0
    seconds: dict[str, list[float]] = {name: [] for name in contenders.turns}
    for round_number in range(ROUNDS):
        names = list(contenders.turns)
        for name in names[round_number % len(names) :] + names[: round_number % len(names)]:
            seconds[name].append(contenders.turns[name](contenders.epochs) / (contenders.epochs * contenders.steps))
    for telemetry in contenders.telemetry.values():
        telemetry.close()
    return seconds


def _row(task: dict[str, Any], scaling: str, contenders: Contenders, seconds: dict[str, list[float]]) -> dict[str, Any]:
    step = statistics.median(seconds[scaling])
    rate = contenders.settings.trainer.batch_size / step
    row: dict[str, Any] = {
        "scaling": scaling,
        "step_seconds": step,
        "step_seconds_of_rounds": seconds[scaling],
        "examples_per_second": rate,
        "flops_per_second": rate * contenders.flops,
        **contenders.facts[scaling],
    }
    if task["tokens"]:
        row["tokens_per_second"] = rate * task["tokens"]
    if scaling in contenders.telemetry:
        whole = sum(seconds[scaling]) * contenders.epochs * contenders.steps
        row["telemetry_share"] = contenders.telemetry[scaling].seconds / whole
        row["step_seconds_no_telemetry"] = statistics.median(seconds[f"{scaling}, no telemetry"])
    return row


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder_name:
        print(json.dumps(measure(json.loads(sys.argv[1]), Path(folder_name))))
