"""Loss scaling on TensorFlow, also under `tf.distribute` strategies: gradients applied or skipped, and one training
step in which a skip is whole.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from mpt_cli.precision.gradient_check import GradientDefects, GradientMeasurement, Tensor, describe_gradients, unscale
from mpt_cli.precision.keras_internals import (
    build_for_batch,
    lacks_variables,
    loss_tracker,
    predict_in_training,
    training_loss,
    unscale_loss_for_distribution,
)
from mpt_cli.precision.optimizer import LossScaleOptimizer
from mpt_cli.precision.scale_state import (
    StepRow,
    StepStart,
    index_of,
    row_of_step,
    row_since,
    start_of_step,
)
from mpt_cli.precision.train_step import (
    CustomSteps,
    ForwardOrder,
    Logs,
    assign,
    combine_rows,
    custom_steps,
    logs_of,
    own_train_step,
    packed,
    state_to_keep,
)


def apply(
    optimizer: LossScaleOptimizer,
    grads: list[Tensor],
    variables: list[Any],
    unscaled: bool,
    measured: GradientMeasurement | None = None,
    defects: GradientDefects | None = None,
) -> None:
    """Apply `grads` of this replica if those of all replicas are finite; then move the scale once.

    `measured` is `optimizer.measure` of this replica's gradients, and `defects` their description, if already known.
    Raises ValueError in a cross-replica context, and for gradient accumulation on several replicas.
    """
    if tf.distribute.in_cross_replica_context():
        raise ValueError("apply() must be called in a replica context.")
    context = tf.distribute.get_replica_context()
    check_accumulation(optimizer.inner_optimizer)
    measured = measured or optimizer.measure(grads, variables, unscaled)
    if context.num_replicas_in_sync > 1:
        grads = unscale(grads, variables, None)  # in float32: the inner optimizer adds up those of all replicas
    start = start_of_step(optimizer) if optimizer.step_log is not None else None
    loss = optimizer.take_noted_loss()  # before another replica is traced, which comes here with its own
    loss = loss if loss is None or is_readable(loss) else None
    own = measured
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        if context.num_replicas_in_sync > 1:
            largest = tf.reduce_max(context.all_gather(tf.reshape(measured.largest, [1]), axis=0))
            measured = GradientMeasurement(all_replicas(measured.finite), largest)
        _apply_inner_where(optimizer, measured, lambda: optimizer.apply_inner(grads, variables, unscaled))
    else:
        context.merge_call(_apply_on_replicas, args=(optimizer, grads, variables, measured, unscaled))
    if start is not None:
        defects = defects or describe_gradients(grads, own, tf.cond)
        defects = defects._replace(nearest=index_of(defects.nearest, variables, optimizer))
        _log_step(optimizer, start, loss, (own.finite, *defects))


def is_readable(tensor: Tensor) -> bool:
    """Return whether the present step can read this tensor, which another traced function may own."""
    is_eager = isinstance(tensor, tf.__internal__.EagerTensor)
    if tf.executing_eagerly():
        return is_eager
    return not is_eager and any(graph is tensor.graph for graph in _traced_graphs())


def _traced_graphs() -> Iterator[Any]:
    """Yield the graph that is being traced, and those that contain it, as that of a condition or loop is."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def _log_step(optimizer: LossScaleOptimizer, start: StepStart, loss: Tensor | None, found: Sequence[Tensor]) -> None:
    """Write a step to the log. Each of several replicas writes its copy; the reader combines them."""
    log = optimizer.step_log
    assert log is not None
    if loss is not None:
        loss = unscale_loss_for_distribution(loss)
    log.tells_loss &= loss is not None
    row = row_of_step(optimizer, start, loss, found)
    slot = start.seen % log.capacity
    for variable, part in zip(log.variables, row, strict=True):
        variable.value.scatter_update(tf.IndexedSlices(part[None], slot[None]))


