"""Step by step the same as `tf_keras.mixed_precision.LossScaleOptimizer`: scale, counter and weights."""

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import LossScaleOptimizer

pytestmark = only_on("tensorflow")
# tf.keras has the factors built in, a floor of 1, and no ceiling but that an inf scale is not assigned
TF_KERAS_BOUNDS = {"min_scale": 1.0, "max_scale": 2.0**126}
STEPS = 300
RANDOM = np.random.default_rng(7)
TARGETS = RANDOM.normal(size=(STEPS, 2)).astype("float32")
BAD = RANDOM.choice(np.float32([0.0, np.inf, -np.inf, np.nan]), STEPS, p=[0.7, 0.1, 0.1, 0.1])


def trajectory(optimizer) -> list[list[float]]:
    """Scale, counter and both weights after each step of minimising a noisy parabola."""
    import tensorflow as tf

    variable, rows = tf.Variable([1.0, -1.0]), []
    optimizer.build([variable])
    for target, addition in zip(TARGETS, BAD, strict=True):
        with tf.GradientTape() as tape:
            scaled = optimizer.get_scaled_loss(tf.reduce_sum((variable - target) ** 2))
        [gradient] = optimizer.get_unscaled_gradients(tape.gradient(scaled, [variable]))
        optimizer.apply_gradients([(gradient + addition, variable)])
        rows.append([float(optimizer.loss_scale), float(optimizer.dynamic_counter), *variable.numpy().tolist()])
    return rows


@pytest.mark.slow
def test_dynamic_scales_counters_and_weights_are_equal_at_every_step():
    """`iterations` is left by a skipped step, as in Keras 3."""
    import tf_keras

    theirs = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.experimental.SGD(0.03, momentum=0.9), True, 2.0**15, 3
    )
    ours = LossScaleOptimizer(keras.optimizers.SGD(0.03, momentum=0.9), True, 2.0**15, 3, **TF_KERAS_BOUNDS)
    assert trajectory(ours) == trajectory(theirs)
    assert int(ours.skipped_steps) == np.count_nonzero(BAD) and int(theirs.iterations) == STEPS
    assert int(ours.iterations) == int(ours.applied_steps) == STEPS - np.count_nonzero(BAD)
