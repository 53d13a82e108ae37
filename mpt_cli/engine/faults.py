"""Inject faults, which make numbers wrong on purpose in chosen compiled steps; and find real faults of the forward
pass: repeat the batch of a step with a non-finite loss, layer by layer, and name the first output with inf or nan.

The gradients can't show that layer: a non-finite loss makes all of them non-finite, while an overflow in the backward
pass leaves those of later layers intact (`precision.gradient_check.GradientDefects`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from mpt_cli.data.examples import DataSet, Examples
from mpt_cli.errors import Say, config_error, first_line
from mpt_cli.precision import computes_in_float16, has_custom, layers_of
from mpt_cli.precision.audit import LARGEST_FLOAT16
from mpt_cli.precision.gradient_check import Tensor, on_tensorflow
from mpt_cli.precision.gradients.custom_gradients import is_float_tensor, scale_gradient
from mpt_cli.precision.keras_internals import outputs_noted, predict_in_training, reading_values
from mpt_cli.precision.train_step import custom_steps, optimizers_of
from mpt_cli.settings.schema import FaultSettings
from mpt_cli.telemetry.record_types import FORWARD_PASS, IN_DATA, IN_LOSS, Event

VALUES = {"overflow": float("inf"), "nan": float("nan"), "zero": 0.0}


def build_injector(fault: FaultSettings, model: Any, data: DataSet) -> "Injector | None":
    """Return the injector for the steps of `model`, None without a fault; ConfigError for an unfit `fault.place`."""
    if fault.kind == "none":
        return None
    if fault.place != "data" and has_custom(model, "train_step"):
        rule = "must be data: the model has a train_step of its own."
        raise config_error("fault.place", rule, fault.place, "Use fault.place=data.")
    if fault.place == "data" and "float" not in data.input_dtype:
        raise config_error(
            "fault.place",
            f"must not be data with inputs in {data.input_dtype}: only floats can be nan or inf.",
            "data",
            "Use fault.place=forward.",
        )
    return Injector(fault, model)


def warn_of_fault(fault: FaultSettings) -> list[str]:
    """Return a warning for the header, so that nobody takes a rehearsal for a real run."""
    if fault.kind == "none":
        return []
    return [
        f"fault.kind={fault.kind}: THIS IS A REHEARSAL. Numbers go wrong on purpose ({fault.place}). fault=none ends "
        "it (docs/explanation/stops.md)."
    ]


class Injector:
    """Makes numbers wrong in the training steps of one model, as a `FaultSettings` says, not in evaluation.

    `wrap_step` takes a `precision` train step. The number of the step, read from the optimizer's count on the device,
    decides, so that steps per call and resumed runs make no difference.
    """

    def __init__(self, fault: FaultSettings, model: Any) -> None:
        self.fault, self.model = fault, model
        self._now = threading.local()  # the replicas of a MirroredStrategy are traced in threads that take turns
        compute_loss = model.compute_loss
        model.compute_loss = lambda *arguments, **named: self._spoil(compute_loss(*arguments, **named))

    def wrap_step(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the backend's `train_step` with the fault in it, called the same way."""
        if on_tensorflow():
            return lambda model, data: self._run(lambda spoiled: train_step(model, spoiled), data, self._factor())

        def with_state(model: Any, state: Any, data: Examples) -> Any:
            with reading_values(model.optimizer.variables, state.optimizer):
                factor = self._factor()
            return self._run(lambda spoiled: train_step(model, state, spoiled), data, factor)

        return with_state

    def _run(self, step: Callable[[Examples], Any], data: Examples, factor: Tensor) -> Any:
        self._now.factor = factor
        try:
            if self.fault.place == "data":
                data = data._replace(x=keras.tree.map_structure(lambda x: _spoiled_input(x, factor), data.x))
            return step(data)
        finally:
            self._now.factor = None

    def _factor(self) -> Tensor:
        """Return the factor of the chosen number, a float32 scalar: 1 in a step without a fault."""
        optimizer, fault = next(iter(optimizers_of(self.model).values())), self.fault
        custom = custom_steps(self.model)
        step = optimizer.seen_steps // (custom.updates_per_step if custom is not None else 1) + 1
        hit = ops.any(ops.equal(step, ops.convert_to_tensor(fault.at_steps or [-1], "int32")))
        if fault.every_steps is not None:
            hit = ops.logical_or(hit, ops.equal(step % fault.every_steps, 0))
        if fault.above_scale is not None:
            hit = ops.logical_and(hit, optimizer.loss_scale > fault.above_scale)
        return ops.where(hit, VALUES[fault.kind], 1.0)

    def _spoil(self, loss: Tensor) -> Tensor:
        factor = getattr(self._now, "factor", None)
        if factor is None or self.fault.place == "data":
            return loss
        return loss * ops.cast(factor, loss.dtype) if self.fault.place == "forward" else scale_gradient(loss, factor)


