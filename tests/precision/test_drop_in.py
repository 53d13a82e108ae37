"""A drop-in for `keras.optimizers.LossScaleOptimizer`: what Keras's own tests (`test_keras_suites.py`) miss."""

import keras
import numpy as np
import pytest
from backends import BACKEND

from mpt_cli.precision import LossScaleOptimizer


@pytest.mark.slow
@pytest.mark.parametrize(
    "jit_compile", [pytest.param(True, marks=pytest.mark.long), *([False] if BACKEND == "tensorflow" else [])]
)
def test_fit_trains_as_with_keras_s_class(jit_compile):
    """Bit for bit; compiled by XLA the two are different programs, with a few roundings of difference."""

    def trained(wrapper):
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, "relu", dtype="mixed_float16"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(wrapper(keras.optimizers.Adam(0.01), initial_scale=2.0**20), "mse", jit_compile=jit_compile)
        random = np.random.default_rng(0)
        x = random.normal(size=(64, 4)).astype("float32")
        model.fit(x, x[:, :1] * 8, batch_size=8, epochs=3, shuffle=False, verbose=0)
        return model

    ours, theirs = trained(LossScaleOptimizer), trained(keras.optimizers.LossScaleOptimizer)
    assert float(ours.optimizer.loss_scale) == float(theirs.optimizer.dynamic_scale.value)
    assert 0 < int(ours.optimizer.skipped_steps) < 12
    assert int(ours.optimizer.applied_steps) == int(theirs.optimizer.iterations.value)
    for found, expected in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=4e-6 if jit_compile else 0, atol=0)


@pytest.mark.slow
def test_callbacks_write_the_learning_rate_and_swap_moving_averages_in_fit():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
    model.compile(LossScaleOptimizer(inner), "mse", jit_compile=False)
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    ]
    history = model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=2, verbose=0, callbacks=callbacks)
    assert history.history["learning_rate"] == [0.25, 0.125]
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.125
    assert int(model.optimizer.applied_steps) == 2
