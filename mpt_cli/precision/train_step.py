"""A training step as a whole: what it reports, the float state that a skip puts back, and whole skips in Keras's own
`fit`; and models with a custom `train_step` or `test_step`: which optimizers the step uses, whether it scales its loss,
and what it reports. `apply_or_skip_tensorflow` and `apply_or_skip_jax` run the steps.

Nothing is trained to examine a custom step: it is traced once with optimizers that only observe.

An overflow in a custom step follows one rule for any number of optimizers. Each optimizer skips only its update and
moves only its scale. The state that all share, which is the float state that no optimizer trains (statistics of
normalisation, moving averages) and the metrics, is put back at the end of the step if any of them skipped, because the
forward pass that overflowed may have spoiled it. A second update in the same step that reads spoiled state (a frozen
discriminator's moving statistics) skips too; the next step is clean. A step counts as applied if all its optimizers
applied.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

import keras
import numpy as np
from keras import ops

from mpt_cli.precision.gradient_check import Tensor, on_tensorflow
from mpt_cli.precision.keras_internals import (
    loss_tracker,
    outputs_noted,
    put_optimizer,
    untracked_variables,
)
from mpt_cli.precision.optimizer import LossScaleOptimizer, backend_step
from mpt_cli.precision.policy import layers_of
from mpt_cli.precision.scale_state import ScaleState, StepRow, combined_ints

Logs = dict[str, Tensor]  # as Keras has it: the loss and the metrics
Optimizers = dict[str, LossScaleOptimizer]  # by the attributes that hold them


def combine_rows(rows: list[StepRow]) -> StepRow:
    """Return one row for the step of several optimizers: scale, rate and counter are those of the first."""
    if len(rows) == 1:
        return rows[0]
    floats, ints = ([getattr(row, part) for row in rows] for part in StepRow._fields)
    return StepRow(ops.concatenate([floats[0], *floats]), ops.concatenate([combined_ints(ops.stack(ints)), *ints]))


class ForwardOrder:
    """The order in which a step calls the layers of its model, noted while it is traced, so that it costs nothing
    later.

    The order of a model's variables may differ from the order in which it uses them.
    """

    def __init__(self, model: Any) -> None:
        self._layers = layers_of(model)
        self._called: dict[int, int] = {}  # the index of the first call of each

    def noted(self) -> AbstractContextManager[None]:
        """Note the calls of layers in the block, the forward pass."""
        return outputs_noted(self._layers, lambda index, *_: self._called.setdefault(index, len(self._called)))

    def ranks(self, variables: Sequence[Any]) -> list[int]:
        """Return the call index of the innermost layer that holds each variable, by its first call; -1 for none.

        A bad gradient from any use of a shared layer spoils its gradient, and those of all layers before it.
        """
        found: dict[int, tuple[int, int]] = {}
        for index, call_index in self._called.items():
            own = self._layers[index].trainable_variables
            for variable in own:
                found[id(variable)] = min(found.get(id(variable), (len(own), call_index)), (len(own), call_index))
        return [found[id(variable)][1] if id(variable) in found else -1 for variable in variables]


def ids_of(variables: Iterable[Any]) -> set[int]:
    """Return the ids of Keras's variables and of TensorFlow's inside them: a program may take gradients of either."""
    return {
        id(each) for variable in variables for each in (variable, getattr(variable, "value", None)) if each is not None
    }


def assign(variables: Sequence[Any], values: Sequence[Tensor]) -> None:
    """Give each of the variables its value, in the scope of variables that is open."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def packed(batch: Any) -> Any:
    """Return a batch `(x, y, sample_weight)` as Keras's `fit` passes it to a step: without the missing parts."""
    return keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(batch))


def state_to_keep(model: Any) -> list[Any]:
    """Return the non-trainable float variables that a skipped step leaves alone, such as BatchNormalization's.

    Seed generators hold integers, and advance in a skipped step too: there is no use in repeating a dropout mask.
    """
    variables = [*model.non_trainable_variables, *untracked_variables(model)]
    return [v for v in variables if keras.backend.is_float_dtype(v.dtype)]


