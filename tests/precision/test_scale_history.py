"""`ScaleHistory` in Keras's own `fit`, and what can be read of an optimizer that the caller kept."""

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on

from mpt_cli.precision import LossScaleOptimizer, ScaleHistory, keep_skips_whole

X = np.ones((32, 2), "float32")
X[4:8] = X[16:20] = np.inf  # the second and fifth batch of eight
SCALES = [16.0, 8.0, 8.0, 16.0, 8.0, 8.0, 16.0, 16.0]
SKIPPED = [0, 1, 1, 1, 2, 2, 2, 2]


def compiled_model(optimizer: keras.optimizers.Optimizer, **compiling) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **compiling)
    return model


def ours() -> LossScaleOptimizer:
    return LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=16.0, dynamic_growth_steps=2)


def fit(model: keras.Model, *callbacks: keras.callbacks.Callback, epochs: int = 1):
    arguments = {"batch_size": 4, "shuffle": False, "verbose": 0}
    return model.fit(X, np.ones((32, 1)), epochs=epochs, callbacks=list(callbacks), **arguments).history


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [1, 4])
def test_scale_and_tally_after_each_call_and_in_the_logs_of_an_epoch(steps, jit_compile, whole):
    model, scales = compiled_model(ours(), steps_per_execution=steps, jit_compile=jit_compile), ScaleHistory()
    model = keep_skips_whole(model) if whole else model
    history = fit(model, scales, epochs=2)
    found = {name: values[: len(values) // 2].tolist() for name, values in scales.history.items()}
    assert found["loss_scale"] == SCALES[steps - 1 :: steps]
    assert found["skipped"] == SKIPPED[steps - 1 :: steps]
    assert found["seen"] == list(range(steps, 9, steps))
    assert found["applied"] == [seen - skipped for seen, skipped in zip(found["seen"], found["skipped"], strict=True)]
    assert (scales.history["seen"][-1], scales.history["growths"][-1]) == (16, int(model.optimizer.growths))
    assert history["skipped_steps"] == [2, 4]
    assert history["loss_scale"] == [16.0, float(model.optimizer.loss_scale)]


class Reads(keras.callbacks.Callback):
    """Calls a function after each batch and keeps what it returns."""

    def __init__(self, read):
        super().__init__()
        self.read, self.found = read, []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(self.read(self))


@only_on("jax")
def test_it_does_not_make_keras_write_the_state_back():
    model, scales = compiled_model(ours()), ScaleHistory()
    written_back = Reads(lambda self: (scales.history["skipped"][-1], self._model._jax_state_synced)[1])
    fit(model, scales, written_back)
    assert written_back.found == [False] * 8


@only_on("jax")
def test_a_kept_optimizer_says_where_to_read_instead_where_keras_s_own_raises_something_unrelated():
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        fit(compiled_model(theirs), Reads(lambda self: float(theirs.dynamic_scale.value)))
    optimizer = ours()
    for read in (lambda self: float(optimizer.loss_scale), lambda self: int(optimizer.skipped_steps)):
        with pytest.raises(RuntimeError, match=r"In a callback read `self\.model\.optimizer`.*ScaleHistory"):
            fit(compiled_model(optimizer), Reads(read))


@pytest.mark.slow
def test_read_through_the_model_it_is_up_to_date_on_both_backends():
    reads = Reads(lambda self: (float(self.model.optimizer.loss_scale), int(self.model.optimizer.skipped_steps)))
    fit(compiled_model(ours(), jit_compile=BACKEND == "jax"), reads)
    assert reads.found == list(zip(SCALES, SKIPPED, strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))])
def test_a_model_without_our_loss_scale_is_refused(optimizer):
    with pytest.raises(ValueError, match=r"must be compiled with mpt_cli\.precision\.LossScaleOptimizer to"):
        fit(compiled_model(optimizer), ScaleHistory())


def test_before_training_nothing_is_recorded():
    assert {name: len(values) for name, values in ScaleHistory().history.items()} == dict.fromkeys(
        ("loss_scale", "seen", "applied", "skipped", "consecutive_skips", "growths", "backoffs"), 0)  # fmt: skip
