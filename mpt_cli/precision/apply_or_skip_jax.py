"""Loss scaling on JAX, eagerly, under `jit` in a stateless scope, and as pure functions: gradients applied or skipped,
and one training step in which a skip is whole.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras

from mpt_cli.precision.gradient_check import GradientDefects, GradientMeasurement, Tensor, describe_gradients, unscale
from mpt_cli.precision.keras_internals import reading_values, updated_metrics
from mpt_cli.precision.optimizer import LossScaleOptimizer, Tensors
from mpt_cli.precision.scale_state import (
    StepRow,
    StepStart,
    index_of,
    next_values,
    row_of_step,
    row_since,
    start_of_step,
)
from mpt_cli.precision.train_step import (
    CustomSteps,
    ForwardOrder,
    Logs,
    assign,
    custom_steps,
    logs_of,
    own_train_step,
    packed,
    state_to_keep,
)


class StepGradients(NamedTuple):
    """Gradients, their variables, and their measurement.

    `measured` decides whether the step is applied; on several devices it must come from the global gradients.
    """

    values: Tensors
    variables: list[Any]
    measured: GradientMeasurement
    unscaled: bool = False
    loss: Tensor | None = None  # for a step log, if known
    defects: GradientDefects | None = None  # if they are described already


def cond(flag: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Call `jax.lax.cond` if `flag` is traced; branch in Python for a value, as cond would compile anew."""
    if isinstance(flag, jax.core.Tracer):
        return jax.lax.cond(flag, then, otherwise)
    return then() if flag else otherwise()


