"""Choose the engine that makes the steps of a run, and whether XLA compiles them, once, before the first step."""

import math
from dataclasses import dataclass
from typing import Any

import keras

from mpt_cli.engine.backend import Platform
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.step_loop import Engine, StepWrapper, convolves
from mpt_cli.errors import config_error
from mpt_cli.precision import layers_of
from mpt_cli.precision.gradient_check import on_tensorflow
from mpt_cli.settings.schema import Settings


def build_engine(
    model: Any, jit_compile: bool, distribution: Distribution, step_wrapper: StepWrapper | None = None
) -> Engine:
    """Return the engine of the running backend for a built `model`; `step_wrapper` is put around its training step."""
    if on_tensorflow():
        from mpt_cli.engine.step_loop_tensorflow import TensorFlowEngine

        return TensorFlowEngine(model, jit_compile, distribution.strategy, step_wrapper)
    from mpt_cli.engine.step_loop_jax import JaxEngine

    return JaxEngine(model, jit_compile, distribution.mesh, step_wrapper)


# CPU seconds on 2 cores: what XLA takes to compile two programs and, for each trainable variable, their parts; and what
# a step saves for each number that it reads or writes (5 to 17 ns measured, more for recurrent layers)
COMPILE_SECONDS, COMPILE_SECONDS_PER_VARIABLE = 5.0, 0.08
SAVED_SECONDS_PER_NUMBER = 8e-9


@dataclass(frozen=True)
class JitChoice:
    """The choice to compile the steps with XLA; `reason` says why not, unless the user decided that."""

    jit_compile: bool
    reason: str = ""


def choose_jit(settings: Settings, platform: Platform, model: Any, steps: int | None) -> JitChoice:
    """Resolve `trainer.jit_compile` for a run of `steps` (None: nobody knows how many).

    JAX always compiles, and a GPU always gains, unless a layer says that it can't, as in Keras's `fit`. On a CPU
    TensorFlow compiles runs that are long enough to win the compiling back, and nothing that convolves: there XLA runs
    convolutions inside the loop on one thread (small CNN: 4 steps per second instead of 120 to 170). It goes by counts
    alone, not by a measurement, so that the same run is the same again.
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
    saved = steps * numbers_per_step(model, settings.trainer.batch_size) * SAVED_SECONDS_PER_NUMBER
    if saved < COMPILE_SECONDS + COMPILE_SECONDS_PER_VARIABLE * len(model.trainable_variables):
        return JitChoice(False, f"{steps:,} steps are too few to repay compiling")
    return JitChoice(True)


def numbers_per_step(model: Any, batch_size: int) -> int:
    """Return how many numbers a step reads and writes: the trainable weights, and what the layers of a graph of layers
    put out for a batch. A subclassed model shows no outputs without being run.

    >>> inputs = keras.Input((4,))
    >>> model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(3)(inputs)))
    >>> numbers_per_step(model, batch_size=10) - (4 * 3 + 3 + 3 * 2 + 2)
    50
    """
    outputs = keras.tree.flatten([layer.output for layer in layers_of(model) if hasattr(layer, "output")])
    shapes = [(batch_size, *tensor.shape[1:]) for tensor in outputs] + [v.shape for v in model.trainable_variables]
    return sum(math.prod(size or 1 for size in shape) for shape in shapes)


ON_TENSORFLOW_ALONE = ("Hashing", "HashedCrossing", "IntegerLookup", "StringLookup", "TextVectorization")


def check_layers(backend: str, model: Any) -> None:
    """Raise ConfigError for Keras layers that use TensorFlow's lookup tables, which no step on JAX can call."""
    found = [layer for layer in layers_of(model) if type(layer).__name__ in ON_TENSORFLOW_ALONE]
    if backend == "jax" and found:
        names = ", ".join(f"{layer.name} ({type(layer).__name__})" for layer in found)
        rule = f"a step on JAX can't call layers that compute with TensorFlow: {names}."
        remedy = "Use backend=tensorflow, or apply them to the data, in a data.loader."
        raise config_error("model", rule, None, remedy)
