"""One table: two replicas, jit off and on, one and several steps per execution, on the backend of this process.

In each row a batch that is bad on one replica is skipped on all of them, and whole: `fit` ends as if it had been
absent, and the scale moves as the rule in plain Python says.
"""

import keras
import numpy as np
import pytest
from backends import BACKEND, assert_same_variables
from reference import ReferenceScale

from mpt_cli.precision import LossScaleOptimizer, keep_skips_whole

BATCHES, BAD = 8, (1, 4, 5)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8 * BATCHES, 3)).astype("float32")
Y = RANDOM.normal(size=(8 * BATCHES, 1)).astype("float32")
IN_BAD = np.isin(np.arange(8 * BATCHES) // 8, BAD)
SECOND_HALF = np.arange(8 * BATCHES) % 8 >= 4  # of a batch, on the second device
BAD_X = np.where((IN_BAD & SECOND_HALF)[:, None], np.float32("inf"), X)
PATTERN = [batch not in BAD for batch in range(BATCHES)]
TABLE = [(jit, steps) for jit in (False, True) for steps in (1, 4)]
# What Keras's `fit` can't do with any optimizer: see the test at the end.
REFUSED = [row for row in TABLE if BACKEND == "tensorflow" and row != (False, 1)]


def fitted(scope, x, y, jit_compile: bool, steps: int):
    keras.utils.set_random_seed(0)
    scales: list[float] = []
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: scales.append(float(seen.model.optimizer.loss_scale))
    )
    with scope():
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(4, "relu", dtype="mixed_float16")]
        model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
        inner = keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=1.0, use_ema=True, ema_momentum=0.5)
        model.compile(
            LossScaleOptimizer(inner, initial_scale=16.0, dynamic_growth_steps=2),
            "mse",
            metrics=["mae"],
            jit_compile=jit_compile,
            steps_per_execution=steps,
        )
        keep_skips_whole(model)
        history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[seen]).history
    return model, history, scales


@pytest.mark.parametrize(("jit_compile", "steps"), [row for row in TABLE if row not in REFUSED])
def test_bad_batches_are_skipped_whole_and_the_scale_follows_the_rule(two_devices, jit_compile, steps):
    """It ends like a run of good batches: variables of the model and of the inner optimizer, loss and metrics."""
    model, history, scales = fitted(two_devices, BAD_X, Y, jit_compile, steps)
    reference = ReferenceScale(scale=16.0, growth_steps=2)
    assert scales == [step.scale_after for step in reference.run(PATTERN)][steps - 1 :: steps]
    counts = (int(model.optimizer.applied_steps), int(model.optimizer.skipped_steps))
    assert counts == (reference.applied, reference.skipped) == (5, 3)
    clean, clean_history, _ = fitted(two_devices, X[~IN_BAD], Y[~IN_BAD], BACKEND == "jax", 1)
    # XLA fuses another program in another way, and float16 gradients of halves of a batch are added up
    assert_same_variables(model, clean, rtol=2e-3, atol=1e-4)
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], clean_history[name], rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(("jit_compile", "steps"), REFUSED)
def test_what_keras_can_not_do_is_an_error_before_training(two_devices, jit_compile, steps):
    with pytest.raises(ValueError, match=r"Keras's `fit` on 2 replicas works with `(jit_compile|steps_per_execution)="):
        fitted(two_devices, X, Y, jit_compile, steps)
