"""Step by step the same as `tf_keras.mixed_precision.LossScaleOptimizer`: scale, counter and weights."""

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import LossScaleOptimizer

pytestmark = only_on("tensorflow")
# tf.keras has the factors built in, a floor of 1, and no ceiling but that an inf scale is not assigned
TF_KERAS_BOUNDS = {"min_scale": 1.0, "max_scale": 2.0**126}
STEPS = 1000


def bad_steps(share: float, seed: int):
    """0 for a finite step, else inf, -inf or nan; bad steps come in runs as well as alone."""
    random = np.random.default_rng(seed)
    bad = random.random(STEPS) < share
    bad |= np.roll(bad, 1) & (random.random(STEPS) < 0.3)
    return np.where(bad, random.choice(np.float32([np.inf, -np.inf, np.nan]), STEPS), np.float32(0.0))


def trajectory(optimizer, variable, additions: np.ndarray):
    """(scale, counter, both weights) after each step of minimising a noisy parabola, in one compiled loop."""
    import tensorflow as tf

    targets = tf.constant(np.random.default_rng(7).normal(size=(STEPS, 2)).astype("float32"))
    additions = tf.constant(additions)
    optimizer.build([variable])

    @tf.function
    def run():
        rows = tf.TensorArray(tf.float32, STEPS)
        for i in tf.range(STEPS):
            with tf.GradientTape() as tape:
                scaled = optimizer.get_scaled_loss(tf.reduce_sum((variable - targets[i]) ** 2))
            [gradient] = optimizer.get_unscaled_gradients(tape.gradient(scaled, [variable]))
            optimizer.apply_gradients([(gradient + additions[i], variable)])
            counter = -1 if optimizer.dynamic_counter is None else optimizer.dynamic_counter
            state = [optimizer.loss_scale, tf.cast(counter, tf.float32)]
            rows = rows.write(i, tf.concat([state, variable], axis=0))
        return rows.stack()

    return run().numpy()


@pytest.mark.slow
@pytest.mark.parametrize(("share", "initial_scale", "growth_steps"), [(0.3, 2.0**15, 3), (0.6, 4.0, 2)])
def test_dynamic_scales_counters_and_weights_are_equal_at_every_step(share, initial_scale, growth_steps):
    """`iterations` is left by a skipped step, as in Keras 3."""
    import tensorflow as tf
    import tf_keras

    additions, arguments = bad_steps(share, seed=growth_steps), (True, initial_scale, growth_steps)
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.experimental.SGD(0.03, momentum=0.9), *arguments
    )
    ours = LossScaleOptimizer(keras.optimizers.SGD(0.03, momentum=0.9), *arguments, **TF_KERAS_BOUNDS)
    expected = trajectory(theirs, tf.Variable([1.0, -1.0]), additions)
    found = trajectory(ours, tf.Variable([1.0, -1.0]), additions)
    np.testing.assert_array_equal(found, expected)
    assert int(ours.skipped_steps) == np.count_nonzero(~np.isfinite(additions))
    assert int(ours.applied_steps) == np.count_nonzero(np.isfinite(additions))
    assert int(theirs.iterations) == STEPS
    assert int(ours.iterations) == int(ours.applied_steps)
