"""A step that computes no gradients is the user's fault, told with its line and what to look for."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import mpt_cli as mpt
from mpt_cli.errors import ConfigError

X = np.linspace(-1, 1, 64 * 4, dtype="float32").reshape(64, 4)
ON_JAX = keras.backend.backend() == "jax"
RULE = r"^model: the loss must depend on the weights that are trained: each of their gradients is None"


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class StopsInStep(Plain):
    """Without a gradient in its own step."""

    if ON_JAX:

        def train_step(self, state, data):
            weights, others, optimizer, metrics = state
            weights, optimizer = self.optimizer.stateless_apply(optimizer, [None] * len(weights), weights)
            return {"loss": ops.mean(data[0])}, (weights, others, optimizer, metrics)

    else:

        def train_step(self, data):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.stop_gradient(self(data[0])))
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            return {"loss": loss}


class StopsInCall(Plain):
    def call(self, x):
        return ops.stop_gradient(self.dense(x))


def fit(model, folder):
    model.compile("sgd", "mse")
    mpt.fit(model, X, X[:, :1], run_dir=folder / "r", settings={"logger": {"console": "quiet"}})


def test_an_own_step_is_told_by_its_line(tmp_path):
    with pytest.raises(ConfigError, match=RULE + r" \(test_no_gradients\.py, line \d+, in train_step\)\. Look for a "):
        fit(StopsInStep(), tmp_path)


@pytest.mark.skipif(ON_JAX, reason="JAX's gradients of nothing are zeros, and the verdict tells them")
def test_a_call_without_gradients_is_told(tmp_path):
    with pytest.raises(ConfigError, match=RULE + r"\. Look for a loss computed outside of the tape"):
        fit(StopsInCall(), tmp_path)
