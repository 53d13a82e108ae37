"""Gradients of single layers at a scale of their own, for models that no loss scale fits as a whole.

Inside such a layer all that flows backward is multiplied by a factor beside the loss scale: its output's gradient as it
comes in, and with it those of its weights and of everything between. What leaves, to the layers before it and to its
weights, is divided by the factor again, in float32 where it is a weight's. So every other gradient, regularizers and
weights that layers share are what they were, and nobody after the backward pass has to know. Between two such layers
one factor takes the place of two: float16 need never hold what is passed on at the loss scale alone.

Factors are powers of two: in float32 they change no digit.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import log2
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.finite import divide, is_overwritten
from mpt_cli.precision.gradients.custom_gradients import define_gradient, map_floats, scale_gradient
from mpt_cli.precision.keras_internals import LayerCall, calls_through, inner_layers, losses_through, reads_through
from mpt_cli.precision.policy import (
    computes_in_float16,
    layers_run_uncalled,
    matches,
    name_of,
    parts_of,
    with_inner_layers,
)

Tensor = Any
LARGEST_FACTOR = 2.0**64  # beside any loss scale it leaves gradients of float16 within the range of float32


@dataclass(frozen=True, eq=False)
class LayerScales:
    """The factors of all `parts_of` a model, 1 where a part has none; each weight of its layers knows its own."""

    factors: tuple[float, ...]
    scaled: tuple[tuple[Any, float], ...]  # the parts that have one
    idle: tuple[str, ...] = ()  # patterns of which no layer computes in float16

    @classmethod
    def of(cls, model: Any, factors: Mapping[str, float]) -> "LayerScales":
        """Of layers by pattern of name or path, as in `policy.overrides`: all inside a layer goes with it, the last
        match wins, and what computes in another dtype than float16 is left as it is.

        ValueError for a pattern that matches nothing, for weights in float16, and for a layer that is run by another
        one without being called.
        """
        every = parts_of(model)
        found, idle = dict[int, float](), list[str]()
        for pattern, factor in factors.items():
            meant = [part for part in every if matches(part, pattern)]
            if not meant:
                names = ", ".join(dict.fromkeys(part.name for part in every))
                raise ValueError(f"no layer matches the pattern {pattern!r}. The model's layers are: {names}.")
            half = [part for part in with_inner_layers(meant) if getattr(part, "compute_dtype", "float16") == "float16"]
            found.update((id(part), factor) for part in half)
            idle += [] if half else [pattern]
        _refuse_ineffective(every, found)
        scaled = tuple((part, found[id(part)]) for part in every if id(part) in found)
        return cls(tuple(found.get(id(part), 1.0) for part in every), scaled, tuple(idle))

    @property
    def largest(self) -> float:
        """The most by which gradients are larger than the loss scale alone makes them, 1 at the least."""
        return max(1.0, *self.factors)

    @property
    def description(self) -> str:
        """The layers by their factors, for the header."""
        by_factor: dict[float, list[str]] = {}
        for part, factor in self.scaled:
            by_factor.setdefault(factor, []).append(part.name)
        return ", ".join(f"{' '.join(names)} x 2^{int(log2(factor))}" for factor, names in by_factor.items())

    @contextmanager
    def in_force(self, model: Any) -> Iterator[None]:
        """Around the forward pass that is differentiated."""
        regions, layers = _Regions(), [model, *inner_layers(model)]
        weights = [variable for variable in model.trainable_variables if not is_overwritten(variable)]
        with (
            calls_through([part for part, _ in self.scaled], lambda i, call: regions.call(self.scaled[i][1], call)),
            losses_through(layers, regions.add_loss),
            reads_through(weights, regions.read),
        ):
            yield


def _refuse_ineffective(parts: list[Any], found: Mapping[int, float]) -> None:
    for owner in (part for part in parts if isinstance(part, keras.Layer)):
        for part in layers_run_uncalled(owner):
            if id(part) in found and found[id(part)] != found.get(id(owner), 1.0):
                raise ValueError(f"layer {name_of(part)!r} can't have a scale of its own: {type(owner).__name__} "
                                 f"{owner.name!r} runs it. Name {owner.name!r} instead.")
    for part in parts:
        half = [v.name for v in getattr(part, "weights", ()) if v.trainable and v.dtype == "float16"]
        if half and id(part) in found:
            raise ValueError(f"layer {name_of(part)!r} must have weights in float32, in which their gradients are "
                             f"divided by its scale. Received: {half[0]} in float16. Use mixed_float16.")


class _Regions:
    """Where in the model the pass is that is being traced: `factor` is that of the gradients of what is computed now.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._left: dict[int, tuple[Tensor, Tensor, float]] = {}  # outputs of scaled layers, before they were divided

    def call(self, factor: float, call: LayerCall) -> LayerCall:
        def call_at_scale(*arguments: Any, **named: Any) -> Any:
            outside = self.factor
            arguments, named = map_floats(lambda x: self._entering(x, factor), (arguments, named))
            self.factor = factor
            try:
                outputs = call(*arguments, **named)
            finally:
                self.factor = outside
            return map_floats(lambda x: self._leaving(x, factor), outputs)

        return call_at_scale

    def _entering(self, x: Tensor, factor: float) -> Tensor:
        """`x` for a layer whose gradients have `factor`; of another such layer's output, that before it left."""
        _, x, outside = self._left.get(id(x), (None, x, self.factor))
        return x if outside == factor else scale_gradient(x, outside / factor)

    def _leaving(self, x: Tensor, factor: float) -> Tensor:
        if factor == self.factor:
            return x
        left = scale_gradient(x, factor / self.factor)
        self._left[id(left)] = left, x, factor  # which keeps it, so that its id stays its own
        return left

    def add_loss(self, add: Callable[..., None]) -> Callable[..., None]:
        """A loss of a layer's own is added to that of the model, which knows no factor."""

        def add_at_scale(loss: Any) -> None:
            add(map_floats(lambda x: x if self.factor == 1 else scale_gradient(x, self.factor), loss))

        return add_at_scale

    def read(self, value: Tensor) -> Tensor:
        """The value of a weight whose gradient is divided by the factor of where it is read, in float32."""
        if self.factor == 1:
            return value
        factor = self.factor
        unscaled = define_gradient(lambda value: value, lambda upstream, value: divide(upstream, factor))
        return unscaled(ops.convert_to_tensor(value))


