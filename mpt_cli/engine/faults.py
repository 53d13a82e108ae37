"""Faults on purpose: numbers that go wrong in chosen steps, within the compiled step, and data that comes slowly."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
from keras import ops

from mpt_cli.data.examples import Array, Batch, DataSet, Examples, Stream
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.precision.gradients import scale_gradient
from mpt_cli.precision.own_step import OwnSteps, optimizers_of, own_steps
from mpt_cli.settings.schema import FaultSettings

Tensor = Any
VALUES = {"overflow": float("inf"), "nan": float("nan"), "zero": 0.0}


def build_injector(fault: FaultSettings, model: Any, data: DataSet, replicas: int) -> "Injector | None":
    """What spoils the steps of `model`, None where nothing does; ConfigError where the data can't hold nan."""
    if fault.kind == "none":
        return None
    if fault.place == "data" and "float" not in data.input_dtype:
        raise ConfigError(Problem("fault.place", f"must not be data with inputs in {data.input_dtype}: only floats can "
                                  "be nan or inf.", "data", "Use fault.place=forward."))
    return Injector(fault, model, replicas)


def warn_of_fault(fault: FaultSettings) -> list[str]:
    """Sentences for the header: nobody should take a rehearsal for the real thing."""
    sentences = []
    if fault.kind != "none":
        sentences.append(f"fault.kind={fault.kind}: THIS IS A REHEARSAL. Numbers go wrong on purpose ({fault.place}, "
                         f"{_when(fault)}). fault=none ends it.")
    if fault.slow_storage_seconds:
        sentences.append(f"fault.slow_storage_seconds={fault.slow_storage_seconds:g}: THIS IS A REHEARSAL. Each batch "
                         "is read slowly on purpose.")
    return sentences


def _when(fault: FaultSettings) -> str:
    parts = [f"step {step}" for step in fault.at_steps]
    if fault.every_steps is not None:
        parts.append("every step" if fault.every_steps == 1 else f"every {fault.every_steps} steps")
    text = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    if fault.until_step is not None:
        text += f" until step {fault.until_step}"
    if fault.above_scale is not None:
        text += f" while the loss scale is above {fault.above_scale:g}"
    return text if fault.replica is None else f"{text} on device {fault.replica}"


class Injector:
    """Spoils the training steps of one model as a `FaultSettings` says; evaluation is left alone.

    `wrap_step` takes a `precision` train step. What decides is the number of the step, read from the optimizer's own
    count on the device, so that neither steps per call nor a resumed run make a difference.
    """

    def __init__(self, fault: FaultSettings, model: Any, replicas: int = 1) -> None:
        self.fault, self.model, self.replicas = fault, model, replicas
        self._now = threading.local()  # the replicas of a MirroredStrategy are traced in threads that take turns
        self._compute_loss = model.compute_loss
        model.compute_loss = self._spoiled_loss

    def spoil_own_steps(self, own: OwnSteps) -> None:
        """For a model whose own step computes the loss as it likes: what spoils it there is the scaling of the loss.

        ConfigError where the step scales none.
        """
        self.model.compute_loss = self._compute_loss
        if self.fault.place != "data" and not own.scales_losses:
            raise ConfigError(Problem("fault.place", "must be data: the model's own train_step scales no loss to be "
                                      "spoiled.", self.fault.place, "Use fault.place=data."))  # fmt: skip
        for optimizer in own.optimizers.values():
            scaled = partial(self._scale_spoiled, optimizer.scale_loss)
            optimizer.scale_loss = scaled  # type: ignore[method-assign]

    def _scale_spoiled(self, scale_loss: Callable[[Tensor], Tensor], loss: Tensor) -> Tensor:
        return scale_loss(self._spoil(ops.cast(loss, "float32")))

    def wrap_step(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        """`train_step` of the running backend with the fault in it, called the same way."""
        if keras.backend.backend() == "tensorflow":
            return lambda model, data: self._run(lambda spoiled: train_step(model, spoiled), data)

        def with_state(model: Any, state: Any, data: Batch) -> Any:
            mapping = list(zip(model.optimizer.variables, state.optimizer, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                factor = self._factor()
            return self._run(lambda spoiled: train_step(model, state, spoiled), data, factor)

        return with_state

    def _run(self, step: Callable[[Batch], Any], data: Batch, factor: Tensor | None = None) -> Any:
        with self._spoiling(self._factor() if factor is None else factor) as now:
            if self.fault.place == "data":
                data = data._replace(x=keras.tree.map_structure(lambda x: self._spoiled_input(x, now), data.x))
            return step(data)

    @contextmanager
    def _spoiling(self, factor: Tensor) -> Iterator[Tensor]:
        self._now.factor = factor
        try:
            yield factor
        finally:
            self._now.factor = None

    def _factor(self) -> Tensor:
        """float32 scalar: what the spoiled number is multiplied by, 1 in a step where nothing happens."""
        optimizer, fault = next(iter(optimizers_of(self.model).values())), self.fault
        own = own_steps(self.model)
        step = optimizer.seen_steps // (own.updates_per_step if own is not None else 1) + 1
        hit = ops.any(ops.equal(step, ops.convert_to_tensor(fault.at_steps or [-1], "int32")))
        if fault.every_steps is not None:
            hit = ops.logical_or(hit, ops.equal(step % fault.every_steps, 0))
        if fault.until_step is not None:
            hit = ops.logical_and(hit, step <= fault.until_step)
        if fault.above_scale is not None:
            hit = ops.logical_and(hit, optimizer.loss_scale > fault.above_scale)
        if fault.replica is not None and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            hit = ops.logical_and(hit, ops.equal(replica, fault.replica))
        return ops.where(hit, VALUES[fault.kind], 1.0)

    def _spoiled_input(self, x: Tensor, factor: Tensor) -> Tensor:
        """The first example of the batch, or of the device's share of it, times `factor`."""
        if x is None or not keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)):
            return x
        shares = self.replicas if keras.backend.backend() == "jax" else 1  # TensorFlow hands each replica its share
        count = ops.shape(x)[0]  # without XLA a tensor on TensorFlow
        first = (self.fault.replica or 0) * (count // shares)
        is_first = ops.reshape(ops.equal(ops.arange(count), first), (-1,) + (1,) * (len(x.shape) - 1))
        return ops.where(is_first, x * ops.cast(factor, x.dtype), x)

    def _spoiled_loss(self, *arguments: Any, **named: Any) -> Tensor:
        return self._spoil(self._compute_loss(*arguments, **named))

    def _spoil(self, loss: Tensor) -> Tensor:
        factor = getattr(self._now, "factor", None)
        if factor is None or self.fault.place == "data":
            return loss
        return loss * ops.cast(factor, loss.dtype) if self.fault.place == "forward" else scale_gradient(loss, factor)


@dataclass(frozen=True)
class SlowExamples(Examples):
    """Arrays from which every batch takes `seconds` longer."""

    seconds: float = 0.0

    def take(self, which: "Array | slice") -> Examples:
        time.sleep(self.seconds)
        return super().take(which)


def slowed(data: Examples | Stream, seconds: float) -> Examples | Stream:
    """`data` whose batches are read `seconds` slower each."""
    if not seconds:
        return data
    if isinstance(data, Examples):
        return SlowExamples(data.x, data.y, data.sample_weight, seconds)

    def slowly(batch: Examples, number: int) -> Examples:
        time.sleep(seconds)
        return batch

    return data.mapped(slowly)
