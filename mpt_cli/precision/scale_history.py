"""A callback that records the loss scale during Keras's own `fit`, on both backends, without holding it up."""

from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.precision.optimizer import LossScaleOptimizer
from mpt_cli.precision.scale_state import TALLY

Tensor = Any


class ScaleHistory(keras.callbacks.Callback):  # type: ignore[misc]
    """Loss scale and tally of steps after each call of the train function.

    `history` maps `loss_scale` (float32) and the tally (`seen, applied, skipped, consecutive_skips, growths,
    backoffs`, int32) to arrays with one entry per call: per batch, or per `steps_per_execution` batches, of which
    `seen` tells which. At the end of an epoch `loss_scale` and `skipped_steps` (of all steps so far) stand in its logs
    too, for `History`, `CSVLogger` and the callbacks after this one.

    Values stay on the device until the end of the epoch, or until `history` is read. Keras on JAX keeps the state
    inside `fit`, where an optimizer that the caller kept can't be read, and writes all of it back each time a
    callback touches `self.model`; here two small arrays are copied on the device.

    Raises ValueError for a model that is not compiled with `mpt_cli.precision.LossScaleOptimizer`.

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0), "mse")
    >>> scales = ScaleHistory()
    >>> x = np.float32([[1.0], [np.inf], [1.0]])
    >>> _ = model.fit(x, np.ones((3, 1)), batch_size=1, shuffle=False, verbose=0, callbacks=[scales])
    >>> scales.history["loss_scale"].tolist(), scales.history["skipped"].tolist()
    ([8.0, 4.0, 4.0], [0, 1, 1])
    """

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._scales: list[float] = []
        self._tallies: list[list[int]] = []

    def set_model(self, model: Any) -> None:
        if not isinstance(getattr(model, "optimizer", None), LossScaleOptimizer):
            raise ValueError(f"{type(model).__name__} must be compiled with mpt_cli.precision.LossScaleOptimizer to "
                             f"have a loss scale. Received: optimizer={getattr(model, 'optimizer', None)!r}.")
        super().set_model(model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._pending.append(_on_device(self._model))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        history = self.history
        if logs is not None and self._scales:
            logs["loss_scale"], logs["skipped_steps"] = float(history["loss_scale"][-1]), int(history["skipped"][-1])

    @property
    def history(self) -> dict[str, NDArray[Any]]:
        """What was recorded so far, as NumPy arrays by name."""
        for scale, tally in self._pending:
            self._scales.append(float(scale))
            self._tallies.append(ops.convert_to_numpy(tally).tolist())
        self._pending.clear()
        tallies = np.asarray(self._tallies, "int32").reshape(-1, len(TALLY))
        counts = {name: tallies[:, index] for index, name in enumerate(TALLY)}
        return {"loss_scale": np.asarray(self._scales, "float32"), **counts}


def _on_device(model: Any) -> tuple[Tensor, Tensor]:
    """Copies of scale and tally: the next step may overwrite, or on JAX delete, what it is given."""
    state = model.optimizer.scale_state
    inside_fit = None if getattr(model, "_jax_state_synced", True) else model._jax_state
    if not inside_fit:
        return ops.copy(state.by_name["scale"]), ops.copy(state.by_name["tally"])
    by_name = dict(zip(state.by_name, inside_fit["optimizer_variables"], strict=False))
    return ops.copy(by_name["scale"]), ops.copy(by_name["tally"])