def keep_skips_whole(model: Any) -> Any:
    """Make a skipped step in Keras's own `fit` leave all of `model` unchanged; return `model`.

    The model must be compiled with `mpt_cli.precision.LossScaleOptimizer`. Works for Sequential, functional, subclassed
    and loaded models on both backends; a model that is saved and loaded needs it again. In an epoch without any applied
    step the loss and all metrics are nan. Raises ValueError for another optimizer, for a model with a custom
    `train_step`, which would be replaced, for a model without trainable weights once it trains, and on several replicas
    of a `tf.distribute` strategy for XLA or several steps per execution, with which Keras's `fit` fails for any
    optimizer.

    >>> import keras
    >>> from mpt_cli.precision import LossScaleOptimizer
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    >>> model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    >>> model = keep_skips_whole(model)
    >>> history = model.fit(keras.ops.ones((4, 2)) * float("inf"), keras.ops.ones((4, 1)), verbose=0)
    >>> bool(keras.ops.all(keras.ops.isfinite(model.layers[0].moving_mean))), int(model.optimizer.skipped_steps)
    (True, 1)
    """
    if has_custom(model, "train_step"):
        raise ValueError(f"{type(model).__name__} has a train_step of its own, which this would replace.")
    if not getattr(model, "compiled", False) or not isinstance(model.optimizer, LossScaleOptimizer):
        raise ValueError(f"{type(model).__name__} must be compiled with mpt_cli.precision.LossScaleOptimizer first.")
    check_replicas(model)
    step = _train_step_tensorflow if on_tensorflow() else _train_step_jax
    model.train_step = MethodType(step, model)
    model.get_metrics_result = MethodType(_metrics_or_nan, model)
    model.train_function = None  # made anew by the next `fit`
    return model


def check_replicas(model: Any) -> None:
    """Raise ValueError for options that Keras's `fit` can't use on several replicas; its own errors come from inside
    TensorFlow."""
    strategy = getattr(model, "distribute_strategy", None)
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    for name, wanted in (("jit_compile", False), ("steps_per_execution", 1)):
        if replicas > 1 and getattr(model, name) != wanted:
            raise ValueError(
                f"Keras's `fit` on {replicas} replicas works with `{name}={wanted}` only. Received: "
                f"{name}={getattr(model, name)}. Compile the model with {name}={wanted}."
            )


def _train_step_tensorflow(model: Any, data: Any) -> Logs:
    if not isinstance(model.optimizer, LossScaleOptimizer):  # of a later `compile`
        return dict(type(model).train_step(model, data))
    logs: Logs = backend_step().train_step(model, data)[0]
    return logs


def _train_step_jax(model: Any, state: Any, data: Any) -> tuple[Logs, Any]:
    if not isinstance(model.optimizer, LossScaleOptimizer):
        logs, new_state = type(model).train_step(model, state, data)
        return logs, new_state
    logs, new_state, _ = backend_step().train_step(model, backend_step().TrainState(*state), data)
    return logs, tuple(new_state)


def metrics_of(model: Any) -> Logs:
    """Return the metrics so far from the model's own method."""
    return dict(type(model).get_metrics_result(model))


def logs_of(model: Any, loss: Tensor) -> Logs:
    """Return `metrics_of` after a step.

    Until a step of the epoch is applied, the loss is that of the step, as in Keras's fit: a mean over nothing is 0."""
    metrics = metrics_of(model)
    if "loss" in metrics:
        is_shown = ops.logical_and(ops.equal(loss_tracker(model).count, 0), ops.isfinite(loss))
        metrics["loss"] = ops.where(is_shown, ops.cast(loss, metrics["loss"].dtype), metrics["loss"])
    return metrics


def _metrics_or_nan(model: Any) -> dict[str, Any]:
    """Return the metrics that Keras reads at the end of an epoch, nan if no step was applied: the mean over nothing is
    0, which would look like the best epoch.

    The logs after a batch are different: with nan, `TerminateOnNaN` would end at a skipped first batch.
    """
    metrics = metrics_of(model)
    with suppress(TypeError, AttributeError):  # of a count that is traced, in a step of an evaluation
        if not float(ops.convert_to_tensor(loss_tracker(model).count)):
            return dict.fromkeys(metrics, float("nan"))
    return metrics


def has_custom(model: Any, method: str) -> bool:
    """Return whether the model's class overrides this method of Keras's; one with a `train_step` needs no `call`.

    >>> has_custom(keras.Sequential(), "call"), has_custom(keras.Sequential(), "train_step")
    (True, False)
    """
    return getattr(type(model), method) is not getattr(keras.Model, method)


