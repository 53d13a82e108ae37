"""The compiled loop on JAX: a jitted `fori_loop` over training steps, with the state donated.

For a model that convolves on the CPU it is one jitted step called in a row instead: there XLA runs convolutions inside
a loop on one thread without its fast kernels (small CNN: 3 steps per second in the loop, over 100 outside). Others take
less CPU time in the loop, by 1 to 10 % (MLP) or 15 to 18 % (small transformer), and wait less on a busy machine. Either
way no step waits for the host: even their number and their records stay on the device until the end of the call.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mpt_cli.precision.apply_jax import cond
from mpt_cli.precision.finite import all_finite
from mpt_cli.precision.step import StepRecord, metrics_of
from mpt_cli.precision.step_jax import train_step
from mpt_cli.telemetry.block import FLOATS, INTS, Block, Lines
from mpt_cli.training.engine import Around, Rows, block_of, convolves, has_line, metric_vector, named_metrics
from mpt_cli.training.gradients import compare, kept_gradients, pure_loss

Tensor = Any


class Carry(NamedTuple):
    """What goes from step to step: their number in this call, the state of `step_jax`, the records so far.

    `records` are the floats and ints of each step, and the metrics after each that has a line of the log.
    """

    i: Tensor
    state: Any
    records: tuple[Tensor, Tensor, Tensor]


class JaxEngine:
    """See `engine.Engine`. JAX compiles in any case: without `jit_compile` the steps run op by op, for debugging."""

    def __init__(self, model: Any, jit_compile: bool, mesh: Any = None, around: Around | None = None) -> None:
        self.model = model
        self._step = around(train_step) if around else train_step
        self._split = None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
        self._everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._loops_on_device = jit_compile and (jax.default_backend() != "cpu" or not convolves(model))
        compiled = jax.jit if jit_compile else _as_it_is
        self._compiled = compiled
        self.recompile()
        self._evaluate_many = compiled(self._evaluate_loop, donate_argnums=2)
        self._evaluate_one = compiled(self._evaluate_step, donate_argnums=2)
        self._gradients = jax.jit(self._gradients_of) if jit_compile else self._gradients_of
        self._compare = jax.jit(partial(compare, model))
        self._results = jax.jit(self._metric_vector)
        self._all_finite = jax.jit(all_finite)
        self._fresh = jax.jit(self._fresh_metrics, out_shardings=self._everywhere)
        self._names: list[str] = []  # of the metrics, known once they are computed

    def forget(self) -> None:
        """Nothing is kept: every question is answered from the variables."""

    def recompile(self) -> None:
        # lambdas, because JAX takes two references to one method for the same function, and its program with it
        self._train_many = self._compiled(lambda *given: self._train_loop(*given), donate_argnums=0)
        self._train_one = self._compiled(lambda *given: self._train_step(*given), donate_argnums=0)

    def place(self, arrays: Any) -> Any:
        return jax.tree.map(lambda a: jax.device_put(a, self._everywhere), arrays)

    def train(self, source: Any, rows: Rows, count: int, lines: Lines = Lines()) -> "PendingCall":  # noqa: B008
        model = self.model
        lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
                 model.metrics_variables)
        state = tuple([v.value for v in variables] for variables in lists)
        columns = (len(FLOATS), "float32"), (len(INTS), "int32"), (len(self._metric_names()), "float32")
        records = tuple(np.zeros((len(rows), width), dtype) for width, dtype in columns)
        i, records, rows, when = self.place((np.zeros((), "int32"), records, rows, np.array(lines, "int32")))
        carry = Carry(i, state, records)
        if self._loops_on_device:
            carry = self._train_many(carry, source, rows, when, count)
        else:
            for _ in range(count):
                carry = self._train_one(carry, source, rows, when)
        for variables, values in zip(lists, carry.state, strict=True):
            _assign(variables, values)
        return PendingCall(count, lines, self._metric_names(), carry.records, self._results(carry.state[3]))

    def evaluate(self, source: Any, rows: Rows, count: int) -> None:
        model = self.model
        weights = [v.value for v in model.trainable_variables]
        frozen = [v.value for v in model.non_trainable_variables]
        metrics = [v.value for v in model.metrics_variables]
        if self._loops_on_device:
            metrics = self._evaluate_many(weights, frozen, metrics, source, self.place(rows), count)
        else:
            for row in self.place(rows[:count]):
                metrics = self._evaluate_one(weights, frozen, metrics, source, row)
        _assign(model.metrics_variables, metrics)

    def reset_metrics(self) -> None:
        _assign(self.model.metrics_variables, self._fresh())

    def metrics(self) -> dict[str, float]:
        vector = self._results([v.value for v in self.model.metrics_variables])
        return named_metrics(self._names, vector)

    def weights_are_finite(self) -> bool:
        return bool(self._all_finite([variable.value for variable in self.model.trainable_variables]))

    def gradients(self, source: Any, row: Any, scale: float) -> list[Tensor]:
        model = self.model
        lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables
        state = tuple([v.value for v in variables] for variables in lists)
        return self._gradients(state, source, self.place(row), np.float32(scale))

    def compare(self, base: list[Tensor], raised: list[Tensor]) -> list[float]:
        return [float(value) for value in np.asarray(self._compare(base, raised))]

    def _gradients_of(self, state: Any, source: Any, row: Tensor, scale: Tensor) -> list[Tensor]:
        weights, frozen, metrics = state
        batch = self._batch(source, row)
        gradient = jax.grad(lambda weights: pure_loss(self.model, (weights, frozen, metrics), batch) * scale)
        return kept_gradients(gradient(weights), self.model.trainable_variables)

    def _metric_vector(self, values: list[Tensor]) -> Tensor:
        with keras.StatelessScope(state_mapping=list(zip(self.model.metrics_variables, values, strict=True))):
            results = metrics_of(self.model)
        self._names = [*results]
        return metric_vector(results)

    def _metric_names(self) -> list[str]:
        if not self._names:
            jax.eval_shape(self._metric_vector, [v.value for v in self.model.metrics_variables])
        return self._names

    def _fresh_metrics(self) -> list[Tensor]:
        with keras.StatelessScope() as scope:
            self.model.reset_metrics()
        return [scope.get_current_value(v) for v in self.model.metrics_variables]

    def _batch(self, source: Any, row: Tensor) -> Any:
        """The examples of one step, split over the devices of the mesh; XLA reduces the gradients over all of them."""

        def take(array: Tensor) -> Tensor:
            batch = jnp.take(array, row, axis=0)
            return batch if self._split is None else jax.lax.with_sharding_constraint(batch, self._split)

        return jax.tree.map(take, source)

    def _train_step(self, carry: Carry, source: Any, rows: Tensor, lines: Tensor) -> Carry:
        i, state, (floats, ints, vectors) = carry
        _, state, record = self._step(self.model, state, self._batch(source, rows[i]))
        is_wanted = has_line(i + 1, lines[0], lines[1])
        metrics = cond(is_wanted, lambda: self._metric_vector(state[3]), lambda: jnp.zeros_like(vectors[0]))
        records = floats.at[i].set(_floats(record)), ints.at[i].set(_ints(record)), vectors.at[i].set(metrics)
        return Carry(i + 1, state, records)

    def _train_loop(self, carry: Carry, source: Any, rows: Tensor, lines: Tensor, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carry: self._train_step(carry, source, rows, lines), carry)

    def _evaluate_step(
        self, weights: list[Tensor], frozen: list[Tensor], metrics: list[Tensor], source: Any, row: Tensor
    ) -> list[Tensor]:
        return list(self.model.test_step((weights, frozen, metrics), self._batch(source, row))[1][2])

    def _evaluate_loop(
        self, weights: list[Tensor], frozen: list[Tensor], metrics: list[Tensor], source: Any, rows: Tensor, count: Any
    ) -> list[Tensor]:
        def body(i: Tensor, metrics: list[Tensor]) -> list[Tensor]:
            return self._evaluate_step(weights, frozen, metrics, source, rows[i])

        return list(jax.lax.fori_loop(0, count, body, metrics))


class PendingCall:
    """See `engine.Pending`."""

    def __init__(self, count: int, lines: Lines, names: list[str], records: Any, metrics: Tensor) -> None:
        self.count, self.lines, self.names, self.records, self.metrics = count, lines, names, records, metrics

    def wait(self) -> Block:
        return block_of(self.records, self.count, self.lines, named_metrics(self.names, self.metrics))


def _as_it_is(function: Callable[..., Any], donate_argnums: int) -> Callable[..., Any]:
    return function


def _assign(variables: list[Any], values: list[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _floats(record: StepRecord) -> Tensor:
    return jnp.stack([record.loss, record.scale_before, record.scale_after, record.learning_rate])


def _ints(record: StepRecord) -> Tensor:
    head = jnp.stack([record.finite.astype("int32"), record.counter.astype("int32")])
    return jnp.concatenate([head, record.detail])