def set_layer_scales(model: Any, factors: Mapping[str, float]) -> LayerScales | None:
    """Train `model` with `LayerScales.of` these from now on, whose ValueErrors it raises; without where there are none,
    or they are of nothing that computes in float16."""
    found = LayerScales.of(model, factors) if factors else None
    found = found if found is not None and found.scaled and computes_in_float16(model) else None
    model._mpt_layer_scales = found
    for variable in model.variables:
        variable._mpt_gradient_factor = 1.0
    parts = () if found is None else found.scaled
    for part, factor in sorted(parts, key=lambda scaled: -len(getattr(scaled[0], "weights", ()))):
        for variable in getattr(part, "weights", ()):
            variable._mpt_gradient_factor = factor  # that of the innermost layer with it comes last
    return found


def layer_scales(model: Any) -> LayerScales | None:
    """What `set_layer_scales` was told of `model`."""
    found = getattr(model, "_mpt_layer_scales", None)
    return found if isinstance(found, LayerScales) else None


def factors_by_layer(model: Any) -> dict[str, float] | None:
    """The factor of each layer that has one, by its path; None where none has."""
    scales = layer_scales(model)
    return None if scales is None else {name_of(part): factor for part, factor in scales.scaled}


def at_layer_scales(model: Any) -> AbstractContextManager[None]:
    """Around a forward pass of `model` that is differentiated as it is trained."""
    scales = layer_scales(model)
    return nullcontext() if scales is None else scales.in_force(model)
