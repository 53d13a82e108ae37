"""The compiled loop on JAX: a jitted `fori_loop` over training steps, with the state donated.

For a model that convolves on the CPU it is one jitted step called in a row instead: there XLA runs convolutions inside
a loop on one thread without its fast kernels (small CNN: 3 steps per second in the loop, over 100 outside). Others take
less CPU time in the loop, by 1 to 10 % (MLP) or 15 to 18 % (small transformer), and wait less on a busy machine. Either
way no step waits for the host: even their number and their records stay on the device until the end of the call.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mpt_cli.engine.step_loop import (
    BatchIndices,
    Engine,
    LoopControl,
    LoopResult,
    StepWrapper,
    convolves,
    row_lengths,
    update_streaks,
)
from mpt_cli.precision.apply_or_skip_jax import TrainState, test_step, train_step
from mpt_cli.precision.keras_internals import has_value, replace_values
from mpt_cli.precision.train_step import assign, metric_variables

Tensor = Any


class Carry(NamedTuple):
    """The values that a step hands to the next: the variables, their number in this call, the records and streaks."""

    state: TrainState
    i: Tensor
    floats: Tensor
    ints: Tensor
    streaks: Tensor


class JaxEngine(Engine):
    """See `engine.Engine`. JAX compiles in any case: without `jit_compile` the steps run op by op, for debugging."""

    def __init__(
        self, model: Any, jit_compile: bool, mesh: Any = None, step_wrapper: StepWrapper | None = None
    ) -> None:
        super().__init__(model, jit_compile)
        self._step = step_wrapper(train_step) if step_wrapper else train_step
        self._batch_place = None if mesh is None else NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
        self._everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._loops_on_device = jit_compile and (jax.default_backend() != "cpu" or not convolves(model))
        self._compile: Any = jax.jit if jit_compile else lambda function, **_: function
        optimizer = getattr(model, "optimizer", None)  # a model that is planned has it later
        _unshare([*model.variables, *([] if optimizer is None else optimizer.variables)])
        self.rebuild()

    def rebuild(self) -> None:
        # lambdas, because JAX takes two references to one method for the same function, and its program with it
        self._compiled.clear()
        self._evaluate_one = self._compile(
            lambda weights, frozen, metrics, source, row: test_step(
                self.model, (weights, frozen, metrics), self._batch(source, row)
            ),
            donate_argnums=2,
        )
        self._train_many = self._compile(lambda *given: self._train_loop(*given), donate_argnums=0)
        self._train_one = self._compile(lambda *given: self._train_step(*given), donate_argnums=0)

    def to_device(self, arrays: Any) -> Any:
        sharding = self._everywhere
        if sharding is None:
            return jax.device_put(arrays)
        # device_put would send the arrays to the other processes to compare, in between the messages of a step
        return jax.tree.map(lambda a: jax.make_array_from_callback(a.shape, sharding, lambda _: a), arrays)

    def _run_training(self, source: Any, batch_indices: BatchIndices, control: LoopControl) -> LoopResult:
        lists = self.variables()
        state = TrainState(*([v.value for v in variables] for variables in lists))
        result: LoopResult
        if self._loops_on_device:
            given = batch_indices, control
            if self._everywhere is not None:  # else the one call moves them, which takes less
                given = self.to_device(given)
            state, result = self._train_many(state, source, *given)
        else:
            state, result = self._train_in_a_row(state, source, self.to_device(batch_indices), control)
        for variables, values in zip(lists, state, strict=True):
            replace_values(variables, values)
        return result

    def variables(self) -> TrainState:
        """Return the variables of which a step changes the values."""
        model = self.model
        weights, frozen = model.trainable_variables, model.non_trainable_variables
        return TrainState(weights, frozen, model.optimizer.variables, metric_variables(model))

    def _add_to_metrics(self, source: Any, batch_indices: BatchIndices, count: int) -> None:
        model = self.model
        weights = [v.value for v in model.trainable_variables]
        frozen = [v.value for v in model.non_trainable_variables]
        metrics = [v.value for v in metric_variables(model)]
        for row in batch_indices[:count]:
            metrics = self._evaluate_one(weights, frozen, metrics, source, self.to_device(row))
        assign(metric_variables(model), jax.block_until_ready(metrics))

    def batch(self, source: Any, row: Any) -> Any:
        return self._batch(source, self.to_device(row))

    def _batch(self, source: Any, row: Tensor) -> Any:
        """Return the examples of one step, split over the devices of the mesh; XLA reduces the gradients over all of
        them."""

        def take(array: Tensor) -> Tensor:
            batch = jnp.take(array, row[: array.shape[0]], axis=0)
            return batch if self._batch_place is None else jax.lax.with_sharding_constraint(batch, self._batch_place)

        return jax.tree.map(take, source)

    def _first_records(self, steps: int, streaks: Tensor) -> tuple[Tensor, ...]:
        """Return what a `Carry` begins with beside the state: nothing is done and recorded of so many steps."""
        floats, ints = row_lengths(self.model)
        return np.zeros((), "int32"), np.zeros((steps, floats), "float32"), np.zeros((steps, ints), "int32"), streaks

    def _train_step(self, carry: Carry, source: Any, batch_indices: Tensor) -> Carry:
        state, i, *records, streaks = carry
        _, state, row = self._step(self.model, state, self._batch(source, batch_indices[i]))
        floats, ints = (rows.at[i].set(part) for rows, part in zip(records, row, strict=True))
        return Carry(state, i + 1, floats, ints, update_streaks(streaks, self.model.optimizer, row))

    def _train_loop(
        self, state: TrainState, source: Any, batch_indices: Tensor, control: LoopControl
    ) -> tuple[TrainState, LoopResult]:
        carry = jax.lax.while_loop(
            lambda carry: control.go_on(carry.i, carry.streaks),
            lambda carry: self._train_step(carry, source, batch_indices),
            Carry(state, *self._first_records(len(batch_indices), control.streaks)),
        )
        return carry.state, LoopResult(carry.i, carry.floats, carry.ints)

    def _train_in_a_row(
        self, state: TrainState, source: Any, batch_indices: Tensor, control: LoopControl
    ) -> tuple[TrainState, LoopResult]:
        """Train as `_train_loop`, from the host, which looks at the streaks only where one could be at its limit."""
        streaks, limits = control.streaks, control.limits
        carry, done = Carry(state, *self.to_device(self._first_records(len(batch_indices), streaks))), 0
        while done < control.count and (streaks < limits).all():
            sure = min(control.count - done, int((limits - streaks).min()))
            for _ in range(sure):
                carry = self._train_one(carry, source, batch_indices)
            done += sure
            if done < control.count:
                streaks = np.asarray(carry.streaks)
        return carry.state, LoopResult(done, carry.floats, carry.ints)


def _unshare(variables: list[Any]) -> None:
    """Copy values that two variables share: a call donates each buffer, which works only once. After a fit with
    `use_ema` weights and averages share theirs."""
    seen = set[int]()
    for variable in filter(has_value, variables):  # a planned one has none
        if id(variable.value) in seen:
            variable.assign(jnp.copy(variable.value))
        seen.add(id(variable.value))
