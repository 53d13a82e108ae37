"""What tf.keras documents of its LossScaleOptimizer, as written there, and what forgetting a part of it says."""

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on

from mpt_cli.precision import LossScaleOptimizer

pytestmark = only_on("tensorflow")
if BACKEND == "tensorflow":
    import tensorflow as tf


def test_unscaled_gradients_may_be_clipped_and_reordered_and_applied_in_parts():
    opt, a, b = LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0), tf.Variable(1.0), tf.Variable(1.0)
    opt.build([a, b])
    with tf.GradientTape() as tape:
        scaled = opt.get_scaled_loss(3.0 * a + 5.0 * b)
    grads = opt.get_unscaled_gradients(tape.gradient(scaled, [a, b]))
    grads = [tf.clip_by_value(g, -4.0, 4.0) for g in grads]
    opt.apply_gradients([(grads[1], b)])
    opt.apply_gradients([(grads[0], a)])
    assert (a.numpy(), b.numpy()) == (-2.0, -3.0)


def test_scaled_gradients_are_divided_once_although_unscaled_ones_were_logged():
    """Some were None, so that those asked about and those applied do not stand in the same places."""
    opt, a, b = LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0), tf.Variable(1.0), tf.Variable(1.0)
    opt.build([a, b])
    with tf.GradientTape() as tape:
        scaled = opt.get_scaled_loss(3.0 * b)
    grads = tape.gradient(scaled, [a, b])
    assert [float(g) for g in opt.get_unscaled_gradients([g for g in grads if g is not None])] == [3.0]
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        opt.apply_gradients(zip(grads, [a, b], strict=True))
    assert (a.numpy(), b.numpy()) == (1.0, -2.0)


def test_gradients_divided_by_the_scale_by_hand_are_not_divided_again():
    """As tf.keras documents it beside `get_unscaled_gradients`."""
    opt, var = LossScaleOptimizer(keras.optimizers.SGD(0.5), dynamic=False, initial_scale=8.0), tf.Variable(4.0)
    with tf.GradientTape() as tape:
        scaled = opt.get_scaled_loss(2.0 * var)
    opt.apply_gradients([(tape.gradient(scaled, var) / opt.loss_scale, var)])
    assert (var.numpy(), int(opt.applied_steps), int(opt.skipped_steps)) == (3.0, 1, 0)


def test_fit_divides_after_gradients_were_unscaled_by_hand():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    opt = LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=8.0)
    model.compile(opt, "mae", run_eagerly=True)
    opt.build(model.trainable_variables)
    opt.get_unscaled_gradients([opt.get_scaled_loss(1.0)])
    model.fit(np.ones((1, 1)), np.zeros((1, 1)), verbose=0)
    assert model.get_weights()[0].item() == 0.5
