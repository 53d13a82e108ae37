"""The choice of the engine, in a file of its own since both engines import what they share from `loop`."""

from typing import Any

import keras

from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.step_loop import Engine, StepWrapper


def build_engine(
    model: Any, jit_compile: bool, distribution: Distribution, step_wrapper: StepWrapper | None = None
) -> Engine:
    """Return the engine of the running backend for a built `model`; `step_wrapper` is put around its training step."""
    if keras.backend.backend() == "tensorflow":
        from mpt_cli.engine.step_loop_tensorflow import TensorFlowEngine

        return TensorFlowEngine(model, jit_compile, distribution.strategy, step_wrapper)
    from mpt_cli.engine.step_loop_jax import JaxEngine

    return JaxEngine(model, jit_compile, distribution, step_wrapper)
