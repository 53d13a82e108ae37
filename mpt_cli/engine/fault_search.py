"""Where a forward pass went wrong: the batch of a step whose loss was not finite goes through the model once more,
layer by layer, and the first output that holds inf or nan is named.

The gradients can't tell it. A loss that is not finite makes all of them so, while an overflow of the backward pass
leaves those of the later layers whole (`precision.finite.GradientDefects`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.engine.feed import Piece
from mpt_cli.precision import layers_of
from mpt_cli.precision.keras_internals import calls_through, predict_in_training
from mpt_cli.telemetry.records import FORWARD_PASS, OVERFLOW, Event

Tensor = Any
DATA, LOSS = "data", "loss"  # where no layer did it
INF, NAN = "inf", "nan"
ALWAYS = 3  # so many of the first such steps are looked into; after them the 4th, 8th, 16th, …


@dataclass(frozen=True)
class ForwardFault:
    """`layer` is the path of the first one whose output was not finite, `variable` its first trainable variable, or the
    last one before it where it has none; `fault` is inf, or nan where the output holds no inf.
    """

    layer: str
    variable: str | None
    fault: str


def find_forward_fault(model: Any, batch: Any) -> ForwardFault | None:
    """Sends `batch`, `(x, y, sample_weight)`, through the model as a training step does, outside of any compiled
    function and without a trace: what it would change is thrown away.

    What a layer computes inside a loop of the backend (the cell of an RNN on JAX) shows in the output of the layer
    around it. None where all was finite up to the loss, which a float16 that is not rounded between two operations of a
    compiled step may be, and so may random numbers.
    """
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    if fault := _fault_of(x):
        return ForwardFault(DATA, None, fault)
    watch = _Watch(layers_of(model))
    forward = model if keras.backend.backend() == "tensorflow" else model.call
    with keras.StatelessScope(collect_losses=True), calls_through(watch.layers, watch.watched):
        outputs = predict_in_training(model, x, forward)
    if watch.found is not None:
        return watch.found
    fault = _fault_of(outputs)
    return ForwardFault(LOSS, watch.variable, fault) if fault else None


class _Watch:
    """Looks at what layers put out, up to the first that is not finite."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers
        self.variable: str | None = None
        self.found: ForwardFault | None = None

    def watched(self, index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        layer = self.layers[index]

        def watched_call(*arguments: Any, **named: Any) -> Any:
            outputs = call(*arguments, **named)
            if self.found is None:
                own = next((v.path for v in layer.trainable_variables), None)
                self.variable = own or self.variable
                if fault := _fault_of(outputs):
                    self.found = ForwardFault(layer.path or layer.name, self.variable, fault)
            return outputs

        return watched_call


def _fault_of(structure: Any) -> str | None:
    """inf or nan where one of the float tensors holds some; None where all are finite or not to be looked at."""
    for tensor in keras.tree.flatten(structure):
        if not hasattr(tensor, "dtype") or not keras.backend.is_float_dtype(
            keras.backend.standardize_dtype(tensor.dtype)
        ):
            continue
        try:
            if not bool(ops.all(ops.isfinite(tensor))):
                return INF if bool(ops.any(ops.isinf(tensor))) else NAN
        except Exception:  # of a loop that is being traced: it has no values yet, and each backend says so its own way
            continue
    return None


class BatchEngine(Protocol):
    """What the search needs of the engine of a backend."""

    model: Any

    def batch(self, source: Any, row: NDArray[np.int32]) -> Any:
        """`(x, y, sample_weight)` of these examples, on the device."""


class FaultSearch:
    """Names the layer in the events of steps whose loss was not finite, of the first few and then ever fewer.

    The weights are those after the call that the step was part of: the same where all its later steps were skipped. A
    search that fails (too little memory, a model that can't be called outside of its step) is reported through `say`,
    and no other is tried.
    """

    def __init__(self, engine: BatchEngine, say: Callable[[str], None]) -> None:
        self.engine, self.say = engine, say
        self._met = 0
        self._works = True

    def name_layers(self, events: list[Event], piece: Piece, first_step: int) -> list[Event]:
        """The events, with variable, layer and fault where they were found; `first_step` is that of the piece."""
        return [self._named(event, piece, event.step - first_step) for event in events]

    def _named(self, event: Event, piece: Piece, place: int) -> Event:
        if event.kind != OVERFLOW or event.cause != FORWARD_PASS or not self._works:
            return event
        self._met += 1
        if self._met > ALWAYS and self._met & (self._met - 1):
            return event
        try:
            found = find_forward_fault(self.engine.model, self.engine.batch(piece.source, piece.batch_indices[place]))
        except Exception as error:  # a look must never end what it looks at
            self._works = False
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            self.say(f"the layer can't be looked for here ({reason[0][:200]}); training goes on without")
            return event
        if found is None:
            return event
        return replace(event, variable=found.variable, layer=found.layer, fault=found.fault)
