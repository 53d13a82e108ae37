"""One table: 1 and 2 replicas, jit off and on, one and several steps per execution, on the backend of this process.

In each row a batch that is bad on one replica is skipped on all of them, and whole: `fit` ends as if it had been
absent, and the scale moves as the rule in plain Python says.
"""

import contextlib

import keras
import numpy as np
import pytest
from backends import BACKEND, ScalesInFit
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
TABLE = [(replicas, jit, steps) for replicas in (1, 2) for jit in (False, True) for steps in (1, 4)]
RULE = {"initial_scale": 16.0, "dynamic_growth_steps": 2}


# What Keras's `fit` can't do with any optimizer: see the test at the end.
REFUSED = [row for row in TABLE if BACKEND == "tensorflow" and row[0] == 2 and row != (2, False, 1)]
CLEAN: dict = {}  # a run without the bad batches for each number of devices: all rows must end like it


@pytest.fixture
def replicated(request):
    """What puts a model on one device or on two."""

    def scope(replicas: int):
        if replicas == 1:
            return contextlib.nullcontext()
        if BACKEND == "tensorflow":
            return request.getfixturevalue("strategy").scope()
        devices = keras.distribution.list_devices()
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False).scope()

    return scope


def fitted(scope, x, y, jit_compile: bool, steps: int):
    keras.utils.set_random_seed(0)
    scales = ScalesInFit()
    with scope:
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(4, "relu", dtype="mixed_float16")]
        model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
        inner = keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=1.0, use_ema=True, ema_momentum=0.5)
        model.compile(LossScaleOptimizer(inner, **RULE), "mse", metrics=["mae"], jit_compile=jit_compile,
                      steps_per_execution=steps)  # fmt: skip
        keep_skips_whole(model)
        history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[scales]).history
    return model, history, scales.loss_scale


def check_absent(found, replicated, replicas) -> None:
    """It ended like a run of good batches: variables of the model and of the inner optimizer, loss and metrics."""
    if BACKEND == "jax":
        replicas = 1  # there BatchNormalization sees the whole batch, under MirroredStrategy each replica its half
    if replicas not in CLEAN:
        CLEAN[replicas] = fitted(replicated(replicas), X[~IN_BAD], Y[~IN_BAD], BACKEND == "jax", 1)
    (model, history, _), (clean, clean_history, _) = found, CLEAN[replicas]
    for one, other in zip([*model.variables, *model.optimizer.inner_optimizer.variables],
                          [*clean.variables, *clean.optimizer.inner_optimizer.variables], strict=True):  # fmt: skip
        one, other = keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other)
        # XLA fuses another program in another way, and float16 gradients of halves of a batch are added up
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], clean_history[name], rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(("replicas", "jit_compile", "steps"), [row for row in TABLE if row not in REFUSED])
def test_bad_batches_are_skipped_whole_and_the_scale_follows_the_rule(replicated, replicas, jit_compile, steps):
    found = fitted(replicated(replicas), BAD_X, Y, jit_compile, steps)
    reference = ReferenceScale(scale=16.0, growth_steps=2)
    scales = [step.scale_after for step in reference.run(PATTERN)]
    assert found[2] == scales[steps - 1 :: steps]
    optimizer = found[0].optimizer
    counts = (int(optimizer.applied_steps), int(optimizer.skipped_steps))
    assert counts == (reference.applied, reference.skipped) == (5, 3)
    check_absent(found, replicated, replicas)


@pytest.mark.parametrize(("replicas", "jit_compile", "steps"), REFUSED)
def test_what_keras_can_not_do_is_an_error_before_training(replicated, replicas, jit_compile, steps):
    with pytest.raises(ValueError, match=r"Keras's `fit` on 2 replicas works with `(jit_compile|steps_per_execution)="):
        fitted(replicated(replicas), X, Y, jit_compile, steps)
