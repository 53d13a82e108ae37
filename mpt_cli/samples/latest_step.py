"""Keep what a sample needs to repeat the latest step of Keras's own `fit`, or of a program with a `GradientTape`."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from mpt_cli.precision.gradient_check import NARROW, Tensor, dense, on_jax
from mpt_cli.precision.gradients.custom_gradients import is_float_tensor
from mpt_cli.precision.keras_internals import inner_layers, logits_of, note_half_output
from mpt_cli.precision.policy import layers_of
from mpt_cli.precision.scale_state import count_of
from mpt_cli.precision.train_step import ids_of, state_to_keep
from mpt_cli.telemetry.health_and_verdict import FLUSHED_SHARE

BATCH = "mpt_latest_batch"  # among the logs of a compiled step
MOST_KEPT = 2**20
EAGER_STEPS = 20  # keep one eager step in so many: it costs that step a fifth of its time
SMALLEST_NORMAL_FLOAT16 = 2.0**-14
NEAR_ZERO_SHARE = 0.01  # of values below it, where zeros may be flushed ones


class LatestStep(NamedTuple):
    """A step of `model`: its batch `(x, y, sample_weight)`, or where `is_seeded` the calls that `seeded_loss` takes.
    `recent` are batches of some steps up to it; `sources` are ids of the variables by which the program took its
    gradients, if that is known.
    """

    model: Any
    batch: Any
    is_seeded: bool = False
    recent: Sequence[Any] = ()
    sources: frozenset[int] = frozenset()

    @property
    def trained_ids(self) -> set[int]:
        """Return the ids of the variables of its model that it trains; others may be frozen by now."""
        if not self.sources:
            return ids_of(self.model.trainable_variables)
        return ids_of(self.model.variables) & self.sources

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Have the layers that the step trained trainable in the block, and no others, if one was frozen since."""
        is_frozen = not self.trained_ids <= ids_of(self.model.trainable_variables)
        before = [(layer, layer.trainable) for layer in [self.model, *inner_layers(self.model)] if is_frozen]
        if is_frozen:
            self.model.trainable = True
            for layer in layers_of(self.model):
                layer.trainable = bool(ids_of(layer.variables) & self.sources)
        try:
            yield
        finally:
            for layer, was_trainable in before:  # those around others first
                layer.trainable = was_trainable

    @property
    def hides_flushed(self) -> bool:
        """Return whether float16 may have flushed gradients of the loss before they reached the model, where a sample
        begins: all are 0, or there are zeros and values close to them."""
        if not self.is_seeded:
            return False
        given = [ops.convert_to_numpy(gradient) for _, gradients, _ in self.batch for gradient in gradients]
        halves = [np.abs(each).ravel() for each in given if each.dtype == "float16"]
        found = np.concatenate([np.ones(1), *halves])
        is_near = (found > 0) & (found < SMALLEST_NORMAL_FLOAT16)
        are_lost = (found == 0).mean() > FLUSHED_SHARE and is_near.mean() > NEAR_ZERO_SHARE
        return bool(are_lost) or not any(map(np.any, given))


def steps_of(variables: Sequence[Any], steps: Sequence[LatestStep]) -> list[LatestStep]:
    """Return for each model the step that trains any of these variables, if there is one that trains no others; none
    where a variable is in no model."""
    ids = [ids_of([variable]) for variable in variables]
    known = set().union(*ids)
    found = [step for step in steps if known & step.trained_ids]
    found = [step for step in found if step.sources <= known] or found
    trained = set().union(*(step.trained_ids for step in found))
    return [*{id(step.model): step for step in found}.values()] if all(map(trained.intersection, ids)) else []


