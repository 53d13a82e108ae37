"""Measure whether half precision leaves enough digits to tell examples apart, by comparing outputs with float32.

`value_ranges` counts the range of values. Digits are lost without any zero or inf: 20,033 and 20,047 are one number in
bfloat16. The effect is measured at the model's outputs as noise: the squared difference from the outputs of the same
batch in float32, over their variance between examples. Healthy rounding gives 1e-7 (float16) to 1e-3 (bfloat16, a deep
net); at 1 the outputs say nothing about their example.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from mpt_cli.precision.gradient_check import NARROW, on_jax
from mpt_cli.precision.gradients.custom_gradients import is_float_tensor
from mpt_cli.precision.keras_internals import computing_in_float32, outputs_noted
from mpt_cli.precision.policy import layers_of, name_of
from mpt_cli.samples.gradient_pass import call_sampled, pure_loss, wide
from mpt_cli.telemetry.health_and_verdict import SMALL_NOISE, describe_digits, describe_stale, last_names
from mpt_cli.telemetry.record_types import ALL_LAYERS, INPUTS, TARGETS

Outputs = list[NDArray[np.float64]]  # each of shape (examples, values)
MOST_EXAMPLES, MOST_OUTPUT_VALUES = 256, 4096  # values of an output: a language model has 50 million for each example
LOST = 0.02  # of the spread of the outputs: beyond what rounding leaves in deep nets, well below what stops learning
# more than SMALL_NOISE is too much where the loss of the batch is more than so many times that in float32: what is left
# may be a small part of the spread; where the squared error from the targets is less than so many times what rounding
# does to the outputs, to which a net that has learnt rounded values can be at its best; or where the outputs of a layer
# differ by so much of their own spread: a net may have learnt not to read them
MOST_LOSS, LEAST_ERROR, LOST_IN_LAYER = 1.5, 2.0, 0.5
CURED = 0.25  # of the noise: what may be left where a layer in float32 is called the remedy
SMALLEST_SPREAD = 1e-6  # of the size of the outputs: float32 itself tells no more apart


class LostDigits(NamedTuple):
    """The `noise` of the outputs and, if it is too high, the layers that reduce it to `noise_left` when kept in
    float32: their names, after INPUTS if the model must not cast its inputs either, or TARGETS if the dtype of the
    outputs rounds the targets. ALL_LAYERS stands before the layer around which no few layers help. `stale` are the
    user's layers whose own state, such as a running mean, half precision keeps from moving.
    """

    noise: float
    layers: tuple[str, ...] = ()
    noise_left: float = 0.0
    stale: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """Return the layers that are to be in float32."""
        named = [] if ALL_LAYERS in self.layers else [each for each in self.layers if each not in (TARGETS, INPUTS)]
        return [*dict.fromkeys([*named, *self.stale])]

    @property
    def remedy(self) -> list[str]:
        """Return their names."""
        return last_names(self.paths)

    @property
    def sentence(self) -> str:
        if self.stale and not self.layers:
            return describe_stale(self.stale)
        return describe_digits(self.noise, self.layers, self.noise_left)


def measure_digits(model: Any, batches: Sequence[Any], has_loss: bool = True) -> LostDigits | None:
    """Measure the digits that the model loses on batches `(x, y, sample_weight)` in inference; nothing in the model
    changes.

    At most `MOST_EXAMPLES` are used, of batches shaped as the first. Without `has_loss`, the model's compiled loss is
    not the loss of the batches.

    Returns None if all examples have the same outputs, if there is only one, or if the model draws random numbers in
    inference or can't be called for it.
    """
    casts = model.autocast and not on_jax()  # where a step runs `call` itself, which casts nothing
    with suppress(Exception), _casting(model, casts):  # an error of the model's code must never end the run
        cut = lambda array: None if array is None else array[:MOST_EXAMPLES]  # noqa: E731
        alike = [keras.tree.map_structure(cut, each) for each in batches if _shapes(each) == _shapes(batches[0])]
        used = alike[-max(1, MOST_EXAMPLES // _shapes(batches[0])[0][0]) :]
        found, stale = _measure(model, used, has_loss and model.compiled), _stale_layers(model, used[:1])
        return (found or LostDigits(0.0))._replace(stale=stale) if stale else found
    return None


@contextmanager
def _casting(model: Any, casts: bool) -> Iterator[None]:
    """Let a subclassed model cast its inputs, or not; in other models that changes nothing."""
    before, model.autocast = model.autocast, casts
    try:
        yield
    finally:
        model.autocast = before


def _shapes(batch: Any) -> list[tuple[int, ...]]:
    return [tuple(array.shape) for array in keras.tree.flatten(batch) if array is not None]


def _measure(model: Any, batches: Sequence[Any], has_loss: bool) -> LostDigits | None:
    x, y = zip(*(keras.utils.unpack_x_y_sample_weight(batch)[:2] for batch in batches), strict=True)
    dtypes: list[set[str]] = []
    by_batch = _both_ways(model, lambda: _outputs(model, x, dtypes))
    rounded, exact = map(_joined, by_batch)
    noise = _noise(rounded, exact)
    of_targets = _noise_of_targets(dtypes[0] & set(NARROW), y[0])
    if of_targets > max(LOST, noise or 0.0):
        return LostDigits(of_targets, (TARGETS,))
    if noise is None:
        return None
    if noise <= SMALL_NOISE:
        return LostDigits(noise)
    # in inference moving statistics that are still far off push values up, which costs digits that training has
    in_training = map(_joined, _both_ways(model, lambda: _outputs(model, x, [], training=True)))
    noise = min(noise, _noise(*in_training) or 0.0)
    worst = max(range(len(x)), key=lambda index: _noise(*(each[index] for each in by_batch)) or 0.0)
    (_, rounded_layers), (again, exact_layers) = _both_ways(model, lambda: _outputs_of_layers(model, x[worst]))
    pairs = zip(rounded_layers, exact_layers, strict=False)
    of_layers = [(index, _noise(one, other) or 0.0) for (index, one), (_, other) in pairs]
    harms = noise <= LOST and (
        any(found > LOST_IN_LAYER for _, found in of_layers)
        or _hides_error(_joined(map(_numbers, y)), rounded, exact)
        or (has_loss and _raises_loss(model, batches))
    )
    least = SMALL_NOISE if harms else LOST
    if noise <= least:
        return LostDigits(noise)
    if (_noise(again, by_batch[1][worst]) or 0.0) > CURED * noise:
        return None
    suspects = _suspects(model, of_layers, least)
    uncast = [(model, *group) for group in [(), *suspects] if model.autocast and model.compute_dtype in NARROW]
    for parts in [*suspects, *uncast]:
        left = None
        with suppress(Exception), ExitStack() as stack:  # layers that can't take its outputs make it no remedy
            for part in parts:  # the model among them stands for its inputs
                stack.enter_context(_casting(model, False) if part is model else computing_in_float32(part))
            left = _noise(_joined(_outputs(model, x, [])), exact)
        if left is not None and left <= min(LOST, CURED * noise):
            return LostDigits(noise, tuple(INPUTS if part is model else name_of(part) for part in parts), left)
    return LostDigits(noise, (ALL_LAYERS, *(name_of(group[0]) for group in suspects[:1])), noise)


def _stale_layers(model: Any, batches: Sequence[Any]) -> tuple[str, ...]:
    """Return the user's layers whose updates of their own state half precision rounds away in most places.

    Keras's own layers compute theirs in float32.
    """
    named = [
        (name_of(layer), variable)
        for layer in layers_of(model)
        if not type(layer).__module__.startswith("keras.") and layer.compute_dtype in NARROW
        for variable in layer.non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]
    if not named:
        return ()
    before = [ops.convert_to_numpy(wide(variable.value)) for _, variable in named]

    def after(batch: Any) -> list[Any]:
        model(keras.utils.unpack_x_y_sample_weight(batch)[0], training=True)
        return [wide(variable.value) for _, variable in named]

    rounded, exact = _both_ways(model, lambda: list(map(ops.convert_to_numpy, call_sampled(model, after, batches)[0])))
    rows = zip(named, before, rounded, exact, strict=True)
    stale = [
        name for (name, _), old, one, other in rows if 2 * ((one == old) & (other != old)).sum() > (other != old).sum()
    ]
    return tuple(dict.fromkeys(stale))


def _hides_error(targets: Outputs, rounded: Outputs, exact: Outputs) -> bool:
    """Return whether rounding changes the outputs as much as their error, if targets have their shape."""
    if [array.shape for array in targets] != [array.shape for array in rounded]:
        return False
    rows = zip(targets, rounded, exact, strict=True)
    return any(np.square(y - out).sum() < LEAST_ERROR * np.square(out - other).sum() for y, out, other in rows)


def _raises_loss(model: Any, batches: Sequence[Any]) -> bool:
    """Return whether the loss of the batches is more than `MOST_LOSS` times that in float32."""
    lists = model.trainable_variables, model.non_trainable_variables, model.metrics_variables

    def loss(batch: Any) -> Any:
        return pure_loss(model, [[variable.value for variable in variables] for variables in lists], batch)

    rounded, exact = _both_ways(model, lambda: float(sum(call_sampled(model, loss, batches))))
    return bool(rounded > MOST_LOSS * exact >= 0)


def _both_ways(model: Any, look: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the result of `look` for the model as it is, and with every layer in float32."""
    rounded = look()
    with computing_in_float32(model):
        return rounded, look()


