"""A process of its own for one backend and model: telemetry in full, none, and the naive way take turns.

    python -m benchmarks.telemetry_cell '{"backend": "jax", "model": "digits MLP", ...}'

Prints one JSON object.
"""

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.speed_cell import build_cell, warm_up

FULL, NONE, NAIVE = "full telemetry", "no telemetry", "read back every step"
SAMPLES = 5


def with_trainer(cell: Any, **changes: Any) -> Any:
    settings = cell.settings
    return replace(cell, settings=replace(settings, trainer=replace(settings.trainer, **changes)))


def measure(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Steps per second of the three in every round, and what telemetry and samples take by their own clocks."""
    cell = build_cell(task, task["policy"], folder)
    from benchmarks.contenders import file_telemetry, mpt_turn, prepared
    from mpt_cli.engine.gradient_samples import EVERY_STEPS, FIRST_SAMPLE_STEP
    from mpt_cli.telemetry.sink import Telemetry

    unsampled = with_trainer(cell, gradient_health_every_steps=None)
    naive = with_trainer(unsampled, steps_per_execution=1, log_every_steps=1)
    telemetry = file_telemetry(cell)
    turns = {
        FULL: mpt_turn(cell, telemetry),
        NONE: mpt_turn(unsampled, Telemetry([])),
        NAIVE: mpt_turn(naive, Telemetry([])),
    }
    turns[FULL](math.ceil(FIRST_SAMPLE_STEP / cell.steps))  # the first sample compiles
    epochs = {name: warm_up(turn, task["turn_seconds"], cell.steps) for name, turn in turns.items()}
    telemetry.seconds = 0.0
    rates, full_seconds = take_turns(turns, epochs, cell.steps, task["repeats"])
    telemetry.close()
    step_seconds = 1 / statistics.median(rates[NONE])
    sample_seconds = time_a_sample(prepared(cell, Telemetry([])))
    return {
        "steps_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "rounds": rates,
        "over_none": {name: median_ratio(rates[name], rates[NONE]) for name in rates},
        "telemetry_share": telemetry.seconds / full_seconds,
        "sample_seconds": sample_seconds,
        "sample_share": sample_seconds / (EVERY_STEPS * step_seconds),
    }


def take_turns(
    turns: dict[str, Callable[[int], float]], epochs: dict[str, int], steps: int, repeats: int
) -> tuple[dict[str, list[float]], float]:
    """The rates by round, each round beginning with another contender, and the seconds of full telemetry."""
    rates: dict[str, list[float]] = {name: [] for name in turns}
    full_seconds, names = 0.0, list(turns)
    for number in range(repeats):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds = turns[name](epochs[name])
            rates[name].append(epochs[name] * steps / seconds)
            full_seconds += seconds if name == FULL else 0.0
    return rates, full_seconds


def median_ratio(values: list[float], others: list[float]) -> float:
    """Of the ratios within each round, which a busy minute spares."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


def time_a_sample(session: Any) -> float:
    """Seconds of one look at the gradients, after the one that compiles it."""
    trainer = session.trainer
    trainer.train_feed.start(1)
    piece, seconds = trainer.train_feed.take(1), []
    for _ in range(1 + SAMPLES):
        started = time.perf_counter()
        trainer.sampler.take(piece, 1, 2.0**10)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(json.loads(sys.argv[1]), Path(folder))))


if __name__ == "__main__":
    main()
