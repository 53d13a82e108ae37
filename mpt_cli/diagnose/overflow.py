"""Which part of a model made a step overflow: the first value or gradient that is not finite, in the order of time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from mpt_cli.diagnose.overflowed_steps import Overflow
from mpt_cli.diagnose.passes import Counted, Counts, PassOptions, build_pass, weights_of
from mpt_cli.diagnose.ranges import owners_of_weights
from mpt_cli.diagnose.replay import Replayed
from mpt_cli.diagnose.watching import GRADIENT, VALUE, Watch, name_of, parts_of
from mpt_cli.precision.gradients import INFS, NANS, largest_exponent
from mpt_cli.training.faults import build_injector
from mpt_cli.training.state import collect_state, restore_state

INPUT, OUTPUT, WEIGHTS = "input", "output", "weights"
FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Sighting:
    """What went through one place of the model: the `phase` it did so in, and how large it was.

    `place` is the part's input, its output or its weights; in the backward pass their gradients are meant.
    `largest_exponent` is that of the finite magnitudes, None where there are none.
    """

    phase: str
    part: str
    kind: str
    dtype: str
    place: str
    largest_exponent: int | None
    infs: int
    nans: int

    @property
    def is_finite(self) -> bool:
        return self.infs + self.nans == 0


@dataclass(frozen=True)
class Finding:
    """The step again. `sightings` are in the order of time; `first` is the one that was not finite first.

    `overflowed_again`: the step overflowed when it was trained again as the run had trained it. `in_run_mode`: the
    probes saw it compiled like the run, else with float16 rounded everywhere. `bad_weights` and `bad_inputs` say what
    was not finite before the step computed anything.
    """

    overflow: Overflow
    overflowed_again: bool
    loss: float
    loss_scale: float
    sightings: Sequence[Sighting]
    first: Sighting | None
    in_run_mode: bool
    bad_weights: list[str]
    bad_inputs: bool
    largest_input: float

    @property
    def before(self) -> list[Sighting]:
        """Up to three of the same phase that were the last to be finite."""
        if self.first is None:
            return []
        earlier = self.sightings[: list(self.sightings).index(self.first)]
        return [seen for seen in earlier if seen.phase == self.first.phase and seen.largest_exponent is not None][-3:]


def examine_overflow(replayed: Replayed) -> Finding:
    """Train the step again, then look at it with probes in every layer; the run's state is that before the step."""
    parts, model = replayed.parts, replayed.parts.model
    batch = replayed.course.look_ahead(1, whole=False)[0]
    scale, state = float(parts.optimizer.loss_scale), collect_state(model)
    again = not replayed.course.train_step()
    restore_state(model, state)
    bad_weights = [v.path for v in weights_of(model) if not np.isfinite(_on_host(v.value)).all()]
    counted, sightings, in_run_mode = _look(replayed, batch)
    inputs = [_on_host(x) for x in keras.tree.flatten(batch[0])]
    first = _first(sightings, isfinite(counted.losses[0]))
    return Finding(
        replayed.overflow, again, counted.losses[0], scale, sightings, first, in_run_mode, bad_weights,
        not all(np.isfinite(x).all() for x in inputs), max((float(np.abs(x).max()) for x in inputs), default=0.0),
    )  # fmt: skip


def _look(replayed: Replayed, batch: Any) -> tuple[Counted, list[Sighting], bool]:
    """What the probes see, compiled like the run; where all is finite so, with float16 rounded everywhere."""
    parts, model = replayed.parts, replayed.parts.model
    injector = build_injector(parts.settings.fault, model, parts.data, 1)
    around = injector.around if injector else None
    for jit_compile in (True, False) if parts.jit_compile else (False,):
        watch = Watch(parts_of(model), inputs=True, values=True)
        counted = build_pass(model, watch, PassOptions(None, jit_compile, around))(batch)
        sightings = [*_forward(model, watch, counted), *_backward(model, watch, counted)]
        if _first(sightings, isfinite(counted.losses[0])) is not None:
            break
    return counted, sightings, jit_compile == parts.jit_compile


def _first(sightings: Sequence[Sighting], loss_is_finite: bool) -> Sighting | None:
    """Where the loss is finite, what was infinite on its way did no harm: a mask, or a ReLU's input of -inf."""
    phases = (BACKWARD,) if loss_is_finite else (FORWARD, BACKWARD)
    return next((seen for phase in phases for seen in sightings if seen.phase == phase and not seen.is_finite), None)


def _forward(model: Any, watch: Watch, counted: Counted) -> Iterator[Sighting]:
    """Of the innermost parts, their inputs and outputs as they were called."""
    parts, inputs = parts_of(model), counted.sinks[: len(watch.parts), VALUE]
    outputs = counted.sinks[len(watch.parts) :, VALUE]
    for index in _innermost(parts, watch):
        for place, counts in ((INPUT, inputs[index]), (OUTPUT, outputs[index])):
            yield _sighting(FORWARD, parts[index], watch.dtypes.get(index, ""), place, counts)


def _backward(model: Any, watch: Watch, counted: Counted) -> Iterator[Sighting]:
    """The same backwards: what arrives at an output, then what is made of it for weights and input."""
    parts, inputs = parts_of(model), counted.sinks[: len(watch.parts), GRADIENT]
    outputs, owners = counted.sinks[len(watch.parts) :, GRADIENT], owners_of_weights(model)
    for index in reversed(_innermost(parts, watch)):
        dtype = watch.dtypes.get(index, "")
        if index in watch.trained:
            yield _sighting(BACKWARD, parts[index], dtype, OUTPUT, outputs[index])
        own = [place for place, owner in enumerate(owners) if owner == index]
        if own:
            yield _sighting(BACKWARD, parts[index], dtype, WEIGHTS, counted.weights[own].sum(axis=0))
        if index in watch.trained_inputs:
            yield _sighting(BACKWARD, parts[index], dtype, INPUT, inputs[index])


def _innermost(parts: Sequence[Any], watch: Watch) -> list[int]:
    """Indices in the order of the calls; a layer made of layers is left to these, unless it has weights of its own."""
    owning = {index for index in watch.order if not _inner_layers(parts[index])}
    own_weights = {index for index in watch.order if index not in owning and _has_own_weights(parts[index])}
    return [index for index in watch.order if index in owning | own_weights]


def _has_own_weights(layer: Any) -> bool:
    inner = {id(v) for part in _inner_layers(layer) for v in part.variables}
    return any(id(v) not in inner for v in layer.trainable_variables)


def _inner_layers(part: Any) -> list[Any]:
    return list(part._flatten_layers(include_self=False)) if isinstance(part, keras.Layer) else []


def _sighting(phase: str, part: Any, dtype: str, place: str, counts: Counts) -> Sighting:
    infs, nans = int(counts[INFS]), int(counts[NANS])
    return Sighting(phase, name_of(part), type(part).__name__, dtype, place, largest_exponent(counts), infs, nans)


def _on_host(value: Any) -> NDArray[Any]:
    is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype))
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(value, "float32") if is_float else value))
