"""An engine that is given shapes for arrays, and lowers its loops for devices that are not here."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.feed import Piece
from mpt_cli.engine.loop import LoopControl
from mpt_cli.engine.loop_jax import JaxEngine
from mpt_cli.precision.step_jax import TrainState
from mpt_cli.precision.train_step import metric_variables, packed
from mpt_cli.telemetry.records import LoggedSteps, StopLimits
from mpt_cli.training.loss_and_optimizer import copied_optimizer


class PlannedEngine(JaxEngine):
    """As the engine of a run on these devices, as far as it is asked for programs; it can't run any."""

    def __init__(self, model: Any, jit_compile: bool, distribution: Distribution, step_wrapper: Any = None) -> None:
        several = distribution.mesh.size > 1
        super().__init__(model, jit_compile, distribution if several else Distribution(), step_wrapper)
        chip = distribution.mesh.devices.flat[0]
        self._place = self._everywhere if several else jax.sharding.SingleDeviceSharding(chip)
        self._compile = jax.jit
        self._make_functions()

    def to_device(self, arrays: Any) -> Any:
        """Shapes in place of arrays, in the dtypes that they have on a device."""
        return jax.tree.map(lambda array: self._shaped(array.shape, array.dtype), arrays)

    def lower_training(self, piece: Piece) -> Any:
        """The loop that `train` calls."""
        lists = self._lists(self.model.optimizer.variables)
        program: Any = self._train_many
        return program.lower(TrainState(*lists), piece.source, piece.batch_indices, self._control())

    def lower_plain_training(self, piece: Piece) -> Any:
        """A loop of as many of Keras's own steps with the inner optimizer: it skips, scales and records nothing."""
        inner = self.model.optimizer.inner_optimizer
        if self.model.optimizer.rounding_seed is not None:  # it is built for weights in float32
            inner = copied_optimizer(inner)
            inner.build(self.model.trainable_variables)
        with _optimizer(self.model, inner):
            plain = jax.jit(self._plain_loop, donate_argnums=0)
            return plain.lower(TrainState(*self._lists(inner.variables)), piece.source, piece.batch_indices,
                               self._control())  # fmt: skip

    def _plain_loop(self, state: TrainState, source: Any, batch_indices: Any, packed_control: Any) -> TrainState:
        def step(carry: tuple[Any, TrainState]) -> tuple[Any, TrainState]:
            i, state = carry
            batch = self._batch(source, batch_indices[i])
            _, new = self.model.train_step(tuple(list(part) for part in self._in_place(state)), packed(batch))
            return i + 1, self._in_place(TrainState(*(list(part) for part in new)))

        count = LoopControl.unpack(packed_control).count
        return jax.lax.while_loop(lambda carry: carry[0] < count, step, (jnp.int32(0), state))[1]

    def _control(self) -> Any:
        packed_control = LoopControl.of(1, True, LoggedSteps(), StopLimits()).pack()
        return self._shaped(packed_control.shape, packed_control.dtype)

    def _lists(self, optimizer_variables: Any) -> list[list[Any]]:
        model = self.model
        lists = (model.trainable_variables, model.non_trainable_variables, optimizer_variables, metric_variables(model))
        return [[self._shaped(v.shape, v.dtype, place) for v, place in zip(variables, places, strict=True)]
                for variables, places in zip(lists, self.places(), strict=True)]  # fmt: skip

    def _shaped(self, shape: Any, dtype: Any, place: Any = None) -> Any:
        kind = jax.dtypes.canonicalize_dtype(np.dtype(dtype))
        return jax.ShapeDtypeStruct(tuple(shape), kind, sharding=place or self._place)


@contextmanager
def _optimizer(model: Any, optimizer: Any) -> Iterator[None]:
    """Inside, the model has another optimizer."""
    own = model.optimizer
    model.optimizer = optimizer
    try:
        yield
    finally:
        model.optimizer = own
