"""One training step on JAX in which a skip is whole, as a pure function of the state."""

from typing import Any

import jax
import jax.numpy as jnp
import keras

from mpt_cli.precision import apply_jax
from mpt_cli.precision.finite import describe_gradients
from mpt_cli.precision.step import StepRecord, metrics_of, state_to_keep

Tensor = Any
State = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def train_step(model: Any, state: State, data: Any) -> tuple[dict[str, Tensor], State, StepRecord]:
    """New state after one batch; `state` holds the values of the trainable, non-trainable, optimizer and metric
    variables, in the order of the model's own lists."""
    weights, frozen, own, metrics = state
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    optimizer = model.optimizer
    with _scope(optimizer.variables, own):
        scale, rate = optimizer.loss_scale, jnp.asarray(optimizer.learning_rate, "float32")
    gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    (_, (loss, y_pred, new_frozen, new_metrics)), grads = gradient(
        weights, frozen, metrics, x, y, weight, training=True, optimizer_variables=own
    )
    measured = optimizer.measure(grads, model.trainable_variables)
    finite = measured.finite
    gradients = apply_jax.Gradients(grads, model.trainable_variables, measured)
    new_weights, new_own = apply_jax.stateless_apply(optimizer, own, gradients, weights)
    applied = jnp.logical_or(finite, optimizer.on_overflow == "apply")
    new_frozen = _kept_where(applied, model, frozen, new_frozen)

    def update_metrics() -> list[Tensor]:
        return list(model._update_metrics_variables(new_metrics, loss, x, y, y_pred, weight)[1])

    new_metrics = apply_jax.cond(applied, update_metrics, lambda: list(metrics))
    detail = describe_gradients(grads, measured, apply_jax.cond)
    with _scope(optimizer.variables, new_own):
        scale_after, counter = optimizer.loss_scale, optimizer.scale_state.counter.value
    with _scope(model.metrics_variables, new_metrics):
        logs = metrics_of(model)
    record = StepRecord(jnp.asarray(loss, "float32"), scale, scale_after, rate, finite, counter, detail)
    return logs, (new_weights, new_frozen, new_own, new_metrics), record


def _scope(variables: list[Any], values: list[Tensor]) -> Any:
    return keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True)))


def _kept_where(applied: Tensor, model: Any, before: list[Tensor], after: list[Tensor]) -> list[Tensor]:
    kept = {id(variable) for variable in state_to_keep(model)}
    return [
        jnp.where(applied, new, old) if id(variable) in kept else new
        for variable, old, new in zip(model.non_trainable_variables, before, after, strict=True)
    ]
