"""What can be read of an optimizer in Keras's own `fit`: through the model, and of one that the caller kept."""

import keras
import numpy as np
import pytest
from backends import ScalesInFit, only_on

from mpt_cli.precision import LossScaleOptimizer, keep_skips_whole

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


def fit(model: keras.Model, *callbacks: keras.callbacks.Callback) -> None:
    model.fit(X, np.ones((32, 1)), batch_size=4, shuffle=False, verbose=0, callbacks=list(callbacks))


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "jit_compile", "whole"), [(1, False, True), (4, True, False)])
def test_through_the_model_scale_and_skips_are_up_to_date_after_each_call(steps, jit_compile, whole):
    model, seen = compiled_model(ours(), steps_per_execution=steps, jit_compile=jit_compile), ScalesInFit()
    fit(keep_skips_whole(model) if whole else model, seen)
    assert seen.loss_scale == SCALES[steps - 1 :: steps]
    assert seen.skipped == SKIPPED[steps - 1 :: steps]
    assert (int(model.optimizer.seen_steps), int(model.optimizer.applied_steps)) == (8, 6)


@only_on("jax")
def test_a_kept_optimizer_says_where_to_read_instead():
    optimizer = ours()
    for read in (lambda: float(optimizer.loss_scale), lambda: int(optimizer.skipped_steps)):
        with pytest.raises(RuntimeError, match=r"In a callback read `self\.model\.optimizer`.*mpt\.Recorder"):
            reads = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, read=read: read())
            fit(compiled_model(optimizer), reads)