def all_replicas(flag: Tensor) -> Tensor:
    """Return whether the boolean scalar `flag` is true on every replica; in replica context."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return flag
    return tf.equal(context.all_reduce("sum", tf.cast(tf.logical_not(flag), tf.float32)), 0.0)


def replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def is_for_xla() -> bool:
    """Return whether XLA is to compile what is being traced, by `jit_compile` of a function around it."""
    contexts = (graph._get_control_flow_context() for graph in _traced_graphs())
    return any(context is not None and context.IsXLAContext() for context in contexts)


def outside(make: Callable[[], Any]) -> Any:
    """Return `make()`, which makes variables, called outside of the function that is being traced.

    It runs in another thread, without a strategy to place variables: a function that makes variables is traced twice.
    """
    if tf.executing_eagerly():
        return make()
    if tf.distribute.has_strategy():
        with tf.init_scope():
            return make()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def build_outside(build: Callable[[], None], variables: list[Any]) -> None:
    """Call `build` outside of the function that is being traced, once for all replicas.

    Variables made inside are initialised by conditions around the whole first call, which can't contain the condition
    of the skip; variables made outside by the thread of a replica would not be mirrored. The function is then traced
    again, which is needed because the first trace holds the scale as a constant. If the model's `variables` are made in
    this trace, the optimizer's are too, as in Keras: outside they have no values yet, which optimizers such as
    ScheduleFreeAdamW begin with.
    """

    def build_for_all(strategy: Any) -> None:
        with tf.init_scope(), strategy.scope():
            build()

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        with nullcontext() if are_made_here(variables) else tf.init_scope():
            build()
    elif tf.__internal__.distribute.strategy_supports_no_merge_call():
        build()
    else:
        context.merge_call(build_for_all)


def are_made_here(variables: list[Any]) -> bool:
    """Return whether some variables are made in the function that is being traced, and have no values yet."""
    with tf.init_scope():
        return not all(bool(native(variable).is_initialized()) for variable in variables)


def native(variable: Any) -> Any:
    """Return TensorFlow's variable inside one of Keras's."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def check_accumulation(inner_optimizer: Any) -> None:
    """Raise ValueError for what Keras can't do: its accumulators are written inside a condition, in replica context."""
    steps, count = inner_optimizer.gradient_accumulation_steps, replicas()
    if steps and count > 1:
        raise ValueError(
            "`gradient_accumulation_steps` does not work on several replicas: Keras updates its "
            f"accumulators inside a condition. Received: gradient_accumulation_steps={steps} on "
            f"{count} replicas. Use a larger batch, or one replica."
        )


def _apply_on_replicas(
    strategy: Any,
    optimizer: LossScaleOptimizer,
    grads: list[Tensor],
    variables: list[Any],
    measured: GradientMeasurement,
    unscaled: bool,
) -> None:
    """Apply a step on all replicas or on none; in cross-replica context.

    Gradients are not reduced yet, so each replica has its own; deciding by those of the first one, as Keras does, lets
    an overflow of the second replica into every copy of the weights. The condition is in the cross-replica context,
    because TensorFlow allows no `merge_call`, which the inner optimizer makes, inside a condition in replica context.
    """
    finite, largest = (tf.stack(strategy.experimental_local_results(each)) for each in measured)
    of_all = GradientMeasurement(tf.reduce_all(finite), tf.reduce_max(largest))

    def apply_inner() -> None:
        strategy.extended.call_for_each_replica(optimizer.apply_inner, args=(grads, variables, unscaled))

    _apply_inner_where(optimizer, of_all, apply_inner)


def then_nothing(act: Callable[[], None]) -> Callable[[], Tensor]:
    """Return `act` as a branch of `tf.cond`, which must return a tensor."""

    def branch() -> Tensor:
        act()
        return tf.constant(0)

    return branch


def _apply_inner_where(
    optimizer: LossScaleOptimizer, measured: GradientMeasurement, apply_inner: Callable[[], None]
) -> None:
    state = optimizer.scale_state
    assert state is not None
    if not optimizer.scales:
        apply_inner()
        state.advance(measured, tf.constant(True))
    else:
        applied = measured.finite
        tf.cond(applied, then_nothing(apply_inner), then_nothing(lambda: None))
        state.advance(measured, applied)