COLUMNS = ("loss_scale", "applied_steps", "skipped_steps")  # of each further optimizer, as NAME/ATTRIBUTE


@dataclass
class OptimizerUse:
    """The use of one optimizer in a traced step: how often it scaled a loss and applied, and to which variables."""

    scaled: int = 0
    applied: int = 0
    variables: list[Any] = field(default_factory=list)

    def add(self, variables: list[Any]) -> None:
        known = {id(variable) for variable in self.variables}
        self.variables += [variable for variable in variables if id(variable) not in known]
        self.applied += 1


@dataclass(frozen=True)
class CustomSteps:
    """The facts that the loop needs about a model's custom steps.

    `optimizers` are named by the attribute of the model that holds each; the run shows the scale of the first.
    `train_names` and `test_names` name the values that the steps report, `loss` first: `train_loss` and `test_loss` say
    which value that is. They are empty if Keras's own step runs. `train_log` and `test_log` have the latest values,
    float32 of the length of the names, `train_log` only those of applied steps.
    """

    optimizers: Optimizers
    train_names: tuple[str, ...]
    test_names: tuple[str, ...]
    train_loss: str
    test_loss: str
    train_log: Any
    test_log: Any
    updates_per_step: int = 1  # of the first optimizer

    @property
    def variables(self) -> list[keras.Variable]:
        """Return the logs, which the compiled loop updates beside the metrics."""
        return [self.train_log, self.test_log]

    def train_values(self, logs: Logs) -> Tensor:
        """Return what a train_step returned as a vector in the order of `train_names`."""
        logs = flat_logs(logs)
        values = [reported_number(logs[self.train_loss]), *_others(logs)]
        for optimizer in list(self.optimizers.values())[1:]:
            values += [optimizer.loss_scale, optimizer.applied_steps, optimizer.skipped_steps]
        return ops.stack([ops.cast(value, "float32") for value in values])

    def test_values(self, logs: Logs) -> Tensor:
        """Return what a test_step returned as a vector in the order of `test_names`."""
        logs = flat_logs(logs)
        return ops.stack([reported_number(logs[self.test_loss]), *_others(logs)])

    def shared_state(self, model: Any) -> list[Any]:
        """Return the float variables that no optimizer trains and that a skipped step must leave alone."""
        trained = {id(v) for optimizer in self.optimizers.values() for v in optimizer.trained_variables}
        return [v for v in state_to_keep(model) if id(v) not in trained]


def custom_steps(model: Any) -> CustomSteps | None:
    """Return what `set_custom_steps` stored for `model`; None if its steps are Keras's."""
    found: CustomSteps | None = getattr(model, "_mpt_custom_steps", None)
    return found


def own_train_step(model: Any) -> CustomSteps | None:
    """Return the facts about the model's own train_step; None if Keras's trains it."""
    custom = custom_steps(model)
    return custom if custom is not None and custom.optimizers else None


def optimizers_of(model: Any) -> Optimizers:
    """Return the optimizers that train a compiled model, by the attributes that hold them."""
    custom = own_train_step(model)
    return {"optimizer": model.optimizer} if custom is None else custom.optimizers


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of the metrics, and the logs of a model with steps of its own."""
    custom = custom_steps(model)
    return [*model.metrics_variables, *(custom.variables if custom is not None else [])]


def reported_number(value: Tensor) -> Tensor:
    """Return a reported value as a float32 scalar; the mean of one that is an array."""
    return ops.mean(ops.cast(value, "float32"))


def flat_logs(logs: Any) -> Logs:
    """Return logs with the results of a metric that has several among the others, as Keras's `fit` shows them.

    Raises ValueError for logs that are no dict or empty.

    >>> flat_logs({"loss": 1.0, "compile_metrics": {"accuracy": 0.5}})
    {'loss': 1.0, 'accuracy': 0.5}
    """
    if not isinstance(logs, dict) or not logs:
        raise ValueError(
            "must return a dict with a value to go by, such as {'loss': loss}. Received: "
            f"{logs if logs is None or isinstance(logs, dict) else type(logs).__name__}."
        )
    flat: Logs = {}
    for name, value in logs.items():
        flat.update(flat_logs(value) if isinstance(value, dict) and value else {name: value})
    return flat


def _others(logs: Logs) -> list[Tensor]:
    return [reported_number(value) for name, value in logs.items() if name != "loss"]


def log_names(logs: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the names in which `logs` are reported, `loss` first, and which of them the loss is.

    The value called `loss`; else the first with loss in its name; else the first. ValueError of `flat_logs`.

    >>> log_names({"d_loss": 1.0, "g_loss": 2.0})
    (('loss', 'd_loss', 'g_loss'), 'd_loss')
    """
    logs = flat_logs(logs)
    loss = next((name for name in ("loss", *logs) if "loss" in name and name in logs), next(iter(logs)))
    return ("loss", *(name for name in logs if name != "loss")), loss