def cond_or_select(flag: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Choose as `cond` does, for the update of large arrays: compute both branches if that costs less.

    On a CPU it costs more: a weight would need its moments before and after the update at once, which takes copies of
    them (50,000 x 64 embedding in float16: 25 instead of 15 ms a step). On a GPU the choice is part of the kernel that
    computes the update, which has the values before it at hand; a branch returns every array by a copy of it, and the
    host waits for its condition (163 million parameters with AdamW: 602 copies of 3.9 GB a step, and 0.9 GB of memory).
    """
    if jax.default_backend() == "cpu" or not isinstance(flag, jax.core.Tracer):
        return cond(flag, then, otherwise)
    return jax.tree.map(lambda new, old: jnp.where(flag, new, old), then(), otherwise())


def apply(optimizer: LossScaleOptimizer, grads: Tensors, variables: list[Any], unscaled: bool) -> None:
    """Apply `grads` where they are finite, then move the scale.

    With traced values (a `keras.StatelessScope` inside `jax.jit`) the variables are read, mapped and assigned in that
    scope; Keras's own class leaks tracers out of its condition there. Eagerly the inner optimizer itself assigns them,
    of sparse gradients only the rows.
    """
    measured = optimizer.measure(grads, variables, unscaled)
    gradients = StepGradients(grads, variables, measured, unscaled)
    if isinstance(measured.finite, jax.core.Tracer):
        own, values = optimizer.variables, [v.value for v in variables]
        new_values, new_own = stateless_apply(optimizer, [v.value for v in own], gradients, values)
        assign([*variables, *own], [*new_values, *new_own])
        return
    state, log = optimizer.scale_state, optimizer.step_log
    assert state is not None
    start = None if log is None else start_of_step(optimizer)
    applied = bool(optimizer.applies(measured.finite))
    if applied:
        optimizer.apply_inner(grads, variables, unscaled)
    state.advance(measured, applied)
    if log is not None and start is not None:
        assign(log.variables, _next_log(optimizer, start, [v.value for v in log.variables], gradients))


def _next_log(optimizer: LossScaleOptimizer, start: StepStart, log: Tensors, gradients: StepGradients) -> Tensors:
    """Return the values of the step log after a step, in the scope of the variables after it."""
    defects = gradients.defects or describe_gradients(gradients.values, gradients.measured, cond)
    defects = defects._replace(nearest=index_of(defects.nearest, gradients.variables, optimizer))
    assert optimizer.step_log is not None
    optimizer.step_log.tells_loss &= gradients.loss is not None
    row = row_of_step(optimizer, start, gradients.loss, (gradients.measured.finite, *defects))
    slot = start.seen % log[0].shape[0]
    return [values.at[slot].set(part) for values, part in zip(log, row, strict=True)]


def stateless_apply(
    optimizer: LossScaleOptimizer, optimizer_values: Tensors, gradients: StepGradients, values: Tensors
) -> tuple[Tensors, Tensors]:
    """Return new values of `gradients.variables`, which have `values`, and of `optimizer.variables`."""
    state = optimizer.scale_state
    assert state is not None
    own, rest = optimizer_values[: len(state.variables)], optimizer_values[len(state.variables) :]
    count = len(optimizer.inner_optimizer.variables)
    inner, logged = rest[:count], rest[count:]
    own_by_name = dict(zip(state.by_name, own, strict=True))
    scale, variables, measured = own_by_name["scale"], gradients.variables, gradients.measured

    def use() -> tuple[Tensors, Tensors]:
        grads, slots = gradients.values, inner
        if not optimizer.scales and gradients.defects is not None:
            slots = _after_description(inner, gradients.defects)
        if not gradients.unscaled:
            grads = unscale(grads, variables, scale if optimizer.scales else None)
        trained = optimizer.inner_optimizer
        mapping = [*zip(variables, values, strict=True), *zip(trained.variables, slots, strict=True)]
        given = {id(v) for v in variables}
        # moving averages read all
        mapping += [(v, v.value) for v in optimizer.trained_variables if id(v) not in given]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            trained.apply(grads, variables)
        read = scope.get_current_value
        return list(map(read, variables)), list(map(read, trained.variables))

    if not optimizer.scales:
        (new_values, new_inner), applied = use(), measured.finite | True
    else:
        applied = measured.finite
        new_values, new_inner = cond_or_select(applied, use, lambda: (list(values), list(inner)))
    new_own = next_values(state.rule, own_by_name, measured, applied)
    after = [new_own[name] for name in state.by_name] + new_inner
    if logged:
        with reading_values(optimizer.variables, optimizer_values):
            start = start_of_step(optimizer)
        with reading_values(optimizer.variables, [*after, *logged]):
            after += _next_log(optimizer, start, logged, gradients)
    return new_values, after


def _after_description(inner_values: Tensors, defects: GradientDefects) -> Tensors:
    """Return the same values, with a learning rate and step count that depend on the description of the gradients.

    This shows XLA that nothing reads a weight or a gradient after its update, so that it updates in place. Otherwise a
    loop on a CPU copies them in each step, which made it slower than Keras's `fit` (50,000 x 64 embedding: 14.4 instead
    of 10.6 CPU milliseconds a step). If a step may be skipped, the condition has the same effect.
    """
    known = defects.nearest >= -1  # always, which XLA does not know
    return [jnp.where(known, value, jnp.zeros_like(value)) if jnp.ndim(value) == 0 else value for value in inner_values]


class TrainState(NamedTuple):
    """The values of a model's variables, each in the order of the model's own list."""

    trainable: Tensors
    non_trainable: Tensors
    optimizer: Tensors
    metrics: Tensors


def train_step(model: Any, state: TrainState, data: Any) -> tuple[Logs, TrainState, StepRow]:
    """Train one batch; return the metrics so far, the new state and the record of the step.

    If the examples are split over devices, XLA adds up their gradients in the dtype of each layer, so that a sum beyond
    float16 on one device is also beyond it on several. The decision uses the sum, so it is the same on all devices.
    """
    if (custom := own_train_step(model)) is not None:
        return _custom_train_step(model, custom, state, data)
    weights, frozen, own, metrics = state
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    optimizer = model.optimizer
    with reading_values(optimizer.variables, own):
        start = start_of_step(optimizer)

    gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    order = ForwardOrder(model)
    with order.noted():
        (_, (loss, y_pred, new_frozen, new_metrics)), grads = gradient(
            weights, frozen, metrics, x, y, weight, training=True, optimizer_variables=own
        )
    with reading_values(optimizer.variables, own):
        measured = optimizer.measure(grads, model.trainable_variables)
    finite = measured.finite
    defects = describe_gradients(grads, measured, cond, order.ranks(model.trainable_variables))
    gradients = StepGradients(grads, model.trainable_variables, measured, loss=loss, defects=defects)
    new_weights, new_own = stateless_apply(optimizer, own, gradients, weights)
    with reading_values(optimizer.variables, own):
        applied = optimizer.applies(finite)
    new_frozen = _kept_where(applied, model, frozen, new_frozen)

    def update_metrics() -> Tensors:
        return updated_metrics(model, new_metrics, loss, (x, y, weight), y_pred)

    new_metrics = cond_or_select(applied, update_metrics, lambda: list(metrics))
    with reading_values(optimizer.variables, new_own):
        row = row_of_step(optimizer, start, loss, (finite, *defects))
    with reading_values(model.metrics_variables, new_metrics):
        logs = logs_of(model, loss)
    return logs, TrainState(new_weights, new_frozen, new_own, new_metrics), row


def _kept_where(applied: Tensor, model: Any, before: Tensors, after: Tensors) -> Tensors:
    kept = {id(variable) for variable in state_to_keep(model)}
    return [
        jnp.where(applied, new, old) if id(variable) in kept else new
        for variable, old, new in zip(model.non_trainable_variables, before, after, strict=True)
    ]


def _custom_train_step(
    model: Any, custom: CustomSteps, state: TrainState, data: Any
) -> tuple[Logs, TrainState, StepRow]:
    """Run the model's own stateless train_step; if its optimizer skipped, put back all that is not the optimizer's.

    `state.metrics` ends with `custom.variables`.
    """
    optimizer, count = model.optimizer, len(model.metrics_variables)
    metrics, logged = state.metrics[:count], state.metrics[count:]
    with reading_values(optimizer.variables, state.optimizer):
        start = start_of_step(optimizer)
    given = (state.trainable, state.non_trainable, state.optimizer, metrics)
    logs, new_state = model.train_step(tuple(list(part) for part in given), packed(data))
    new = TrainState(*(list(part) for part in new_state))
    with reading_values(optimizer.variables, new.optimizer):
        values = custom.train_values(logs)
        row = row_since(optimizer, start, values[0])
    applied = row.applied(not optimizer.scales)
    pairs = zip([*new.metrics, values], [*metrics, logged[0]], strict=True)
    new_metrics = [jnp.where(applied, after, before) for after, before in pairs]
    frozen = _kept_where(applied, model, state.non_trainable, new.non_trainable)
    return logs, new._replace(non_trainable=frozen, metrics=[*new_metrics, *logged[1:]]), row


def test_step(model: Any, state: tuple[Tensors, Tensors, Tensors], data: Any) -> Tensors:
    """Return the metrics after a test_step of the model, followed by `CustomSteps.variables`, if any."""
    weights, frozen, metrics = state
    custom, count = custom_steps(model), len(model.metrics_variables)
    if custom is None or not custom.test_names:
        _, (_, _, new) = model.test_step((weights, frozen, metrics[:count]), data)
        return [*new, *metrics[count:]]
    logs, (_, _, new) = model.test_step((weights, frozen, metrics[:count]), packed(data))
    return [*new, metrics[count], custom.test_values(logs)]


def trace(model: Any, step: Callable[..., Any], batch: Any, with_optimizer: bool) -> Any:
    """Return the shapes and dtypes that a stateless step of a model returns for a batch like this.

    Raises ValueError unless it returns (logs, state) with as many parts of the state as it was given.
    """
    parts = [model.trainable_variables, model.non_trainable_variables, model.metrics_variables]
    if with_optimizer:
        parts.insert(2, model.optimizer.variables)
    given = tuple([jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in variables] for variables in parts)
    spec = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jax.dtypes.canonicalize_dtype(a.dtype)), packed(batch))
    result: Any = jax.eval_shape(step, given, spec)
    if not (isinstance(result, tuple) and len(result) == 2 and len(result[1]) == len(given)):
        raise ValueError(f"must return its logs and a state of {len(given)} parts, as Keras's does on JAX.")
    return result[0]
