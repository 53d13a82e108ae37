"""A model of a few hundred weights that trains in milliseconds, and what a run of it consists of."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from mpt_cli.data.examples import Examples
from mpt_cli.engine.choose_engine import build_engine
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.step_batches import BatchPlan, Feed
from mpt_cli.engine.step_loop import Engine
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters, StepRecords
from mpt_cli.training.build_run_parts import build_metrics


def tiny_model(policy: str = "float32", seed: int = 3) -> keras.Model:
    """Two Dense layers around a BatchNormalization; the same weights each time."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, "relu", dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.Dense(3, dtype="float32", name="head"),
        ]
    )


def tiny_data(count: int = 22, weighted: bool = False) -> Examples:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    weight = rng.uniform(0.5, 2.0, count).astype(np.float32) if weighted else None
    return Examples(x, rng.integers(0, 3, count).astype(np.int32), weight)


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def compile_tiny(model: keras.Model, optimizer: Any, loss: Any = None) -> keras.Model:
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], auto_scale_loss=False, jit_compile=False)
    return model


@dataclass
class TinyRun:
    """A compiled tiny model with its engine and feed."""

    model: keras.Model
    engine: Engine
    feed: Feed
    counters: StepCounters

    def epochs(self, count: int, most: int = 64) -> list[StepRecords]:
        blocks = []
        for epoch in range(1, count + 1):
            self.engine.reset_metrics()
            self.feed.start(epoch)
            while (chunk := self.feed.take(most)) is not None:
                blocks.append(self.engine.train(chunk.source, chunk.batch_indices, chunk.count))
                self.counters.absorb(blocks[-1], epoch)
        return blocks

    def weights(self) -> list[np.ndarray]:
        """Weights, statistics and momentum."""
        return [np.asarray(v.numpy()) for v in [*self.model.variables, *self.model.optimizer.inner_optimizer.variables]]


def tiny_run(
    data: Examples,
    *,
    model: keras.Model | None = None,
    policy: str = "float32",
    capacity: int = 4,
    batch: int = 4,
    jit: bool = keras.backend.backend() == "jax",
    resident: bool = True,
    rule: Any = None,
    inner: Any = None,
    optimizer: Any = None,
    shuffle: bool = True,
    wrap_step: Any = None,
    **compiling: Any,
) -> TinyRun:
    optimizer = optimizer or LossScaleOptimizer(inner or sgd(), rule=rule)
    model = compile_tiny(model or tiny_model(policy), optimizer, **compiling)
    optimizer.build(model.trainable_variables)
    build_metrics(model, data, batch)
    engine = build_engine(model, jit, Distribution(), wrap_step)
    feed = Feed(data, engine, BatchPlan(batch, capacity, shuffle=shuffle, seed=1), resident)
    return TinyRun(model, engine, feed, StepCounters(CounterOptions(tuple(v.path for v in model.trainable_variables))))
