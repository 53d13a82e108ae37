"""What a test needs to run on TensorFlow and on JAX alike, and the way to repeat a folder of tests on JAX.

Keras picks its backend once per process. So tests are written with `keras.ops` and the functions below, run on
TensorFlow with the rest of the suite, and once more on JAX by one test of the folder, in as many parts as keep two
workers busy to the end:

    @pytest.mark.slow
    @only_on("tensorflow")
    @pytest.mark.parametrize(("files", "only"), parts(Path(__file__).parent, 4))
    def test_on_jax(files, only):
        assert_passes_on_jax(*files, only=only)

Its quick tests run so in `make test`, its slow ones in `make test-long`; of a folder that names some files, the quick
tests of the others in `make test-long` as well.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from preloaded import run_program

ROOT = Path(__file__).parents[1]
BACKEND = keras.backend.backend()
# How a function is run: JAX has no graph mode apart from its compiler.
MODE_NAMES = ("eager", "graph", "xla") if BACKEND == "tensorflow" else ("eager", "xla")
# The same as parameters of a test: compiling by XLA takes longest.
MODES = [pytest.param(mode, marks=pytest.mark.slow if mode == "xla" else ()) for mode in MODE_NAMES]

# On JAX compiling takes most of a test's time. Without LLVM's optimization, which changes the machine's code and no
# operation of the program, a folder takes a fourth less; recipes, examples and what users run have it.
_FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
QUICKLY_COMPILED = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": _FLAGS}


def only_on(backend: str) -> pytest.MarkDecorator:
    """Mark of a test that makes sense on one backend only."""
    return pytest.mark.skipif(backend != BACKEND, reason=f"a matter of {backend}, not of {BACKEND}")


def parts(folder: Path, count: int, first: tuple[str, ...] = ()) -> list[Any]:
    """The test files right in `folder`, dealt out to `count` cases of a test, and to half as many long ones.

    Each case has the marks of its tests: those that are not slow, and in the long ones those that are. With `first`,
    the names of some files, the quick tests of these are a case of their own, and those of the others are long too.
    """
    files, half = sorted(folder.glob("test_*.py")), max(1, count // 2)
    chosen, marks = [folder / name for name in first], pytest.mark.long if first else ()
    others = [file for file in files if file not in chosen]
    quick = [
        pytest.param(others[part::count], "not slow", id=f"part{part + 1}of{count}", marks=marks)
        for part in range(count)
    ]
    quick += [pytest.param(chosen, "not slow", id="first")] if first else []
    slow = [
        pytest.param(files[part::half], "slow and not long", id=f"slow_part{part + 1}of{half}", marks=pytest.mark.long)
        for part in range(half)
    ]
    return quick + slow


def assert_passes_on_jax(*paths: Path, only: str = "not long") -> None:
    """`assert_passes` on JAX."""
    assert_passes("jax", *paths, only=only)


def assert_passes(backend: str, *paths: Path, only: str = "not long", flags: str = "", **variables: str) -> None:
    """Run the tests under `paths` with these marks in a process of their own, with `flags` for XLA as well.

    Fails with their output, also when none of them ran.
    """
    words = ["-p", "no:cacheprovider", "-m", only, *map(str, paths)]
    variables |= {**QUICKLY_COMPILED, "XLA_FLAGS": f"{QUICKLY_COMPILED['XLA_FLAGS']} {flags}".strip()}
    done = run_program("pytest", *words, backend=backend, cwd=ROOT, timeout=900.0, **variables)
    assert done.returncode == 0 and " passed" in done.stdout, f"on {backend}:\n{done.stdout}\n{done.stderr}"


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


def central_difference(function: Callable[..., Any], x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Slope of the sum of `function` along each element of float64 `x`; error about `step ** 2` + 1e-16 / `step`."""
    slopes = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[index] += step
        behind[index] -= step
        difference = np.sum(keras.ops.convert_to_numpy(function(ahead)) - keras.ops.convert_to_numpy(function(behind)))
        slopes[index] = difference / (2 * step)
    return slopes


def float64_allowed() -> contextlib.AbstractContextManager[Any]:
    """Context in which float64 stays float64: JAX turns it into float32 otherwise."""
    if BACKEND == "jax":
        import jax

        return jax.enable_x64(True)
    return contextlib.nullcontext()


class ScalesInFit(keras.callbacks.Callback):
    """Loss scale and skipped steps after each call of `fit`'s train function."""

    def __init__(self):
        super().__init__()
        self.loss_scale: list[float] = []
        self.skipped: list[int] = []

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        self.loss_scale.append(float(optimizer.loss_scale))
        self.skipped.append(int(optimizer.skipped_steps))
