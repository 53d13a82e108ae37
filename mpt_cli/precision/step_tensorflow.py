"""One training step on TensorFlow in which a skip is whole."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses.loss import unscale_loss_for_distribution  # what Keras's own train_step uses

from mpt_cli.precision import apply_tensorflow
from mpt_cli.precision.finite import describe_gradients
from mpt_cli.precision.step import StepRecord, metrics_of, state_to_keep

Tensor = Any


def train_step(model: Any, data: Any) -> tuple[dict[str, Tensor], StepRecord]:
    """Forward, backward, and either an update with metrics or nothing at all.

    Keras updates BatchNormalization's statistics in the forward pass and metrics whether or not the gradients are
    finite. Here the former are put back and the latter left alone when the step is skipped.
    """
    _build(model, data)
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
    measured = optimizer.measure(grads, variables)
    finite = apply_tensorflow.all_replicas(measured.finite)
    apply_tensorflow.apply(optimizer, grads, variables, unscaled=False, measured=measured)
    true_loss = unscale_loss_for_distribution(loss)

    def update_metrics() -> None:
        model._loss_tracker.update_state(true_loss, sample_weight=_batch_size(x))
        model.compute_metrics(x, y, y_pred, sample_weight=weight)

    if optimizer.on_overflow == "apply":
        update_metrics()
    else:
        _update_or_put_back(finite, update_metrics, kept, before)
    detail = describe_gradients(grads, measured._replace(finite=finite), tf.cond)
    record = StepRecord(tf.cast(true_loss, tf.float32), scale, optimizer.loss_scale, rate, finite,
                        optimizer.scale_state.counter.value, detail)
    return metrics_of(model), record


def _build(model: Any, data: Any) -> None:
    """Create all variables before the step looks at them: subclassed models have none before their first batch."""
    parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss, model.optimizer]
    if all(part is None or part.built for part in parts):
        return
    with tf.init_scope():
        model._symbolic_build(data_batch=data)


def _update_or_put_back(
    finite: Tensor, update_metrics: Callable[[], None], kept: list[Any], before: list[Tensor]
) -> None:
    """Metrics of an applied step, or state as it was; on several replicas nothing can be assigned in a condition."""
    inside = tf.distribute.get_strategy().num_replicas_in_sync == 1

    def applied() -> Tensor:
        update_metrics()
        return tf.constant(0)

    def skipped() -> Tensor:
        if inside:
            _assign(kept, before)
        return tf.constant(0)

    tf.cond(finite, applied, skipped)
    if not inside:
        _assign(kept, [tf.where(finite, v, old) for v, old in zip(kept, before, strict=True)])


def _assign(variables: list[Any], values: list[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _batch_size(x: Any) -> Tensor:
    return tf.shape(next(part for part in tf.nest.flatten(x) if part is not None))[0]
