"""An engine that is given shapes for arrays, and lowers its loops for devices that are not here."""

from typing import Any

import jax
import numpy as np

from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.step_batches import StepChunk
from mpt_cli.engine.step_loop import LoopControl
from mpt_cli.engine.step_loop_jax import JaxEngine
from mpt_cli.precision.apply_or_skip_jax import TrainState
from mpt_cli.telemetry.record_types import StopLimits


class PlannedEngine(JaxEngine):
    """The engine of a run on these devices, which only makes programs and can't run any."""

    def __init__(self, model: Any, _: bool, distribution: Distribution, step_wrapper: Any = None) -> None:
        super().__init__(model, True, distribution.mesh, step_wrapper)

    def to_device(self, arrays: Any) -> Any:
        """Return shapes in place of arrays, in the dtypes that they have on a device."""
        return jax.tree.map(lambda array: self._shaped(array.shape, array.dtype), arrays)

    def lower_training(self, chunk: StepChunk) -> Any:
        """Lower the loop that `train` calls."""
        program: Any = self._train_many
        control = self.to_device(LoopControl.for_steps(1, StopLimits()))
        state = TrainState(*([self._shaped(v.shape, v.dtype) for v in variables] for variables in self.variables()))
        return program.lower(state, chunk.source, chunk.batch_indices, control)

    def _shaped(self, shape: Any, dtype: Any) -> Any:
        kind = jax.dtypes.canonicalize_dtype(np.dtype(dtype))
        return jax.ShapeDtypeStruct(tuple(shape), kind, sharding=self._everywhere)
