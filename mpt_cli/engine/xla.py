"""Whether XLA compiles the steps of a run: chosen once, before the first step."""

import math
from dataclasses import dataclass
from typing import Any

import keras

from mpt_cli.engine.backend import Platform
from mpt_cli.engine.step_loop import convolves
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision import layers_of
from mpt_cli.settings.schema import Settings


@dataclass(frozen=True)
class JitChoice:
    """Whether XLA compiles the steps; `reason` says why not where nobody asked for that."""

    jit_compile: bool
    reason: str = ""


def choose_jit(settings: Settings, platform: Platform, model: Any, steps: int | None) -> JitChoice:
    """Resolve `trainer.jit_compile` for a run of `steps` (None: nobody knows how many).

    JAX always compiles, and a GPU always gains, unless a layer says that it can't, as in Keras's `fit`. On the CPU
    TensorFlow runs without XLA what Keras's `fit` runs without it, unless the run is long enough to win back the
    compiling (`xla_pays`), and whatever convolves: there XLA runs convolutions inside the loop on one thread (small
    CNN: 4 steps per second instead of 120 to 170). It goes by counts alone, not by a measurement, so that the same run
    is the same again.
    """
    asked = settings.trainer.jit_compile
    if isinstance(asked, bool):
        return JitChoice(asked)
    if settings.distribute.name == "mirrored":
        return JitChoice(False, "distribute=mirrored")  # Keras turns XLA off under tf.distribute too
    if settings.backend.name == "jax":
        return JitChoice(True)
    if without := [layer.name for layer in layers_of(model) if not layer.supports_jit]:
        return JitChoice(False, f"which layer {without[0]} does not support")
    if platform.gpus:
        return JitChoice(True)
    if convolves(model):
        return JitChoice(False, "slow at convolutions on a CPU")
    if steps is None:
        return JitChoice(False, "the length of the run is unknown, so compiling may not pay")
    if not xla_pays(steps, len(model.trainable_variables), numbers_per_step(model, settings.trainer.batch_size)):
        return JitChoice(False, f"{steps:,} steps are too few to repay compiling")
    return JitChoice(True)


PROGRAMS = 2  # for whole batches and for the last, smaller one of an epoch, or for validation
COMPILE_SECONDS, COMPILE_SECONDS_PER_VARIABLE = 2.5, 0.04
SAVED_SECONDS_PER_NUMBER = 8e-9


def xla_pays(steps: int, variables: int, numbers: int) -> bool:
    """Return whether `steps` on a CPU save more than XLA takes to compile them, in CPU seconds.

    Compiling takes XLA 2.5 s and 0.04 s per trainable variable more than going without it; a step saves 8 ns per number
    of `numbers_per_step`, which no longer passes through memory from each operation to the next. Measured on
    2 cores: 2 to 5 s for 6 to 38 variables and 6 to 10 for 164; 5 to 17 ns for
    Dense layers, with and without normalization, and transformers, more for recurrent layers.

    >>> xla_pays(steps=420, variables=6, numbers=9_000 + 8_200)  # a small MLP for 15 epochs of 28 steps
    False
    >>> xla_pays(steps=3_000, variables=38, numbers=70_000 + 1_080_000)  # two blocks of a transformer
    True
    """
    saved = steps * numbers * SAVED_SECONDS_PER_NUMBER
    return saved >= PROGRAMS * (COMPILE_SECONDS + COMPILE_SECONDS_PER_VARIABLE * variables)


def numbers_per_step(model: Any, batch_size: int) -> int:
    """Return how many numbers a training step reads and writes.

    These are the trainable weights, and what the layers of a graph of layers put out for a batch. A subclassed model
    shows no outputs without being run.

    >>> inputs = keras.Input((4,))
    >>> model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(3)(inputs)))
    >>> numbers_per_step(model, batch_size=10) - (4 * 3 + 3 + 3 * 2 + 2)
    50
    """
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    layers = [layer for layer in layers_of(model) if not isinstance(layer, (keras.Model, keras.layers.InputLayer))]
    outputs = keras.tree.flatten([layer.output for layer in layers if hasattr(layer, "output")])
    return int(weights + batch_size * sum(math.prod(size or 1 for size in tensor.shape[1:]) for tensor in outputs))


ON_TENSORFLOW_ALONE = ("Hashing", "HashedCrossing", "IntegerLookup", "StringLookup", "TextVectorization")


def check_layers(backend: str, model: Any) -> None:
    """ConfigError for layers of Keras that look things up in TensorFlow's tables, which no step on JAX can call."""
    found = [layer for layer in layers_of(model) if type(layer).__name__ in ON_TENSORFLOW_ALONE]
    if backend == "jax" and found:
        names = ", ".join(f"{layer.name} ({type(layer).__name__})" for layer in found)
        rule = f"a step on JAX can't call layers that compute with TensorFlow: {names}."
        remedy = "Use backend=tensorflow, or apply them to the data, in a data.loader."
        raise ConfigError(Problem("model", rule, None, remedy))