def _outputs(model: Any, batches: Sequence[Any], dtypes: list[set[str]], training: bool = False) -> list[Outputs]:
    """Return the outputs of the model for each of the inputs, and put their dtypes into `dtypes`."""

    def call(x: Any) -> list[Any]:
        outputs = model(x, training=training)
        dtypes.append({keras.backend.standardize_dtype(out.dtype) for out in keras.tree.flatten(outputs)})
        return _float_values(outputs)

    return [_numbers(outputs) for outputs in call_sampled(model, call, batches)]


def _outputs_of_layers(model: Any, x: Any) -> tuple[Outputs, list[tuple[int, Outputs]]]:
    """Return the outputs of the model, and of its layers in the order of their calls with the index of each layer."""
    found: list[tuple[int, Outputs]] = []
    noted = outputs_noted(layers_of(model), lambda index, outputs, _: found.append((index, _numbers(outputs))))
    with keras.StatelessScope(collect_losses=True), noted:
        return _numbers(model(x, training=False)), found


def _joined(batches: Iterable[Outputs]) -> Outputs:
    """Return the outputs of all examples of these batches."""
    return list(map(np.concatenate, zip(*batches, strict=True)))


def _float_values(structure: Any) -> list[Any]:
    """Return the float tensors with examples, each of shape (examples, values) in float32; of large ones the same
    `MOST_OUTPUT_VALUES` each time, drawn at random."""
    found = []
    for tensor in keras.tree.flatten(structure):
        if not is_float_tensor(tensor) or not len(tensor.shape):
            continue
        values = ops.reshape(tensor, (tensor.shape[0], -1))
        if values.shape[1] > MOST_OUTPUT_VALUES:
            indices = np.random.default_rng(0).integers(values.shape[1], size=MOST_OUTPUT_VALUES)
            values = ops.take(values, indices, axis=1)
        found.append(wide(values))
    return found


