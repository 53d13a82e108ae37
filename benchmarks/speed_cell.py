"""A process of its own for one backend and model: its contenders take turns under every policy.

    python -m benchmarks.speed_cell '{"backend": "jax", "model": "digits MLP", ...}'

Prints one JSON object. With `memory` naming a contender it trains three epochs of that one alone instead, with no
program kept from an earlier run, and prints the peak resident memory of the process.
"""

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import Settings

FIRST_SAMPLE_STEPS = 150  # by then mpt has looked at the gradients once, which compiles
COMMON = [
    "policy={policy}",
    "backend={backend}",
    "optimizer=adam",
    "optimizer.learning_rate=1e-3",
    "optimizer.schedule.name=constant",
    "optimizer.schedule.warmup_steps=0",
    "trainer.batch_size=64",
    "trainer.checkpoint_every_minutes=null",
    "data.validation_fraction=0",
    "logger.console=quiet",
    "trainer.deterministic=false",  # a switch of the whole process, which would slow down `fit` as well
    "trainer.epochs=500",  # what is chosen for a long run, such as XLA, is what is measured
]


# a model: its builder with arguments, its data with arguments
OWN_MODELS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "wide MLP": ("wide_mlp", {}, "features", {"shape": [256]}),
    "residual MLP, 24 blocks": ("residual_mlp", {"blocks": 24}, "features", {"shape": [64]}),
    "separable CNN": ("separable_cnn", {}, "features", {"shape": [32, 32, 3]}),
    "series CNN": ("series_cnn", {}, "features", {"shape": [64, 8]}),
    "LSTM": ("lstm", {}, "features", {"shape": [32, 16]}),
    "bidirectional GRU": ("bidirectional_gru", {}, "features", {"shape": [32, 16]}),
    "wide embedding": ("wide_embedding", {"words": 50000, "width": 64}, "tokens", {"length": 32, "words": 50000}),
    "transformer, 8 blocks": (
        "pre_norm_transformer",
        {"words": 1000, "blocks": 8},
        "tokens",
        {"length": 24, "words": 1000},
    ),
    "small MLP": ("mlp", {}, "features", {"shape": [64]}),
    "CNN": ("cnn", {}, "features", {"shape": [28, 28, 1]}),
    "residual CNN": ("residual_cnn", {"blocks": 3}, "features", {"shape": [16, 16, 3]}),
    "text CNN": ("text_cnn", {"words": 5000}, "tokens", {"length": 64, "words": 5000}),
}


def hydra_map(given: dict[str, Any]) -> str:
    """As the command line takes a mapping.

    >>> hydra_map({"shape": [64], "blocks": 2})
    '{shape: [64], blocks: 2}'
    """
    return "{" + ", ".join(f"{key}: {value}" for key, value in given.items()) + "}"


def own_model_words(model: str, **more: Any) -> list[str]:
    """The overrides that name it; `more` is for the function that gives its data."""
    builder, kwargs, loader, given = OWN_MODELS[model]
    return [
        "conf=digits_mlp",
        "model=builder",
        f"model.builder=benchmarks.speed_models:{builder}",
        f"model.kwargs={hydra_map(kwargs)}",
        "data=loader",
        f"data.loader=benchmarks.speed_models:{loader}",
        f"data.kwargs={hydra_map({**given, **more})}",
    ]


RECIPES = {
    "digits MLP": ["conf=digits_mlp", "data.limit=1792"],  # whole batches
    "digits CNN": ["conf=digits_cnn", "data.limit=896"],  # so that a turn of the slowest policy stays within a second
    "character transformer": ["conf=char_transformer", "data.limit=512", "data.sequence_length=32"],
}
NAMES = [
    "wide MLP",
    "residual MLP, 24 blocks",
    "ResNet",
    "separable CNN",
    "series CNN",
    "LSTM",
    "bidirectional GRU",
    "wide embedding",
    "transformer, 8 blocks",
]
RESNET = ["conf=digits_resnet", "data.limit=576"]
MODELS = RECIPES | {
    name: RESNET if name == "ResNet" else [*own_model_words(name), "trainer.save_model=false"] for name in NAMES
}


