"""One training step on TensorFlow in which a skip is whole."""

from typing import Any

import keras
import tensorflow as tf
from keras.src.losses.loss import unscale_loss_for_distribution  # what Keras's own train_step uses

from mpt_cli.precision.finite import describe_non_finite
from mpt_cli.precision.step import StepRecord, state_to_keep

Tensor = Any


def train_step(model: Any, data: Any) -> tuple[dict[str, Tensor], StepRecord]:
    """Forward, backward, and either an update with metrics or nothing at all.

    Keras updates BatchNormalization's statistics in the forward pass and metrics whether or not the gradients are
    finite. Here the former are put back and the latter left alone when the step is skipped.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    optimizer, variables = model.optimizer, model.trainable_weights
    kept = [v.value for v in state_to_keep(model)]
    before = [tf.identity(v) for v in kept]
    scale, rate = optimizer.loss_scale, tf.cast(optimizer.learning_rate, tf.float32)
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=True)
        scaled = optimizer.scale_loss(loss)
    grads = tape.gradient(scaled, variables)
    finite = _finite_on_all_replicas(optimizer.check_finite(grads))
    optimizer.apply_gradients(zip(grads, variables, strict=True))
    true_loss = unscale_loss_for_distribution(loss)

    def applied() -> Tensor:
        size = tf.shape(tf.nest.flatten(x)[0])[0]
        model._loss_tracker.update_state(true_loss, sample_weight=size)
        model.compute_metrics(x, y, y_pred, sample_weight=weight)
        return tf.constant([0, 0, -1])

    def skipped() -> Tensor:
        for variable, value in zip(kept, before, strict=True):
            variable.assign(value)
        return describe_non_finite(grads)

    def applied_as_it_is() -> Tensor:
        applied()
        return describe_non_finite(grads)

    otherwise = applied_as_it_is if optimizer.on_overflow == "apply" else skipped
    detail = tf.cond(finite, applied, otherwise)
    record = StepRecord(tf.cast(true_loss, tf.float32), scale, optimizer.loss_scale, rate, finite,
                        optimizer.scale_state.counter.value, detail)
    return model.get_metrics_result(), record


def _finite_on_all_replicas(finite: Tensor) -> Tensor:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return finite
    return tf.equal(context.all_reduce("sum", tf.cast(tf.logical_not(finite), tf.float32)), 0.0)