def _numbers(structure: Any) -> Outputs:
    """Return the values on the host, without those of a loop that is being traced, which have no values yet."""
    found = []
    for tensor in keras.tree.flatten(structure):
        with suppress(Exception):  # each backend says so its own way
            found += [np.asarray(ops.convert_to_numpy(values), np.float64) for values in _float_values(tensor)]
    return found


def _noise(rounded: Outputs, exact: Outputs) -> float | None:
    """Return the highest noise of the outputs; None if no output differs between examples."""
    found = [_noise_of(*pair) for pair in zip(rounded, exact, strict=False) if pair[0].shape == pair[1].shape]
    return max((noise for noise in found if noise is not None), default=None)


def _noise_of(rounded: NDArray[np.float64], exact: NDArray[np.float64]) -> float | None:
    whole = np.isfinite(rounded).all(0) & np.isfinite(exact).all(0)  # an overflow has its own fault
    rounded, exact = rounded[:, whole], exact[:, whole]
    spread = float(np.square(exact - exact.mean(0)).sum()) if len(exact) > 1 else 0.0
    if spread <= SMALLEST_SPREAD**2 * float(np.square(exact).sum()):
        return None
    return float(np.square(rounded - exact).sum()) / spread


def _suspects(model: Any, of_layers: Sequence[tuple[int, float]], least: float) -> list[tuple[Any, ...]]:
    """Return groups of half-precision layers to try in float32, the smallest first: the first layer whose outputs lost
    digits, with up to three before it, which may have cast their inputs, and the one after it.

    `of_layers` are the layers by their index, in the order of their calls, with the noise of their outputs.
    """
    layers = layers_of(model)
    cells = {id(layer.cell) for layer in layers if isinstance(layer, keras.layers.RNN)}  # called at each time step
    calls = [(layers[index], noise) for index, noise in of_layers if id(layers[index]) not in cells]
    called = [layer for layer, _ in calls]
    first = next((index for index, (_, noise) in enumerate(calls) if noise > least), 0)
    runs = [
        called[max(0, first + start) : first + end]
        for start, end in ((0, 1), (-1, 0), (1, 2), (-1, 1), (0, 2), (-2, 1), (-3, 1))
    ]
    halves = [tuple(layer for layer in dict.fromkeys(run) if layer.compute_dtype in NARROW) for run in runs]
    return list(filter(None, dict.fromkeys(halves)))


def _noise_of_targets(narrow: set[str], y: Any) -> float:
    """Return the noise of targets that are cast to the outputs' half precision before the loss compares them."""
    floats = list(filter(is_float_tensor, keras.tree.flatten(y)))
    if not narrow or not floats:
        return 0.0
    return _noise(_numbers([ops.cast(array, next(iter(narrow))) for array in floats]), _numbers(floats)) or 0.0
