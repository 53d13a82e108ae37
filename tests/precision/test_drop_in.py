"""A drop-in for `keras.optimizers.LossScaleOptimizer`: what Keras's own tests (`test_keras_suites.py`) miss."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import LossScaleOptimizer


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