def train_step(model: Any, data: Any) -> tuple[Logs, StepRow]:
    """Run forward and backward passes, then update weights and metrics, or change nothing at all.

    Keras updates BatchNormalization's statistics in the forward pass, and metrics, even if the gradients are not
    finite. Here a skipped step puts the statistics back and leaves the metrics alone.
    """
    if (custom := own_train_step(model)) is not None:
        return _custom_train_step(model, custom, data)
    if lacks_variables(model):  # a subclassed model before its first batch: the step looks at them
        with tf.init_scope():
            build_for_batch(model, data)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    optimizer, variables = model.optimizer, model.trainable_weights
    kept = [v.value for v in state_to_keep(model)]
    before = [tf.identity(v) for v in kept]
    start = start_of_step(optimizer)
    # several replicas are traced in threads that take turns and share the calls of layers
    order = ForwardOrder(model) if replicas() == 1 else None
    with tf.GradientTape() as tape:
        with nullcontext() if order is None else order.noted():
            y_pred = predict_in_training(model, x)
        loss = training_loss(model, x, y, y_pred, weight)
        scaled = optimizer.multiply_by_scale(loss)
    grads = tape.gradient(scaled, variables)
    measured = optimizer.measure(grads, variables)
    finite = all_replicas(measured.finite)
    applied = optimizer.applies(finite)
    ranks = None if order is None else order.ranks(variables)
    defects = describe_gradients(grads, measured._replace(finite=finite), tf.cond, ranks)
    apply(optimizer, grads, variables, unscaled=False, measured=measured, defects=defects)
    true_loss = unscale_loss_for_distribution(loss)

    def update_metrics() -> None:
        size = tf.shape(next(part for part in tf.nest.flatten(x) if part is not None))[0]
        loss_tracker(model).update_state(true_loss, sample_weight=size)
        model.compute_metrics(x, y, y_pred, sample_weight=weight)

    if not optimizer.scales:
        update_metrics()
    else:
        _update_or_put_back(applied, update_metrics, kept, before)
    return logs_of(model, true_loss), row_of_step(optimizer, start, true_loss, (finite, *defects))


def _update_or_put_back(
    is_applied: Tensor, update_metrics: Callable[[], None], kept: list[Any], before: list[Tensor]
) -> None:
    """Update the metrics of an applied step, or put the state back; replicas can assign nothing in a condition."""
    inside = replicas() == 1

    def put_back() -> None:
        if inside:
            assign(kept, before)

    tf.cond(is_applied, then_nothing(update_metrics), then_nothing(put_back))
    if not inside:
        assign(kept, [tf.where(is_applied, v, old) for v, old in zip(kept, before, strict=True)])


def _custom_train_step(model: Any, custom: CustomSteps, data: Any) -> tuple[Logs, StepRow]:
    """Run the model's own train_step; if one of its optimizers skipped, put back what they share."""
    kept = [v.value for v in (*custom.shared_state(model), *model.metrics_variables)]
    before = [tf.identity(v) for v in kept]
    starts = {name: start_of_step(optimizer) for name, optimizer in custom.optimizers.items()}
    logs = model.train_step(packed(data))
    values = custom.train_values(logs)
    row = combine_rows([row_since(optimizer, starts[name], values[0]) for name, optimizer in custom.optimizers.items()])
    applied = row.applied(not any(optimizer.scales for optimizer in custom.optimizers.values()))
    tf.cond(applied, lambda: tf.constant(0), then_nothing(lambda: assign(kept, before)))
    custom.train_log.assign(tf.where(applied, values, custom.train_log.value))
    return logs, row


def test_step(model: Any, data: Any) -> None:
    """Run the model's test_step, and note its result if the model reports its own."""
    custom = custom_steps(model)
    if custom is None or not custom.test_names:
        model.test_step(data)
    else:
        custom.test_log.assign(custom.test_values(model.test_step(packed(data))))


def trace(model: Any, step: Callable[[Any], Any], batch: Any, with_optimizer: bool) -> Any:
    """Return the symbolic result of a step of a model for a batch like this; JAX needs to know `with_optimizer`."""
    spec = tf.nest.map_structure(
        lambda a: None if a is None else tf.TensorSpec(a.shape, tf.as_dtype(keras.backend.standardize_dtype(a.dtype))),
        packed(batch),
    )
    result: list[Any] = []
    tf.function(lambda data: result.append(step(data)), autograph=False).get_concrete_function(spec)
    return result[0]
