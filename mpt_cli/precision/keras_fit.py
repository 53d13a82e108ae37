"""Loss scaling in Keras's own `fit`: what a training step reports, a step in which a skip is whole, and a callback that
records the scale and the tally without holding `fit` up.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.precision.keras_internals import (
    calls_through,
    loss_tracker,
    optimizer_values_in_fit,
    untracked_variables,
)
from mpt_cli.precision.optimizer import LossScaleOptimizer, backend_step
from mpt_cli.precision.policy import layers_of
from mpt_cli.precision.scale_state import TALLY, outcome_code

Tensor = Any


class StepRecord(NamedTuple):
    """What one step reports, as scalars on the device; telemetry is made of it.

    `loss` is the unscaled loss, float32; `scale_before` made this step's gradients, `scale_after` makes the next
    step's; `finite` is a boolean; `counter` counts applied steps since the scale changed; the last five are the
    `finite.GradientDefects` of the step. Where a model's own step uses several optimizers, `optimizers` has the record
    of each, and the other fields are those of all: `combined`.
    """

    loss: Tensor
    scale_before: Tensor
    scale_after: Tensor
    learning_rate: Tensor
    finite: Tensor
    counter: Tensor
    nan: Tensor
    inf: Tensor
    nearest: Tensor
    holds_inf: Tensor
    zero: Tensor
    optimizers: "tuple[StepRecord, ...]" = ()
    is_let_through: Tensor | None = None  # applied though it was not finite (`ScaleRule.lets_through_after`)

    def applied(self, whatever: bool = False) -> Tensor:
        """Whether the gradients were used; `whatever` they were, where the optimizer uses all."""
        used = ops.logical_or(self.finite, whatever)
        return used if self.is_let_through is None else ops.logical_or(used, self.is_let_through)

    @property
    def outcome(self) -> Tensor:
        """`outcome_code` of the step."""
        let_through = False if self.is_let_through is None else self.is_let_through
        return outcome_code(self.finite, let_through)


def let_through(optimizer: LossScaleOptimizer, finite: Tensor, applied: Tensor) -> Tensor | None:
    """For a record of its step; None where the optimizer's rule lets nothing through."""
    if optimizer.rule.lets_through_after is None:
        return None
    return ops.logical_and(ops.logical_not(finite), applied)


def traced_record(
    trace: Tensor, loss: Tensor, scales: tuple[Tensor, Tensor], learning_rate: Tensor, counter: Tensor
) -> StepRecord:
    """The record of one optimizer in a step that is not ours, from `ScaleState.trace`; `scales` before and after."""
    return StepRecord(
        loss=loss, scale_before=scales[0], scale_after=scales[1], learning_rate=learning_rate,
        finite=ops.equal(trace[1], 1), counter=counter, nan=trace[2], inf=trace[3], nearest=trace[4],
        holds_inf=trace[5], zero=trace[6],
    )  # fmt: skip


def combined(records: list[StepRecord]) -> StepRecord:
    """One record for the step of several optimizers: finite where all are, scale and rate those of the first."""
    first = records[0]
    if len(records) == 1:
        return first
    finite = ops.all(ops.stack([record.finite for record in records]))
    applied = ops.all(ops.stack([record.applied() for record in records]))
    return first._replace(
        is_let_through=ops.logical_and(ops.logical_not(finite), applied),
        finite=finite,
        nan=sum(record.nan for record in records), inf=sum(record.inf for record in records),
        zero=ops.min(ops.stack([record.zero for record in records])), optimizers=tuple(records),
    )  # fmt: skip


class ForwardOrder:
    """In which order a step calls the layers of its model, seen while the step is traced: a compiled step pays nothing.

    The order in which a model holds its variables need not be that in which it uses them.
    """

    def __init__(self, model: Any) -> None:
        self._layers = layers_of(model)
        self._called: list[int] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around the forward pass."""
        with calls_through(self._layers, self._noting):
            yield

    def _noting(self, index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(*arguments: Any, **named: Any) -> Any:
            if index not in self._called:
                self._called.append(index)
            return call(*arguments, **named)

        return noted_call

    def ranks(self, variables: Sequence[Any]) -> list[int]:
        """For each variable the place of the innermost layer that holds it, by its first call: what comes back wrong
        to any use of a shared layer spoils its gradient, and that of all layers before. -1 for those of no such layer.
        """
        found: dict[int, tuple[int, int]] = {}
        for place, index in enumerate(self._called):
            own = self._layers[index].trainable_variables
            for variable in own:
                found[id(variable)] = min(found.get(id(variable), (len(own), place)), (len(own), place))
        return [found[id(variable)][1] if id(variable) in found else -1 for variable in variables]


def packed(batch: Any) -> Any:
    """A batch `(x, y, sample_weight)` as Keras's `fit` hands it to a step: without what is not there."""
    return keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(batch))


