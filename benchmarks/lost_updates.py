"""What rounding takes from the updates of half-precision weights, to nearest and stochastically, against float32 ones.

    python -m benchmarks.lost_updates [--steps 2000] [--seeds 3] [--dtypes bfloat16] [--quick]

An MLP (64-64-64-10, its head in float32) learns the bundled digits with plain SGD on TensorFlow, in bfloat16 (float16)
throughout, and with the same computation over float32 weights. Of each step the update of each weight is known in
float32: the rate times its gradient. `unmoved` is the share of updates, among those that are not 0, that left the
weight as it was; `way lost`, over 1,000 steps, the share of the sum of the updates that the weights did not move along
it. Means over the seeds, of the last 1,000 steps. About two minutes.
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from mpt_cli.precision import LossScaleOptimizer

WINDOW = 1000
CASES = [("float32 weights", "mixed_{}", False), ("to nearest", "{}", False), ("stochastically", "{}", True)]


def digits(seed: int) -> tuple[Any, Any, Any, Any]:
    """Three quarters to learn from, one to test."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order].astype("int32")
    cut = len(x) * 3 // 4
    return x[:cut], y[:cut], x[cut:], y[cut:]


def build(policy: str, seed: int) -> Any:
    """The same first weights under every policy, as far as it can hold them."""
    keras.utils.set_random_seed(seed)
    sizes = [64, 64, 64, 10]
    layers = [keras.layers.Dense(n, "relu" if n > 10 else None, dtype=policy if n > 10 else "float32")
              for n in sizes[1:]]  # fmt: skip
    model = keras.Sequential([keras.Input((64,)), *layers])
    random = np.random.default_rng(seed)
    model.set_weights([random.normal(0, np.sqrt(2 / w.shape[0]), w.shape) if len(w.shape) > 1 else np.zeros(w.shape)
                       for w in model.weights])  # fmt: skip
    return model


def windows(model: Any, optimizer: Any, batches: Iterator[Any], steps: int, rate: float) -> list[tuple[float, float]]:
    """`unmoved` and `way lost` of the hidden kernels for each `WINDOW` of steps."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    kernels = [layer.kernel for layer in model.layers[:2]]
    weights = model.trainable_variables

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> list[Any]:
        before = [tf.cast(tf.identity(v.value), tf.float32) for v in kernels]
        with tf.GradientTape() as tape:
            scaled = optimizer.scale_loss(loss(y, model(x, training=True)))
        grads = tape.gradient(scaled, weights)
        scale = optimizer.loss_scale
        wanted = [-rate * tf.cast(g, tf.float32) / scale for g, v in zip(grads, weights, strict=True)
                  if any(v is k for k in kernels)]  # fmt: skip
        optimizer.apply(grads, weights)
        moved = [tf.cast(tf.identity(v.value), tf.float32) - old for v, old in zip(kernels, before, strict=True)]
        return [tf.concat([tf.reshape(part, [-1]) for part in parts], 0) for parts in (wanted, moved)]

    found, wanted, moved, unmoved, updates = [], 0.0, 0.0, 0, 0
    for number in range(1, steps + 1):
        one, other = (part.numpy() for part in step(*next(batches)))
        wanted, moved = wanted + one.astype("float64"), moved + other
        unmoved, updates = unmoved + int(((one != 0) & (other == 0)).sum()), updates + int((one != 0).sum())
        if number % WINDOW == 0 or number == steps:
            lost = 1 - np.dot(moved, wanted) / np.dot(wanted, wanted)
            found.append((unmoved / max(updates, 1), float(lost)))
            wanted, moved, unmoved, updates = 0.0, 0.0, 0, 0
    assert int(optimizer.applied_steps) == steps, "a step was skipped"
    return found


def measure(policy: str, stochastic: bool, rate: float, chosen: argparse.Namespace) -> list[tuple[float, ...]]:
    """For each seed `unmoved` and `way lost` of the last window, test accuracy and test loss."""
    rows = []
    for seed in range(chosen.seeds):
        x, y, x_test, y_test = digits(seed)
        model, random = build(policy, seed), np.random.default_rng(seed)
        optimizer = LossScaleOptimizer(keras.optimizers.SGD(rate), dynamic=False, initial_scale=2.0**7,
                                       rounding_seed=seed if stochastic else None)  # fmt: skip
        optimizer.build(model.trainable_variables)
        rows_of = (random.choice(len(x), 32, replace=False) for _ in range(chosen.steps))
        lost = windows(model, optimizer, ((x[i], y[i]) for i in rows_of), chosen.steps, rate)[-1]
        logits = tf.cast(model(x_test), tf.float32)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y_test, logits)
        rows.append((*lost, float((tf.argmax(logits, 1).numpy() == y_test).mean()), float(loss)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dtypes", default="bfloat16,float16")
    parser.add_argument("--rates", default="0.01")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.steps, chosen.seeds, chosen.rates = 60, 1, "0.01"
    print("| computed in | rate | weights | unmoved | way lost | test accuracy | test loss |\n|" + "---|" * 7)
    for rate in map(float, chosen.rates.split(",")):
        for half in chosen.dtypes.split(","):
            for name, policy, stochastic in CASES:
                columns = zip(*measure(policy.format(half), stochastic, rate, chosen), strict=True)
                unmoved, lost, accuracy, loss = map(statistics.mean, columns)
                print(f"| {half} | {rate:g} | {name} | {unmoved:.1%} | {lost:.1%} | {accuracy:.2%} | {loss:.4f} |",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
