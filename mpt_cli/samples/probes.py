"""Probes around every layer of a model, which count what goes through them, forward and backward, and change nothing.

Each layer's `call` is replaced by one that passes tensors through an identity, whose gradient for a sink is the counts
of `precision.gradients.statistics_of_each`. The counts leave a compiled pass as gradients, so nothing leaks out of
loops, branches or recomputed blocks, and all other gradients stay bit for bit what they were. Any kind of model will
do: Sequential, functional or subclassed, built by whomever.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.precision.gradient_check import dense, is_overwritten
from mpt_cli.precision.gradients import SINK_SIZE, statistics_of_each
from mpt_cli.precision.gradients.custom_gradients import custom_gradient, is_float_tensor, map_floats
from mpt_cli.precision.keras_internals import calls_through, keep_logits
from mpt_cli.precision.policy import layers_of

Counts = NDArray[np.float32]
Tensor = Any
GRADIENT, VALUE = 0, 1  # rows of a sink: counts of the gradient and of the value itself


class Probes:
    """Probes around `parts` (layers, operations of a functional model), on while `installed` lasts.

    What tracing shows is kept: `order`, the indices of the parts in the order they are called; `dtypes` of their
    outputs; `consumers`, which parts take the output of a part; `trained`, the parts whose output depends on a
    trainable weight. Training computes no gradient for the others, so theirs is not counted.
    """

    def __init__(self, parts: Sequence[Any], inputs: bool = False) -> None:
        self.parts, self.inputs = list(parts), inputs
        self.order: list[int] = []
        self.dtypes: dict[int, str] = {}
        self.consumers: dict[int, set[int]] = {}
        self.trained: set[int] = set()
        self.trained_inputs: set[int] = set()
        self._traces: _TensorOrigins = _TensorOrigins()

    def sinks(self) -> list[Tensor]:
        """Return zeros to differentiate by: for each part's output and, with `inputs`, before them for each input."""
        return [ops.zeros((2, SINK_SIZE), "float32") for _ in range(len(self.parts) * (2 if self.inputs else 1))]

    @contextmanager
    def installed(self, sinks: Sequence[Tensor]) -> Iterator[None]:
        """Have the parts call through probes inside; afterwards each has the `call` it had."""
        self._traces = _TensorOrigins()
        with calls_through(self.parts, lambda index, call: self._probed(index, call, sinks)):
            yield

    def _probed(self, index: int, call: Callable[..., Any], sinks: Sequence[Tensor]) -> Callable[..., Any]:
        def probed_call(*arguments: Any, **named: Any) -> Any:
            into = sinks[index] if self.inputs else None  # only now: each replica has its own
            out_of = sinks[index + len(self.parts) * self.inputs]
            given = _float_tensors((arguments, named))
            is_trained = self._enter(index, given)
            if into is not None:
                arguments, named = map_floats(lambda x: insert_probe(x, into), (arguments, named))
                self._traces.rename(given, _float_tensors((arguments, named)))
            is_trained = is_trained or bool(getattr(self.parts[index], "trainable_weights", ()))
            before = _float_tensors((arguments, named))
            if is_trained or all(_dtype(x) != "bfloat16" for x in before):
                outputs = call(*arguments, **named)
            else:  # training takes no gradient through it, and TensorFlow has none of a rotated image, say
                outputs = call(*map_floats(ops.stop_gradient, arguments), **map_floats(ops.stop_gradient, named))
                outputs = map_floats(lambda x: reduce(_keep_reachable, before, x), outputs)
            outputs = map_floats(lambda x: keep_logits(x, insert_probe(x, out_of)), outputs)
            self._leave(index, _float_tensors(outputs), is_trained)
            return outputs

        return probed_call

    def _enter(self, index: int, given: list[Tensor]) -> bool:
        """Note who made the inputs; whether they depend on a trainable weight."""
        if index not in self.order:
            self.order.append(index)
        for maker in self._traces.makers(given):
            if maker != index:
                self.consumers.setdefault(maker, set()).add(index)
        is_trained = any(self._traces.is_trained(x) for x in given)
        if is_trained:
            self.trained_inputs.add(index)
        return is_trained

    def _leave(self, index: int, outputs: list[Tensor], is_trained: bool) -> None:
        if is_trained:
            self.trained.add(index)
        for x in outputs:
            self.dtypes[index] = _dtype(x)
        self._traces.note(index, outputs, is_trained)


class _TensorOrigins:
    """Which part made a tensor of the pass that is being traced, and whether a weight had to do with it.

    Of a tensor made between layers neither is known. The last part before it then counts as its maker, and it counts
    as trained once anything was.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[int, bool, Tensor]] = {}  # the tensor is kept so that its id stays its own
        self._last: int | None = None
        self._any_trained = False

    def makers(self, tensors: list[Tensor]) -> set[int]:
        known = [self._made[id(x)][0] if id(x) in self._made else self._last for x in tensors]
        return {maker for maker in known if maker is not None}

    def is_trained(self, tensor: Tensor) -> bool:
        return self._made[id(tensor)][1] if id(tensor) in self._made else self._any_trained

    def rename(self, before: list[Tensor], after: list[Tensor]) -> None:
        for old, new in zip(before, after, strict=True):
            if id(old) in self._made:
                maker, is_trained, _ = self._made[id(old)]
                self._made[id(new)] = maker, is_trained, new

    def note(self, index: int, outputs: list[Tensor], is_trained: bool) -> None:
        self._made.update({id(x): (index, is_trained, x) for x in outputs})
        self._last = index
        self._any_trained = self._any_trained or is_trained


@custom_gradient
def insert_probe(x: Tensor, sink: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Return `x` unchanged; the gradient for `sink` counts the gradient of x and x itself."""
    return x, lambda upstream: (upstream, statistics_of_each([upstream, x]))


@custom_gradient
def _keep_reachable(x: Tensor, before: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Return `x` unchanged; the gradient for `before` is 0, so that the probes before it count."""
    return x, lambda upstream: (upstream, ops.zeros_like(before))


def _dtype(x: Tensor) -> str:
    return str(keras.backend.standardize_dtype(x.dtype))


def _float_tensors(structure: Any) -> list[Tensor]:
    return [x for x in keras.tree.flatten(structure) if is_float_tensor(x)]


def weights_of(model: Any) -> list[Any]:
    """Return the trainable variables that an optimizer moves by a gradient; float8 statistics are not among them."""
    return [variable for variable in model.trainable_variables if not is_overwritten(variable)]


def count_weights(gradients: list[Tensor]) -> Tensor:
    """Return the counts of each gradient, of shape (gradients, SINK_SIZE)."""
    return statistics_of_each([dense(gradient) for gradient in gradients])


def owners_of_weights(model: Any) -> list[int | None]:
    """Return the index of the innermost layer that has each trainable weight; None for one of the model itself."""
    layers = layers_of(model)
    held = [({id(v) for v in layer.trainable_variables}, index) for index, layer in enumerate(layers)]
    owners: list[int | None] = []
    for variable in weights_of(model):
        holding = [(len(variables), index) for variables, index in held if id(variable) in variables]
        owners.append(min(holding)[1] if holding else None)
    return owners
