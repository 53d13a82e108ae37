"""What a test needs to run on TensorFlow and on JAX alike.

Keras picks its backend once per process. So tests are written with `keras.ops` and the functions below, and run once
with `KERAS_BACKEND=tensorflow`, which is the default, and once with `KERAS_BACKEND=jax`.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()
# How a function is run: JAX has no graph mode apart from its compiler.
MODE_NAMES = ("eager", "graph", "xla") if BACKEND == "tensorflow" else ("eager", "xla")
# The same as parameters of a test: compiling by XLA takes longest.
MODES = [pytest.param(mode, marks=pytest.mark.slow if mode == "xla" else ()) for mode in MODE_NAMES]


def only_on(backend: str) -> pytest.MarkDecorator:
    """Mark of a test that makes sense on one backend only."""
    return pytest.mark.skipif(backend != BACKEND, reason=f"a matter of {backend}, not of {BACKEND}")


def compiled(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """`function` in one of `MODE_NAMES`: as it is, as a TensorFlow graph, or compiled by XLA."""
    if mode == "eager":
        return function
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=mode == "xla")


def gradients(function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """Gradients of the sum of `function(*arguments)` by each argument, as tensors; differentiable once more."""
    if BACKEND == "jax":
        import jax

        indices = tuple(range(len(arguments)))
        return jax.grad(lambda *values: keras.ops.sum(function(*values)), indices)(*arguments)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        for argument in arguments:
            tape.watch(argument)
        total = tf.reduce_sum(function(*arguments))
    return tuple(tape.gradient(total, arguments))


def assert_same_variables(found: keras.Model, expected: keras.Model, rtol: float, atol: float = 0.0):
    """Those of the models and of their inner optimizers."""
    pairs = zip(
        *([*model.variables, *model.optimizer.inner_optimizer.variables] for model in (found, expected)), strict=True
    )
    for one, other in pairs:
        one, other = keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
