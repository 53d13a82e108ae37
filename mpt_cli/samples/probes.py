"""Probes around every layer of a model, which count what goes through them, forward and backward, and change nothing.

Each layer's `call` is replaced by one that passes tensors through an identity, whose gradient for a perturbation is the
counts of `precision.gradients.statistics_of_each`. The counts leave a compiled pass as gradients, so nothing leaks out
of loops, branches or recomputed blocks, and all other gradients stay bit for bit what they were. Any kind of model will
do: Sequential, functional or subclassed, built by whomever.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.gradient_check import Tensor, is_overwritten
from mpt_cli.precision.gradients.custom_gradients import custom_gradient, is_float_tensor, map_floats
from mpt_cli.precision.gradients.exponent_counts import SLOTS, statistics_of_each
from mpt_cli.precision.keras_internals import calls_through, keep_logits

GRADIENT, VALUE = 0, 1  # rows of a perturbation: counts of the gradient and of the value itself


class Probes:
    """Probes around `parts` (layers, operations of a functional model), active inside `attached`.

    Tracing fills: `order`, the indices of the parts in the order of their calls; `dtypes` of their outputs;
    `consumers`, the parts that use the output of a part; `trained`, the parts that have a trainable weight or are
    called after one was used. Training computes no gradients for other parts, so these are not counted.
    """

    def __init__(self, parts: Sequence[Any], inputs: bool) -> None:
        self.parts, self.inputs = list(parts), inputs
        self.order: list[int] = []
        self.dtypes: dict[int, str] = {}
        self.consumers: dict[int, set[int]] = {}
        self.trained: set[int] = set()
        self._makers: dict[int, tuple[int, Tensor]] = {}  # by the id of a tensor, which is kept so that the id is its
        self._last: int | None = None  # what is made between layers counts as made by the last part before it

    def perturbations(self) -> list[Tensor]:
        """Return zeros to differentiate by: for each part's output and, with `inputs`, before them for each input."""
        return [ops.zeros((2, SLOTS), "float32") for _ in range(len(self.parts) * (2 if self.inputs else 1))]

    @contextmanager
    def attached(self, perturbations: Sequence[Tensor]) -> Iterator[None]:
        """Make the parts call through probes in the block; afterwards each has its old `call`."""
        self.trained.clear()
        with calls_through(self.parts, lambda index, call: self._probed(index, call, perturbations)):
            yield
        self._makers, self._last = {}, None

    def _probed(self, index: int, call: Callable[..., Any], perturbations: Sequence[Tensor]) -> Callable[..., Any]:
        def probed_call(*arguments: Any, **named: Any) -> Any:
            out_of = perturbations[index + len(self.parts) * self.inputs]  # only now: each replica has its own
            if index not in self.order:
                self.order.append(index)
            for x in _float_tensors((arguments, named)):
                maker = self._makers[id(x)][0] if id(x) in self._makers else self._last
                if maker is not None and maker != index:
                    self.consumers.setdefault(maker, set()).add(index)
            if self.inputs:
                arguments, named = map_floats(lambda x: insert_probe(x, perturbations[index]), (arguments, named))
            is_trained = bool(self.trained or getattr(self.parts[index], "trainable_weights", ()))
            before = _float_tensors((arguments, named))
            if is_trained or all(_dtype(x) != "bfloat16" for x in before):
                outputs = call(*arguments, **named)
            else:  # training takes no gradient through it, and TensorFlow has none of a rotated image, say
                outputs = call(*map_floats(ops.stop_gradient, arguments), **map_floats(ops.stop_gradient, named))
                outputs = map_floats(lambda x: reduce(_keep_reachable, before, x), outputs)
            outputs = map_floats(lambda x: keep_logits(x, insert_probe(x, out_of)), outputs)
            if is_trained:
                self.trained.add(index)
            self._last = index
            for x in _float_tensors(outputs):
                self.dtypes[index] = _dtype(x)
                self._makers[id(x)] = index, x
            return outputs

        return probed_call


@custom_gradient
def insert_probe(x: Tensor, perturbation: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Return `x` unchanged; the gradient for `perturbation` counts the gradient of x and x itself."""
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
    """Return the trainable variables that an optimizer moves by a gradient, which excludes float8 statistics."""
    return [variable for variable in model.trainable_variables if not is_overwritten(variable)]