def _spoiled_input(x: Tensor, factor: Tensor) -> Tensor:
    """Return the first example of the batch times `factor`; on a MirroredStrategy that of each device."""
    if x is None or not keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)):
        return x
    is_first = ops.reshape(ops.equal(ops.arange(ops.shape(x)[0]), 0), (-1,) + (1,) * (len(x.shape) - 1))
    return ops.where(is_first, x * ops.cast(factor, x.dtype), x)


INF, NAN = "inf", "nan"
ALWAYS = 3  # the first steps that are searched; after them the 4th, 8th, 16th, …


class ForwardFault(NamedTuple):
    """`layer` is the path of the first one whose output was not finite, `variable` its first trainable variable, or the
    last one before it where it has none; `fault` is inf, or nan where the output holds no inf; `dtype` is that in which
    the layer computes. Where the batch itself is beyond float16, `largest_input` is its largest magnitude.
    """

    layer: str
    variable: str | None
    fault: str
    dtype: str | None = None
    largest_input: float | None = None


def find_forward_fault(model: Any, batch: Any) -> ForwardFault | None:
    """Send `batch`, `(x, y, sample_weight)`, through the model as a training step does, outside of any compiled
    function and without a trace: what it would change is thrown away.

    What a layer computes inside a loop of the backend (the cell of an RNN on JAX) shows in the output of the layer
    around it. None where all was finite up to the loss, which a float16 that is not rounded between two operations of a
    compiled step may be, and so may random numbers; and where the weights are not finite, as after a step that was
    applied.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    if fault := _fault_of(x):
        return ForwardFault(IN_DATA, None, fault)
    if _fault_of([variable.value for variable in model.trainable_variables]):
        return None
    layers, found = layers_of(model), list[ForwardFault]()
    variable: str | None = None

    def look(index: int, outputs: Any, inputs: Any) -> None:
        nonlocal variable
        if found:
            return
        layer = layers[index]
        variable = next((v.path for v in layer.trainable_variables), variable)
        # no layer made inf of its inputs yet: the cast to float16 did, of the batch if that is large
        if _fault_of(inputs) and (largest := largest_magnitude(x)) > LARGEST_FLOAT16 and computes_in_float16(model):
            found.append(ForwardFault(IN_DATA, None, INF, largest_input=largest))
        elif fault := _fault_of(outputs):
            found.append(ForwardFault(layer.path or layer.name, variable, fault, layer.compute_dtype))

    with keras.StatelessScope(collect_losses=True), outputs_noted(layers, look):
        outputs = predict_in_training(model, x)
    if not found and (fault := _fault_of(outputs)):
        return ForwardFault(IN_LOSS, variable, fault)
    return found[0] if found else None


def largest_magnitude(structure: Any) -> float:
    """Return that among all float tensors; nan if one of them has nan."""
    floats = filter(is_float_tensor, keras.tree.flatten(structure))
    arrays = [np.abs(ops.convert_to_numpy(ops.cast(each, "float32"))) for each in floats]
    return float(np.max([each.max() for each in arrays], initial=0.0))


def _fault_of(structure: Any) -> str | None:
    """Return inf or nan if one of the float tensors has some; None if all are finite or can't be read."""
    for tensor in filter(is_float_tensor, keras.tree.flatten(structure)):
        try:
            if not bool(ops.all(ops.isfinite(tensor))):
                return INF if bool(ops.any(ops.isinf(tensor))) else NAN
        except Exception:  # of a loop that is being traced: it has no values yet, and each backend says so its own way
            continue
    return None


@dataclass
class FaultSearch:
    """Names the layer in the events of steps with a non-finite loss: of the first few, then ever more rarely. So of
    steps with a large batch and nan in the gradients alone, which inf behind a tanh leaves, if the batch is the cause.

    The weights are those after the call that made the step, which are the same if all later steps of it were skipped. A
    failing search (too little memory, a model that can't be called outside of its step) is reported through `say`, and
    is the last.
    """

    model: Any
    say: Say
    _met: int = 0
    _works: bool = True

    def name_layers(self, events: list[Event], batch_of: Callable[[int], Any]) -> list[Event]:
        """Return the events, with variable, layer and fault where they were found; `batch_of` gives the batch of a
        step, None where it is not there any more."""
        return [self._named(event, batch_of) for event in events]

    def _named(self, event: Event, batch_of: Callable[[int], Any]) -> Event:
        is_forward = event.cause == FORWARD_PASS
        if (event.layer if is_forward else event.inf or not event.nan) or not self._works:
            return event
        try:
            batch = batch_of(event.step)
            if batch is None or not (is_forward or largest_magnitude(batch) > LARGEST_FLOAT16):
                return event
            self._met += 1
            if self._met > ALWAYS and self._met & (self._met - 1):
                return event
            found = find_forward_fault(self.model, batch)
        except Exception as error:  # a search must never end the run
            self._works = False
            self.say(f"the layer can't be determined here ({first_line(error)[:200]}); training continues without")
            return event
        return replace(event, **found._asdict()) if found and (is_forward or found.layer == IN_DATA) else event