def state_to_keep(model: Any) -> list[Any]:
    """Non-trainable float variables that a skipped step must leave alone (BatchNormalization's statistics, the states
    of a stateful RNN, …).

    Seed generators hold integers and move on: repeating a dropout mask helps nobody.
    """
    variables = [*model.non_trainable_variables, *untracked_variables(model)]
    return [v for v in variables if keras.backend.is_float_dtype(v.dtype)]


def keep_skips_whole(model: Any) -> Any:
    """Make Keras's own `fit` leave the whole of `model` alone in a skipped step; returns `model`.

    The model must be compiled with `mpt_cli.precision.LossScaleOptimizer`. Works for Sequential, functional,
    subclassed and loaded models on both backends; a model that is saved and loaded needs it again. In an epoch without
    any applied step the loss and all metrics are nan. Raises ValueError for another optimizer, a model without
    trainable weights once it is trained, one with a `train_step` of its own, which would be replaced, and on several
    replicas of a `tf.distribute` strategy one compiled with XLA or several steps per execution, where Keras's `fit`
    fails with any optimizer.

    >>> import keras
    >>> from mpt_cli.precision import LossScaleOptimizer
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    >>> model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    >>> model = keep_skips_whole(model)
    >>> history = model.fit(keras.ops.ones((4, 2)) * float("inf"), keras.ops.ones((4, 1)), verbose=0)
    >>> bool(keras.ops.all(keras.ops.isfinite(model.layers[0].moving_mean))), int(model.optimizer.skipped_steps)
    (True, 1)
    """
    if has_own_train_step(model):
        raise ValueError(f"{type(model).__name__} has a train_step of its own, which this would replace.")
    if not getattr(model, "compiled", False) or not isinstance(model.optimizer, LossScaleOptimizer):
        raise ValueError(f"{type(model).__name__} must be compiled with mpt_cli.precision.LossScaleOptimizer first.")
    if keras.backend.backend() == "tensorflow":
        check_replicas(model)
        model.train_step = MethodType(_train_step_tensorflow, model)
    else:
        model.train_step = MethodType(_train_step_jax, model)
    model.get_metrics_result = MethodType(_metrics_or_nan, model)
    model.train_function = None  # made anew by the next `fit`
    return model


def check_replicas(model: Any) -> None:
    """ValueError for what Keras's `fit` can't do on several replicas; its own errors come from inside TensorFlow."""
    strategy = getattr(model, "distribute_strategy", None)
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    for name, wanted in (("jit_compile", False), ("steps_per_execution", 1)):
        if replicas > 1 and getattr(model, name) != wanted:
            raise ValueError(f"Keras's `fit` on {replicas} replicas works with `{name}={wanted}` only. Received: "
                             f"{name}={getattr(model, name)}. Compile the model with {name}={wanted}.")


def _train_step_tensorflow(model: Any, data: Any) -> dict[str, Tensor]:
    logs: dict[str, Tensor] = backend_step().train_step(model, data)[0]
    return logs


def _train_step_jax(model: Any, state: Any, data: Any) -> tuple[dict[str, Tensor], Any]:
    logs, new_state, _ = backend_step().train_step(model, backend_step().TrainState(*state), data, _batch_split())
    return logs, tuple(new_state)


def _batch_split() -> Any:
    """On JAX: the devices that Keras splits a batch over, as a `BatchSplit`; None where it splits none."""
    from mpt_cli.precision.sums_jax import BatchSplit

    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.DataParallel) or distribution.device_mesh.devices.size == 1:
        return None
    return BatchSplit(distribution.device_mesh.backend_mesh, distribution.batch_dim_name)


def metrics_of(model: Any) -> dict[str, Tensor]:
    """The metrics so far, as the model's class gives them."""
    return dict(type(model).get_metrics_result(model))


def _metrics_or_nan(model: Any) -> dict[str, Tensor]:
    """What Keras reads at the end of an epoch: a mean over nothing is 0, which would look like the best epoch of all.

    Not what it shows after a batch, where `TerminateOnNaN` would take a skipped first batch for the end.
    """
    none_applied = keras.ops.equal(loss_tracker(model).count, 0)
    return {
        name: keras.ops.where(none_applied, float("nan"), keras.ops.cast(value, "float32"))
        for name, value in metrics_of(model).items()
    }


def has_own_train_step(model: Any) -> bool:
    """Whether the model's class overrides Keras's `train_step`.

    >>> has_own_train_step(keras.Sequential())
    False
    """
    return bool(type(model).train_step is not keras.Model.train_step)


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
        self._pending.append(_copy_on_device(self._model))

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


def _copy_on_device(model: Any) -> tuple[Tensor, Tensor]:
    """Copies of scale and tally: the next step may overwrite, or on JAX delete, what it is given."""
    state = model.optimizer.scale_state
    inside_fit = optimizer_values_in_fit(model)
    if inside_fit is None:
        return ops.copy(state.by_name["scale"]), ops.copy(state.by_name["tally"])
    by_name = dict(zip(state.by_name, inside_fit, strict=False))
    return ops.copy(by_name["scale"]), ops.copy(by_name["tally"])
