"""The compiled loop on JAX: a jitted `fori_loop` over training steps, with the state donated.

On the CPU it is one jitted step called in a row instead: XLA runs convolutions inside a loop on one thread without its
fast kernels (measured: a small CNN 3 steps per second in the loop, over 100 outside).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mpt_cli.precision.step import StepRecord
from mpt_cli.precision.step_jax import train_step
from mpt_cli.telemetry.block import FLOATS, INTS, Block
from mpt_cli.training.engine import Around, Rows, flat_metrics

Tensor = Any


class JaxEngine:
    """See `engine.Engine`. JAX compiles in any case: without `jit_compile` the steps run op by op, for debugging."""

    def __init__(self, model: Any, jit_compile: bool, mesh: Any = None, around: Around | None = None) -> None:
        self.model = model
        self._step = around(train_step) if around else train_step
        self._split = None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
        self._everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._loops_on_device = jit_compile and jax.default_backend() != "cpu"
        compiled = jax.jit if jit_compile else _as_it_is
        self._train_many = compiled(self._train_loop, donate_argnums=0)
        self._train_one = compiled(self._train_step, donate_argnums=0)
        self._evaluate_many = compiled(self._evaluate_loop, donate_argnums=2)
        self._evaluate_one = compiled(self._evaluate_step, donate_argnums=2)

    def place(self, arrays: Any) -> Any:
        return jax.tree.map(lambda a: jax.device_put(a, self._everywhere), arrays)

    def train(self, source: Any, rows: Rows, count: int) -> "PendingCall":
        model = self.model
        lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
                 model.metrics_variables)
        state = tuple([v.value for v in variables] for variables in lists)
        if self._loops_on_device:
            state, floats, ints, metrics = self._train_many(state, source, jnp.asarray(rows), count)
        else:
            floats, ints = [], []
            for row in rows[:count]:
                state, metrics, one_floats, one_ints = self._train_one(state, source, row)
                floats.append(one_floats)
                ints.append(one_ints)
        for variables, values in zip(lists, state, strict=True):
            _assign(variables, values)
        return PendingCall(count, floats, ints, metrics)

    def evaluate(self, source: Any, rows: Rows, count: int) -> None:
        model = self.model
        weights = [v.value for v in model.trainable_variables]
        frozen = [v.value for v in model.non_trainable_variables]
        metrics = [v.value for v in model.metrics_variables]
        if self._loops_on_device:
            metrics = self._evaluate_many(weights, frozen, metrics, source, jnp.asarray(rows), count)
        else:
            for row in rows[:count]:
                metrics = self._evaluate_one(weights, frozen, metrics, source, row)
        _assign(model.metrics_variables, metrics)

    def reset_metrics(self) -> None:
        self.model.reset_metrics()

    def metrics(self) -> dict[str, float]:
        return flat_metrics(self.model.get_metrics_result())

    def _batch(self, source: Any, row: Tensor) -> Any:
        """The examples of one step, split over the devices of the mesh; XLA reduces the gradients over all of them."""

        def take(array: Tensor) -> Tensor:
            batch = jnp.take(array, row, axis=0)
            return batch if self._split is None else jax.lax.with_sharding_constraint(batch, self._split)

        return jax.tree.map(take, source)

    def _train_step(self, state: Any, source: Any, row: Tensor) -> Any:
        logs, state, record = self._step(self.model, state, self._batch(source, row))
        return state, logs, _floats(record), _ints(record)

    def _train_loop(self, state: Any, source: Any, rows: Tensor, count: Any) -> Any:
        shapes = jax.eval_shape(self._train_step, state, source, rows[0])[1]
        metrics = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        floats = jnp.zeros((rows.shape[0], len(FLOATS)), "float32")
        ints = jnp.zeros((rows.shape[0], len(INTS)), "int32")

        def body(i: Tensor, carry: Any) -> Any:
            state, floats, ints, _ = carry
            state, logs, one_floats, one_ints = self._train_step(state, source, rows[i])
            return state, floats.at[i].set(one_floats), ints.at[i].set(one_ints), logs

        return jax.lax.fori_loop(0, count, body, (state, floats, ints, metrics))

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

    def __init__(self, count: int, floats: Any, ints: Any, metrics: dict[str, Tensor]) -> None:
        self.count, self.floats, self.ints, self.metrics = count, floats, ints, metrics

    def wait(self) -> Block:
        return Block(_on_host(self.floats)[: self.count], _on_host(self.ints)[: self.count], flat_metrics(self.metrics))


def _on_host(rows: Any) -> Any:
    return np.stack([np.asarray(row) for row in rows]) if isinstance(rows, list) else np.asarray(rows)


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
