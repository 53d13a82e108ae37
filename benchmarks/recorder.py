"""What a `Recorder` costs beside plain `fit`: the clock and CPU time of the digits MLP, the two taking turns in either
order; the median of the rounds.

    python -m benchmarks.recorder --rounds 5 --epochs 20

Both have the same LossScaleOptimizer, so that the difference is the recorder's: the step log, the files, and the hook
for batches, without which Keras calls its callbacks from a thread of their own.
"""

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import mpt_cli as mpt


def build_model() -> Any:
    """The digits MLP of the recipes: two hidden layers of 512."""
    layers = keras.layers
    with mpt.Policy("mixed_float16").scope():
        model = keras.Sequential([
            keras.Input((64,)), layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(10, dtype="float32")
        ])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(mpt.LossScaleOptimizer(keras.optimizers.Adam(1e-3)), loss, metrics=["accuracy"])
    return model


def seconds_of(model: Any, epochs: int, callbacks: list[Any]) -> tuple[float, float]:
    """Seconds on the clock and CPU seconds for so many epochs, after one epoch with the same callbacks."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    started: list[tuple[float, float]] = []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            started.append((time.perf_counter(), time.process_time()))

    model.fit(x, y, batch_size=64, epochs=epochs + 1, verbose=0, callbacks=[*callbacks, Clock()])
    return time.perf_counter() - started[0][0], time.process_time() - started[0][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    plain, recorded = [], []
    for turn in range(arguments.rounds):
        for with_recorder in (False, True) if turn % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                recorder = mpt.Recorder(f"{folder}/run", settings={"logger.console": "quiet"})
                callbacks = [recorder] if with_recorder else []
                (recorded if with_recorder else plain).append(seconds_of(build_model(), arguments.epochs, callbacks))
    rounds = list(zip(plain, recorded, strict=True))  # the two of a round lie close together, whatever else runs here
    costs = [statistics.median(r[kind] / p[kind] for p, r in rounds) - 1 for kind in (0, 1)]
    cost = {"cost": round(costs[0], 4), "cpu_cost": round(costs[1], 4)}
    print(json.dumps({"plain": plain, "recorded": recorded, **cost}))


if __name__ == "__main__":
    main()