def set_custom_steps(
    model: Any,
    optimizers: Optimizers,
    train_logs: Any,
    test_logs: Any,
    uses: dict[str, OptimizerUse],
) -> None:
    """Make the compiled loop run the model's own steps from now on, by what `trace_train_step` and `trace_test_step`
    returned (None: no such step).

    ValueError of `log_names`.
    """
    train_names, train_loss = log_names(train_logs) if train_logs is not None else ((), "")
    test_names, test_loss = log_names(test_logs) if test_logs is not None else ((), "")
    train_names += tuple(f"{column}/{name}" for name in list(optimizers)[1:] for column in COLUMNS)
    train_log, test_log = (
        keras.Variable(np.full(max(len(names), 1), np.nan, "float32"), trainable=False, name=f"{kind}_log")
        for kind, names in (("train", train_names), ("test", test_names))
    )
    updates = next((uses[name].applied for name in optimizers), 1)
    model._mpt_custom_steps = CustomSteps(
        optimizers, train_names, test_names, train_loss, test_loss, train_log, test_log, updates
    )


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper of ours or of Keras's, else itself."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def optimizers_in(model: Any) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """Yield each optimizer that is an attribute of `model`, or in a list or dict that is one: name, optimizer, setter.

    The attribute `optimizer` comes last: where others are used, it is often there by default only.
    """
    attributes = sorted(vars(model).items(), key=lambda item: item[0] == "optimizer")
    for name, value in attributes:
        if isinstance(value, keras.optimizers.Optimizer):
            yield name, value, partial(put_optimizer, model) if name == "optimizer" else partial(setattr, model, name)
        elif isinstance(value, (list, dict)) and not name.startswith("_"):  # Keras's own attributes
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(inner, keras.optimizers.Optimizer):
                    yield f"{name}.{key}", inner, partial(value.__setitem__, key)


def trace_train_step(model: Any, optimizers: Optimizers, batch: Any) -> tuple[Any, dict[str, OptimizerUse]]:
    """Return what the model's own train_step returns for a batch like this, and how it uses the optimizers.

    Symbolic: nothing is computed, no variable changes. What the step raises is raised.
    """
    uses = {name: OptimizerUse() for name in optimizers}
    with ExitStack() as stack:
        for name, optimizer in optimizers.items():
            stack.enter_context(_watched(optimizer, uses[name]))
        return backend_step().trace(model, model.train_step, batch, with_optimizer=True), uses


def trace_test_step(model: Any, batch: Any) -> Any:
    """Return what the model's test_step returns for a batch like this; nothing is computed."""
    return backend_step().trace(model, model.test_step, batch, with_optimizer=False)


@contextmanager
def _watched(optimizer: LossScaleOptimizer, use: OptimizerUse) -> Iterator[None]:
    """Make `optimizer` count its calls and update nothing in the block. Its scale is a variable."""

    def scale(loss: Any) -> Any:
        use.scaled += 1
        return loss

    def apply(grads: Any, trainable_variables: Any = None, unscaled: bool | None = None) -> None:
        use.add(list(optimizer.trained_variables if trainable_variables is None else trainable_variables))

    def stateless_apply(
        optimizer_variables: Any, grads: Any, trainable_variables: Any, unscaled: bool | None = None
    ) -> tuple[Any, Any]:
        use.add(optimizer.trained_variables)
        return trainable_variables, optimizer_variables

    replaced = {
        "scale_loss": scale,
        "get_scaled_loss": scale,
        "get_unscaled_gradients": list,
        "apply": apply,
        "stateless_apply": stateless_apply,
    }
    state = optimizer.scale_state
    try:
        optimizer.scale_state = state or ScaleState(optimizer.rule)
        for name, function in replaced.items():
            setattr(optimizer, name, function)
        yield
    finally:
        optimizer.scale_state = state
        for name in replaced:
            delattr(optimizer, name)
