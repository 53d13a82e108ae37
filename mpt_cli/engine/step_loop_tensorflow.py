"""The compiled loop on TensorFlow: a `tf.function` around a `tf.while_loop` over training steps."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mpt_cli.engine.step_loop import (
    BatchIndices,
    Engine,
    LoopControl,
    LoopResult,
    StepWrapper,
    row_lengths,
    update_streaks,
)
from mpt_cli.precision.apply_or_skip_tensorflow import test_step, train_step
from mpt_cli.precision.scale_state import StepRow, combined_ints
from mpt_cli.precision.train_step import metrics_of, optimizers_of

Tensor = Any


class TensorFlowEngine(Engine):
    """See `engine.Engine`. With `jit_compile` the whole loop is one XLA program.

    Under a `strategy` each replica takes its share of the rows of a step.
    """

    def __init__(
        self, model: Any, jit_compile: bool, strategy: Any = None, step_wrapper: StepWrapper | None = None
    ) -> None:
        super().__init__(model, jit_compile)
        self.strategy = strategy
        self.replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        self._step = step_wrapper(train_step) if step_wrapper else train_step
        self.rebuild()

    def rebuild(self) -> None:
        self._compiled.clear()
        self._train = self._compile(self._train_loop, self._takes_any_length and not self.trains_in_whole_batches)
        self._evaluate = self._compile(self._evaluate_loop, self._takes_any_length)
        # eagerly each operation takes far longer
        self._results = tf.function(lambda: metrics_of(self.model), autograph=False)

    def _compile(self, loop: Callable[..., Any], one_for_all: bool) -> Any:
        return tf.function(loop, jit_compile=self.jit_compile, autograph=False, reduce_retracing=one_for_all)

    def to_device(self, arrays: Any) -> Any:
        return tf.nest.map_structure(lambda each: None if each is None else tf.convert_to_tensor(each), arrays)

    def _run_training(self, source: Any, batch_indices: BatchIndices, control: LoopControl) -> LoopResult:
        last = tf.nest.map_structure(tf.constant, control)
        if not self.trains_in_whole_batches:  # else a program for that length: a step of a small CNN takes 7 % less
            self._trace(self._train, source, last)
        result: LoopResult = self._train(source, tf.convert_to_tensor(batch_indices), last)
        return result

    def _add_to_metrics(self, source: Any, batch_indices: BatchIndices, count: int) -> None:
        last = tf.constant(count)
        self._trace(self._evaluate, source, last)
        int(self._evaluate(source, tf.convert_to_tensor(batch_indices), last))

    def _trace(self, loop: Any, source: Any, last: Any) -> None:
        """Trace for batches of any length before the first call, which would be for the length it has."""
        if self._takes_any_length and not loop.experimental_get_tracing_count():
            specs = tf.nest.map_structure(
                lambda array: None if array is None else tf.TensorSpec((None, *array.shape[1:]), array.dtype), source
            )
            last = tf.nest.map_structure(tf.TensorSpec.from_tensor, last)
            loop.get_concrete_function(specs, tf.TensorSpec((None, None), tf.int32), last)

    @property
    def _takes_any_length(self) -> bool:
        """Return whether one program serves batches of all lengths, as in Keras's `fit`, so that the smaller last batch
        of an epoch, where there is one, needs none of its own. XLA compiles for each length, and replicas are given
        their share of it."""
        return not self.jit_compile and self.strategy is None

    def _program(self, function: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        return (function,) if self._takes_any_length else super()._program(function, shape)

    def batch(self, source: Any, row: Any) -> Any:
        return _batch(source, tf.convert_to_tensor(row))

    def _train_loop(self, source: Any, batch_indices: Tensor, control: LoopControl) -> LoopResult:
        floats, ints = row_lengths(self.model)
        rows = batch_indices.shape[0] or tf.shape(batch_indices)[0]
        arrays = [
            tf.TensorArray(tf.float32, rows, element_shape=(floats,)),
            tf.TensorArray(tf.int32, rows, element_shape=(ints,)),
        ]
        main = next(iter(optimizers_of(self.model).values()))

        def body(i: Tensor, streaks: Tensor, *arrays: Any) -> tuple[Tensor, ...]:
            row = self._on_replicas(self._train_one, source, batch_indices[i])
            written = [array.write(i, part) for array, part in zip(arrays, row, strict=True)]
            return i + 1, update_streaks(streaks, main, row), *written

        done, _, *arrays = tf.while_loop(
            lambda i, streaks, *_: control.go_on(i, streaks),
            body,
            (tf.constant(0), control.streaks, *arrays),
            parallel_iterations=1,
        )
        return LoopResult(done, *(array.stack() for array in arrays))

    def _evaluate_loop(self, source: Any, batch_indices: Tensor, count: Tensor) -> Tensor:
        def body(i: Tensor) -> tuple[Tensor]:
            self._on_replicas(self._evaluate_one, source, batch_indices[i])
            return (i + 1,)

        return tf.while_loop(lambda i: i < count, body, (tf.constant(0),), parallel_iterations=1)[0]

    def _train_one(self, source: Any, row: Tensor) -> StepRow:
        return _reduced(self._step(self.model, _batch(source, row))[1])

    def _evaluate_one(self, source: Any, row: Tensor) -> Tensor:
        test_step(self.model, _batch(source, row))
        return tf.constant(0)

    def _on_replicas(self, step: Callable[..., Any], source: Any, row: Tensor) -> Any:
        """Return the result of `step` on this batch; of several replicas that of the first, with mean losses and all
        nan and inf counted (`_reduced` makes them equal)."""
        if self.strategy is None:
            return step(source, row)
        share = row.shape[0] // self.replicas

        def on_replica() -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return step(source, row[replica * share : (replica + 1) * share])

        results = self.strategy.run(on_replica)
        return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], results)


def _batch(source: Any, rows: Tensor) -> Any:
    def take(array: Any) -> Any:
        if array is None:
            return None
        size, wanted = array.shape[0], rows.shape[0]
        are_enough = size is not None and wanted is not None and size >= wanted
        return tf.gather(array, rows if are_enough else rows[: tf.shape(array)[0] if size is None else size])

    return tf.nest.map_structure(take, source)


def _reduced(row: StepRow) -> StepRow:
    """Return the row of the whole batch on every replica: mean of the losses, and of the gradients of all together."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return row
    loss = context.all_reduce("mean", row.floats[:1])
    ints = combined_ints(context.all_gather(row.ints[None], axis=0))
    return StepRow(tf.concat([loss, row.floats[1:]], 0), ints)