class LatestBatch:
    """Keeps the batch of the latest step of `model` in `fit`, which passes it to no callback; it is not copied.

    The compiled step returns it in its logs, and the train function takes it out before anyone sees them. Both stay
    with the model: `make_train_function` makes them again after `compile` or when a callback calls it. With `calls`, a
    sample repeats the calls collected in the model's custom `train_step`, as nothing else knows its loss. On several
    replicas, where Keras averages what steps return, no batch is kept.
    """

    def __init__(self, model: Any, calls: "TapedCalls | None") -> None:
        self._model, self._calls = model, calls
        self._models, self._form = [model], None  # of what the latest step was given
        self._recent: list[Any] = []  # what the latest steps were given: up to MOST_KEPT values
        self.skipped: tuple[int, Any] | None = None  # the number of a call's last step that was skipped, and its batch
        self._log: Any = None  # that the train function writes
        self._has_replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1) > 1
        self._step, self._make = model.train_step, model.make_train_function
        model.train_step, model.make_train_function = self._train_step, self._make_train_function

    @classmethod
    def of(cls, model: Any, calls: "TapedCalls | None" = None) -> "LatestBatch":
        """Return what keeps the batches of `model`, the same each time."""
        found = getattr(model.train_step, "__self__", None)
        return found if isinstance(found, cls) else cls(model, calls)

    def train_with(self, log: Any) -> None:
        """Have the train function made anew, unless it writes this step log already."""
        if self._model.train_function is None or self._log is not log:
            self._log = log
            self._model.make_train_function(force=True)

    def take(self) -> list[LatestStep]:
        """Return the latest step and release its batch; None before the first step."""
        recent, self._recent = [keras.tree.pack_sequence_as(self._form, values) for values in self._recent], []
        if not recent:
            return []
        batch, seeds = recent[-1]
        if self._calls is None:
            return [LatestStep(self._model, batch, recent=[batch for batch, _ in recent])]
        return [LatestStep(*pair, is_seeded=True) for pair in zip(self._models, seeds, strict=True)]

    def _train_step(self, *state_and_data: Any) -> Any:
        if self._calls is None:
            return self._with_batch(self._step(*state_and_data), state_and_data[-1], [])
        with self._calls.collected() as found:
            result = self._step(*state_and_data)
        self._models = [model for model, _ in found]
        return self._with_batch(result, state_and_data[-1], [seeds for _, seeds in found])

    def _with_batch(self, result: Any, batch: Any, seeds: list[Any]) -> Any:
        """Return what a step returned, with the counts of the optimizer and the batch after them among its logs."""
        state = getattr(self._model.optimizer, "scale_state", None)  # None of an optimizer that is not ours
        logs, *new = result if on_jax() else (result,)
        self._form = keras.tree.map_structure(lambda _: 0, (batch, seeds))
        values = keras.tree.flatten((batch, seeds))
        is_known = isinstance(logs, dict) and all(value is not None for value in values)
        if state is None or self._has_replicas or not is_known:
            return result
        tally = new[0][2][list(state.by_name).index("tally")] if new else ops.copy(state.by_name["tally"])
        logs = {**logs, BATCH: (tally, *values)}
        return (logs, *new) if new else logs

    def _make_train_function(self, force: bool = False) -> None:
        before = self._model.train_function
        self._make(force)
        if self._model.train_function is not before:
            self._model.train_function = self._keeping(self._model.train_function)

    def _keeping(self, train_function: Callable[..., Any]) -> Callable[..., Any]:
        def train(*arguments: Any) -> Any:
            result = train_function(*arguments)
            logs = result[0] if on_jax() else result
            given = logs.pop(BATCH, ()) if isinstance(logs, dict) else ()
            if given:
                steps = max(1, MOST_KEPT // sum(math.prod(value.shape) for value in given[1:]))
                self._recent = [*self._recent, given[1:]][-steps:]
            if given and count_of(given[0], "consecutive_skips"):
                self.skipped = count_of(given[0], "seen"), keras.tree.pack_sequence_as(self._form, given[1:])[0]
            return result

        return train


class TapedCall(NamedTuple):
    model: Any
    inputs: Any
    outputs: list[Tensor]


class TapedCalls:
    """Calls of models under the tapes of a program on TensorFlow, and the gradients of the loss by their outputs, from
    which a sample repeats the backward pass of the program, whatever its loss is.

    The tensors of one eager step in `EAGER_STEPS` are kept, and copies of those of a compiled step, if their shapes are
    known in tracing, as XLA needs.
    """

    def __init__(self) -> None:
        self._tapes: set[int] = set()  # that are open
        self._is_inside = False  # of a call that is noted
        self._are_derived = False  # since then
        self._calls: list[TapedCall] = []  # since the first of the tapes was opened
        self._collected: list[tuple[Any, Any]] | None = None
        # models, the ids of the sources and what reads their latest step
        self._kept: dict[Any, tuple[Any, frozenset[int], Callable[[], Any]]] = {}
        self._skipped: dict[Any, tuple[list[Any], list[Any], Any]] = {}  # copies of inputs, models, form of the inputs
        self._thread = 0  # of the program: looks at its steps run elsewhere
        self._eager_steps = 0
        self._sources: frozenset[int] = frozenset()  # ids of the variables whose gradients are taken
        self._hold_all = False  # the models called, of these
        self.heads: dict[int, Any] = {}  # by their ids the models that were called last before a loss
        self._states: dict[int, tuple[Any, list[Any]]] = {}  # by their ids models, and their state
        self._before: dict[int, tuple[Any, Tensor]] = {}  # by their ids parts of it, and values before the next step
        self._has_stepped = False  # since then

    def open(self, tape: Any) -> None:
        """Note calls from here on."""
        if not self._tapes:
            self._calls, self._are_derived, self._thread = [], False, threading.get_ident()
            if self._has_stepped:
                self._before, self._has_stepped = {}, False
        self._tapes.add(id(tape))

    def close(self, tape: Any) -> None:
        self._tapes.discard(id(tape))

    def derive(self, own: Any = None) -> None:
        """Note that a derivative was taken while a tape other than its `own` is open. That tape may differentiate it
        again, and the weights then get more than the gradients of the outputs give."""
        self._are_derived = self._are_derived or bool(self._tapes - {id(own)})

    def note(self, model: Any, call: Callable[[], Any], inputs: Any) -> Any:
        """Return what `call` of `model` with these inputs returns."""
        if self._is_inside or not self._tapes or threading.get_ident() != self._thread:
            return call()
        self._is_inside = True
        try:
            outputs = note_half_output(model, call())
        finally:
            self._is_inside = False
        floats = filter(is_float_tensor, keras.tree.flatten(outputs))
        self._calls.append(TapedCall(model, inputs, list(map(logits_of, floats))))
        return outputs

    def keep_state(self, model: Any) -> None:
        """Keep the state of a model that is about to be called: its layers change it, in a skipped step too."""
        if self._is_inside or not self._tapes or threading.get_ident() != self._thread:
            return
        _, state = self._states.get(id(model)) or (model, state_to_keep(model))
        if model.built:
            self._states[id(model)] = model, state
        for variable in state:
            if id(variable) not in self._before and hasattr(variable.value, "assign"):  # not cast for a layer around
                self._before[id(variable)] = variable.value, ops.copy(variable.value)

    def state_if_skipped(self, trained: Iterable[Any]) -> list[tuple[Any, Tensor]]:
        """Return the state of the models of this step, without the `trained` variables, with its values before."""
        from mpt_cli.precision.apply_or_skip_tensorflow import is_readable

        self._has_stepped, ids = True, ids_of(trained)
        return [pair for key, pair in self._before.items() if key not in ids and is_readable(pair[1])]

    def calls_with(self, sources: Iterable[Any]) -> list[TapedCall]:
        """Return the calls of models that hold any of these variables, without calls in a separate function or under
        derivatives of derivatives."""
        import tensorflow as tf

        from mpt_cli.precision.apply_or_skip_tensorflow import is_readable

        self._eager_steps += tf.executing_eagerly()
        if self._are_derived or (tf.executing_eagerly() and self._eager_steps % EAGER_STEPS != 1):
            return []
        self._sources = ids = frozenset(ids_of(sources))
        held = [(call, ids_of(call.model.trainable_variables)) for call in self._calls]
        self._hold_all = ids <= set().union(*(own for _, own in held))
        return [call for call, own in held if ids & own and all(map(is_readable, call.outputs))]

    def keep(self, calls: Sequence[TapedCall], gradients: Sequence[Any], scale: Tensor) -> None:
        """Keep the `gradients` of the scaled loss by all outputs of these calls."""
        given, found = iter(gradients), dict[int, tuple[Any, list[Any]]]()
        for call in calls:
            taken = [next(given) for _ in call.outputs]
            if all(gradient is None for gradient in taken):  # the loss takes something else of it
                continue
            pairs = zip(call.outputs, taken, strict=True)
            own = [ops.zeros_like(out) if gradient is None else dense(gradient) for out, gradient in pairs]
            x = keras.tree.map_structure(ops.convert_to_tensor, call.inputs)
            found.setdefault(id(call.model), (call.model, []))[1].append((x, own, scale))
        if found and self._hold_all:
            fed = {id(each) for call in self._calls for each in keras.tree.flatten(call.inputs)}
            ends = [call for call in calls if id(call.model) in found and fed.isdisjoint(map(id, call.outputs))]
            self.heads |= {
                id(call.model): call.model
                for call in [*ends, self._calls[-1]]
                if any(keras.backend.standardize_dtype(out.dtype) in NARROW for out in call.outputs)
            }
        if self._collected is not None:
            self._collected += found.values()
            return
        for model, batch in found.values():
            self._keep(model, batch)

    def _keep(self, model: Any, batch: Any) -> None:
        import tensorflow as tf

        from mpt_cli.precision.apply_or_skip_tensorflow import outside

        tensors = tf.nest.flatten(batch)
        if tf.executing_eagerly():
            self._kept[id(model), self._sources] = model, self._sources, lambda: batch
        elif all(tensor.shape.is_fully_defined() for tensor in tensors):
            forms = [(tensor.shape, tensor.dtype) for tensor in tensors]
            *copies, is_made = outside(lambda: _variables([*forms, ((), tf.bool)]))
            for copy, tensor in zip(copies, tensors, strict=True):
                copy.assign(tensor)
            is_made.assign(True)
            form = keras.tree.map_structure(lambda _: 0, batch)
            read = lambda: keras.tree.pack_sequence_as(form, list(map(tf.identity, copies))) if is_made else None  # noqa: E731
            self._kept[id(read)] = model, self._sources, read

    @contextmanager
    def collected(self) -> Iterator[list[tuple[Any, Any]]]:
        """Yield a list that collects the models and batches of the block."""
        from mpt_cli.precision.apply_or_skip_tensorflow import is_readable

        found: list[tuple[Any, Any]] = []
        self._collected = found
        try:
            yield found
        finally:
            self._collected = None
            found[:] = [each for each in found if all(map(is_readable, keras.tree.flatten(each[1])))]

    def inputs_if_skipped(self, optimizer: Any) -> list[tuple[Any, Tensor]]:
        """Return variables with their values for a skipped step of `optimizer`: the number of the step, and the inputs
        of the models that were called under the latest tape."""
        import tensorflow as tf

        from mpt_cli.precision.apply_or_skip_tensorflow import is_for_xla, is_readable, outside

        calls = [call for call in self._calls if all(map(is_readable, call.outputs))]
        if not calls:
            return []
        inputs = [call.inputs for call in calls]
        tensors = [tf.cast(optimizer.seen_steps + 1, "int32"), *map(tf.convert_to_tensor, tf.nest.flatten(inputs))]
        is_exact = is_for_xla()  # which takes no variables of any shape, for the batches of all steps
        if is_exact and not all(tensor.shape.is_fully_defined() for tensor in tensors):
            return []
        key = (id(optimizer), *((tuple(each.shape) if is_exact else (), each.dtype) for each in tensors))
        if key not in self._skipped:
            forms = [(each.shape if is_exact else (), each.dtype) for each in tensors]
            copies = outside(lambda: _variables(forms, have_any_shape=not is_exact))
            self._skipped[key] = copies, [call.model for call in calls], keras.tree.map_structure(lambda _: 0, inputs)
        return list(zip(self._skipped[key][0], tensors, strict=True))

    def inputs_of_skipped(self, optimizer: Any, step: int) -> list[tuple[Any, Any]]:
        """Return the models that this step of `optimizer` called, and their inputs, if it is the latest skipped one."""
        for (made_for, *_), ((number, *copies), models, form) in list(self._skipped.items()):
            if made_for == id(optimizer) and int(number) == step:
                values = [copy.read_value() for copy in copies]
                if int(number) == step:  # while the loop goes on
                    return list(zip(models, keras.tree.pack_sequence_as(form, values), strict=True))
        return []

    def steps(self) -> list[LatestStep]:
        """Return the latest ones of each model."""
        found = [
            LatestStep(model, read(), is_seeded=True, sources=sources) for model, sources, read in self._kept.values()
        ]
        return [step for step in found if step.batch is not None]


def _variables(forms: list[tuple[Any, Any]], have_any_shape: bool = False) -> list[Any]:
    """Return variables of zeros of these shapes and dtypes, which may take other shapes."""
    import tensorflow as tf

    shape = tf.TensorShape(None) if have_any_shape else None
    return [tf.Variable(tf.zeros(*form), trainable=False, shape=shape) for form in forms]