def cell_settings(task: dict[str, Any], policy: str) -> Settings:
    words = [word.format(policy=policy, backend=task["backend"]) for word in COMMON]
    path = [f"data.path={task['text']}"] if task.get("text") and task["model"] == "character transformer" else []
    return load_settings([*MODELS[task["model"]], *words, *path])


def build_cell(task: dict[str, Any], policy: str, folder: Path) -> Any:
    from mpt_cli.engine.backend import prepare_backend

    settings = cell_settings(task, policy)
    platform = prepare_backend(settings)
    from benchmarks.contenders import Cell
    from mpt_cli.data.sources import load_data

    return Cell(settings, platform, load_data(settings.data, 0), folder)


def measure_or_say(task: dict[str, Any], policy: str, folder: Path) -> dict[str, Any]:
    """A backend may not compute a policy on a device at all; the other cells go on."""
    try:
        return measure(task, policy, folder)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}


def measure(task: dict[str, Any], policy: str, folder: Path) -> dict[str, Any]:
    """Steps per second of mpt and of the `contenders` in every round, and telemetry's share of the time."""
    cell = build_cell(task, policy, folder)
    from benchmarks.contenders import CONTENDERS, file_telemetry, keras_model, mpt_turn

    telemetry = file_telemetry(cell)
    turns = {name: build(cell) for name, build in CONTENDERS.items() if name in task["contenders"]}
    turns = {"mpt": mpt_turn(cell, telemetry), **turns}
    epochs = {name: warm_up(turn, task["turn_seconds"], cell.steps) for name, turn in turns.items()}
    steps = {name: count * cell.steps for name, count in epochs.items()}
    rates: dict[str, list[float]] = {name: [] for name in turns}
    cpu_rates: dict[str, list[float]] = {name: [] for name in turns}
    telemetry.seconds, mpt_seconds = 0.0, 0.0
    for round_number in range(task["repeats"]):
        names = list(turns)
        for name in names[round_number % len(names) :] + names[: round_number % len(names)]:
            cpu_before = time.process_time()
            seconds = turns[name](epochs[name])
            rates[name].append(steps[name] / seconds)
            cpu_rates[name].append(steps[name] / (time.process_time() - cpu_before))
            mpt_seconds += seconds if name == "mpt" else 0.0
    telemetry.close()
    shares = {"telemetry_share": telemetry.seconds / mpt_seconds, "steps_per_epoch": cell.steps}
    parameters = keras_model(cell).count_params()
    return {**summarise(rates), "cpu_time": summarise(cpu_rates), **shares, "parameters": parameters}


def warm_up(turn: Callable[[int], float], turn_seconds: float, steps_per_epoch: int) -> int:
    """How many epochs of `turn` last `turn_seconds`; everything is compiled afterwards."""
    turn(1)
    turn(FIRST_SAMPLE_STEPS // steps_per_epoch + 1)  # mpt feels its way to the best number of steps per call
    return max(1, round(turn_seconds / turn(1)))


def summarise(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Medians of steps per second, of wall or CPU time.

    A ratio is the median over the rounds of the ratio within a round, which a busy minute spares.
    """

    def ratio(name: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[name], rates[other], strict=True))

    return {
        "steps_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "over_fit": {name: ratio(name, "fit") for name in rates},
        "over_bare_loop": {name: ratio(name, "bare loop") for name in rates},
    }


def peak_memory(task: dict[str, Any], folder: Path) -> int:
    cell = build_cell(task, task["policies"][0], folder)
    from benchmarks.contenders import CONTENDERS

    CONTENDERS[task["memory"]](cell)(3)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    task = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        if task.get("memory"):
            print(json.dumps({"peak_bytes": peak_memory(task, Path(folder))}))
        else:
            print(json.dumps({policy: measure_or_say(task, policy, Path(folder)) for policy in task["policies"]}))


if __name__ == "__main__":
    main()
