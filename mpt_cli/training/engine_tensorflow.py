"""The compiled loop on TensorFlow: a `tf.function` around a `tf.while_loop` over training steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from mpt_cli.precision.backend_tensorflow import train_step
from mpt_cli.precision.finite import all_finite
from mpt_cli.precision.keras_fit import StepRecord
from mpt_cli.telemetry.ledger import FLOAT_FIELDS, INT_FIELDS
from mpt_cli.telemetry.records import LoggedSteps, StopLimits
from mpt_cli.training.engine import (
    BatchIndices,
    Engine,
    LoopCall,
    LoopControl,
    StepWrapper,
    control_vector,
    metric_vector,
    update_streaks,
)
from mpt_cli.training.gradient_samples import compare_gradients, kept_gradients, pure_loss

Tensor = Any


class TensorFlowEngine(Engine):
    """See `engine.Engine`. With `jit_compile` the whole loop is one XLA program.

    Under a `strategy` each replica takes its share of the rows of a step.
    """

    def __init__(self, model: Any, jit_compile: bool, strategy: Any = None, around: StepWrapper | None = None) -> None:
        super().__init__(model)
        self.strategy, self.jit_compile = strategy, jit_compile
        self._step = around(train_step) if around else train_step
        self.recompile()
        self._evaluate = tf.function(self._evaluate_loop, jit_compile=jit_compile, autograph=False)
        self._gradients = tf.function(self._gradients_of, jit_compile=jit_compile, autograph=False)
        self._compare = tf.function(partial(compare_gradients, model), jit_compile=jit_compile, autograph=False)
        self._reset = tf.function(model.reset_metrics, autograph=False)  # eagerly, each variable is a call of its own
        self._results = tf.function(self._metric_vector, autograph=False)
        self._all_finite = tf.function(self._weights_all_finite, jit_compile=jit_compile, autograph=False)

    def recompile(self) -> None:
        self._train = tf.function(self._train_loop, jit_compile=self.jit_compile, autograph=False)

    def place(self, arrays: Any) -> Any:
        return tf.nest.map_structure(lambda a: None if a is None else tf.convert_to_tensor(a), arrays)

    def train(
        self,
        source: Any,
        rows: BatchIndices,
        count: int,
        lines: LoggedSteps = LoggedSteps(),  # noqa: B008
        watch: StopLimits = StopLimits(),  # noqa: B008
    ) -> LoopCall:
        order = tf.constant(control_vector(count, self._take_reset(), lines, watch))
        results = self._train(source, tf.convert_to_tensor(rows), order)
        self._latest = LoopCall(lines, self._names, *results)  # the first call finds the names
        return self._latest

    def _add_to_metrics(self, source: Any, rows: BatchIndices, count: int) -> None:
        self._evaluate(source, tf.convert_to_tensor(rows), tf.constant(count))

    def reset_metrics(self) -> None:
        super().reset_metrics()
        if self.strategy is not None:
            self._reset_now()  # on several replicas nothing can be assigned in a condition

    def _clear_metrics(self) -> None:
        self._reset()

    def _compute_metrics(self) -> Tensor:
        return self._results()

    def _check_weights(self) -> Tensor:
        return self._all_finite()

    def gradients(self, source: Any, row: Any, scale: float) -> list[Tensor]:
        return list(self._gradients(source, tf.convert_to_tensor(row), tf.constant(scale, tf.float32)))

    def compare(self, base: list[Tensor], raised: list[Tensor]) -> list[float]:
        return [float(value) for value in self._compare(base, raised).numpy()]

    def _gradients_of(self, source: Any, row: Tensor, scale: Tensor) -> list[Tensor]:
        """On several replicas those of the first, before they are added up: there they are flushed or not."""
        model = self.model

        def differentiate(source: Any, row: Tensor) -> list[Tensor]:
            lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
            state = tuple([tf.convert_to_tensor(v.value) for v in variables] for variables in lists)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(state[0])
                scaled = pure_loss(model, state, _batch(source, row)) * scale
            return kept_gradients(tape.gradient(scaled, state[0]), lists[0])

        return list(self._on_replicas(differentiate, source, row))

    def _train_loop(self, source: Any, rows: Tensor, order: Tensor) -> tuple[Any, Tensor, Tensor, Tensor]:
        orders = LoopControl.read(order)
        if self.strategy is None:
            tf.cond(orders.resets > 0, self._reset_metrics, lambda: tf.constant(0))
        latest = self._metric_vector()
        arrays = [
            tf.TensorArray(dtype, rows.shape[0], element_shape=shape)
            for dtype, shape in (
                (tf.float32, (len(FLOAT_FIELDS),)),
                (tf.int32, (len(INT_FIELDS),)),
                (tf.float32, latest.shape),
            )
        ]

        def body(i: Tensor, streaks: Tensor, *arrays: Any) -> tuple[Tensor, ...]:
            row = self._on_replicas(self._train_one, source, rows[i])
            metrics = tf.cond(orders.has_line(i + 1), self._metric_vector, lambda: tf.zeros_like(latest))
            written = [array.write(i, part) for array, part in zip(arrays, (*row, metrics), strict=True)]
            return i + 1, update_streaks(streaks, self.model.optimizer, *row), *written

        done, _, *arrays = tf.while_loop(lambda i, streaks, *_: orders.go_on(i, streaks), body,
                                         (tf.constant(0), orders.streaks, *arrays), parallel_iterations=1)
        return [array.stack() for array in arrays], done, self._metric_vector(), self._weights_all_finite()

    def _metric_vector(self) -> Tensor:
        results = self.model.get_metrics_result()
        self._names = [*results]
        return metric_vector(results)

    def _reset_metrics(self) -> Tensor:
        self.model.reset_metrics()
        return tf.constant(0)

    def _weights_all_finite(self) -> Tensor:
        return all_finite([variable.value for variable in self.model.trainable_variables])

    def _evaluate_loop(self, source: Any, rows: Tensor, count: Tensor) -> None:
        def body(i: Tensor) -> tuple[Tensor]:
            self._on_replicas(self._evaluate_one, source, rows[i])
            return (i + 1,)

        tf.while_loop(lambda i: i < count, body, (tf.constant(0),), parallel_iterations=1)

    def _train_one(self, source: Any, row: Tensor) -> tuple[Tensor, Tensor]:
        _, record = self._step(self.model, _batch(source, row))
        return _shared(_floats(record), _ints(record))

    def _evaluate_one(self, source: Any, row: Tensor) -> Tensor:
        self.model.test_step(_batch(source, row))
        return tf.constant(0)

    def _on_replicas(self, step: Callable[..., Any], source: Any, row: Tensor) -> Any:
        """The result of `step` on this batch; of several replicas that of the first, with mean losses and all nan
        and inf counted (`_shared` makes them equal)."""
        if self.strategy is None:
            return step(source, row)
        share = row.shape[0] // self.strategy.num_replicas_in_sync

        def on_replica() -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return step(source, row[replica * share : (replica + 1) * share])

        results = self.strategy.run(on_replica)
        return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], results)


def _batch(source: Any, rows: Tensor) -> Any:
    return tf.nest.map_structure(lambda a: None if a is None else tf.gather(a, rows), source)


def _shared(floats: Tensor, ints: Tensor) -> tuple[Tensor, Tensor]:
    """The record of the whole batch on every replica: mean of the losses, sum of nan and inf, first bad variable,
    whether the gradients of all were zero."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return floats, ints
    loss = context.all_reduce("mean", floats[0])
    gathered = context.all_gather(ints[None, 2:], axis=0)
    first = tf.reduce_max(gathered[:, 2])
    counts = tf.reduce_sum(gathered[:, :2], axis=0)
    zero = tf.reduce_min(gathered[:, 3])
    return tf.concat([[loss], floats[1:]], 0), tf.concat([ints[:2], counts, [first, zero]], 0)


def _floats(record: StepRecord) -> Tensor:
    return tf.stack([record.loss, record.scale_before, record.scale_after, record.learning_rate])


def _ints(record: StepRecord) -> Tensor:
    return tf.concat([[tf.cast(record.finite, tf.int32), record.counter], record.detail], axis=0)
