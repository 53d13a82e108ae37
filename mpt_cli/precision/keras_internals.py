"""The parts of Keras without a public name that mpt needs: all of them are used here and nowhere else.

Each function says what the part is for, and what public name comes nearest. `tests/precision/test_keras_internals.py`
looks for each in Keras, to tell a changed Keras from a defect of ours.
"""

import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from inspect import unwrap
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.losses.loss import unscale_loss_for_distribution
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.trainer import Trainer
from keras.src.utils import naming
from keras.src.utils.module_utils import tensorflow as lazy_tensorflow

from mpt_cli.precision.gradient_check import NARROW, Tensor, on_jax, on_tensorflow

# as they are: see `scale_state` and `apply_or_skip_tensorflow`
__all__ = ["KerasSaveable", "unscale_loss_for_distribution"]


def predict_in_training(model: Any, x: Any) -> Tensor:
    """Return the outputs as the training step of the backend computes them, with `training=True` if `call` takes it.

    Only TensorFlow's step casts the inputs of a subclassed model.
    """
    forward = model if on_tensorflow() else model.call
    return note_half_output(model, forward(x, training=True) if model._call_has_training_arg else forward(x))


def note_half_output(model: Any, outputs: Any) -> Any:
    """Return the outputs of a model; set its `mpt_half_output` to the dtype if one is in half precision."""
    for each in keras.tree.flatten(outputs):
        if (dtype := keras.backend.standardize_dtype(getattr(each, "dtype", None))) in NARROW:
            model.mpt_half_output = dtype
    return outputs


def logits_of(x: Tensor) -> Tensor:
    """Return the logits before a sigmoid or softmax, which Keras's losses use instead on TensorFlow; without, `x`."""
    return getattr(x, "mpt_logits", getattr(x, "_keras_logits", x))


def keep_logits(x: Tensor, probed: Tensor) -> Tensor:
    """Return `probed` with the logits of `x`, under a name that Keras's losses do not look for: they go through it."""
    if (logits := logits_of(x)) is not x:
        probed.mpt_logits = logits
    return probed


def replace_values(variables: Sequence[Any], values: Sequence[Tensor]) -> None:
    """Assign arrays of the right shape and dtype; the conversions of `assign` take 12 ms with 600 variables."""
    for variable, value in zip(variables, values, strict=True):
        variable._direct_assign(value)


def training_loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Tensor:
    """Return the compiled loss as `train_step` computes it: the public `compute_loss` has no `training` argument."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)


def build_for_batch(model: Any, batch: Any) -> None:
    """Make the variables of layers, losses and metrics from the shapes of `batch`, without computing anything."""
    model._symbolic_build(data_batch=batch)


def build_before_tracing(model: Any) -> None:
    """Have `model.train_function` make the variables of metrics and loss before it is traced (TensorFlow).

    A function that makes variables while it is traced is traced twice.
    """
    import tensorflow as tf

    train = model.train_function

    def build_and_train(iterator: Any) -> Any:
        model.train_function = train
        if isinstance(iterator, tf.data.Iterator) and lacks_variables(model):
            build_for_batch(model, iterator.element_spec)
        return train(iterator)

    model.train_function = build_and_train


class _NoData(DataAdapter):  # type: ignore[misc]
    """An endless data adapter for `fit` and `evaluate`, whose steps find the examples themselves."""

    num_batches = None

    def get_tf_dataset(self) -> Any:
        import tensorflow as tf

        return tf.data.Dataset.range(1)

    def get_jax_iterator(self) -> Any:
        return iter(())


def run_by_calls(
    method: str, model: Any, call: Callable[[], object], reset_metrics: Callable[[], None], **options: Any
) -> None:
    """Run Keras's own `fit` or `evaluate` of a built model with `call` as its step: `call` finds the examples, makes
    any number of steps, and ends an epoch by `stop_training` or `stop_evaluating`."""

    def step(*given: Any) -> Any:
        call()
        return {} if len(given) == 1 else ({}, (None,) * len(given[0]))  # JAX has nothing to put back

    def logs(found: dict[str, Any]) -> Any:
        """Return nothing for nothing, without reading the metrics; a callback may evaluate the model with real logs."""
        return found and type(model)._get_metrics_result_or_logs(model, found)

    def state(**parts: bool) -> Any:
        """Return nothing to a step of ours, to which listing 600 variables would add 5 ms; a callback may evaluate."""
        if parts.get("optimizer_variables", False) == (method == "fit"):
            return (None,) * sum(kept for name, kept in parts.items() if name != "purge_model_variables")
        return type(model)._get_jax_state(model, **parts)

    name_of_step = {"fit": "train_function", "evaluate": "test_function"}[method]
    own: dict[str, Any] = {name_of_step: step, "reset_metrics": reset_metrics, "_get_metrics_result_or_logs": logs}
    own["_get_jax_state"] = state
    # no form of the data is known to build by, and the values of variables stay where `call` finds them
    own |= dict.fromkeys(("_symbolic_build", "_maybe_symbolic_build", "_purge_model_variables"), lambda **_: None)
    attributes = vars(model)
    kept = {name: attributes[name] for name in own if name in attributes}
    attributes.update(own)
    try:
        unwrap(getattr(keras.Model, method))(model, _NoData(), verbose=0, **options)
    finally:
        for name in own:
            del attributes[name]
        attributes.update(kept)


def lacks_variables(model: Any) -> bool:
    """Return whether a layer, the metrics, the loss or the optimizer of a compiled model is not built."""
    parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss, model.optimizer]
    return not all(part is None or part.built for part in parts)


def compiled_loss_weights(model: Any) -> Any:
    """Return the `loss_weights` of `compile`, None if there are none; the public config only has them serialised."""
    config = getattr(model, "_compile_config", None)
    return None if config is None else config.config.get("loss_weights")


def wrap_at_compile(policy: Any, wrap: Callable[[Any], Any]) -> None:
    """Make `Model.compile` use `wrap` where Keras would wrap an optimizer in its own loss scaling, and say so once.

    This holds while `policy` is the global one. For any policy but mixed_float16, restore Keras's own `compile`.
    """
    original = getattr(Trainer.compile, "unscaled", Trainer.compile)
    told: list[str] = []

    @wraps(original)
    def compile_scaled(model: Any, optimizer: Any = "rmsprop", *arguments: Any, **named: Any) -> None:
        original(model, optimizer, *arguments, **named)
        is_given = model.optimizer is optimizer or type(model.optimizer) is not keras.optimizers.LossScaleOptimizer
        if is_given or keras.config.dtype_policy() is not policy:
            return
        put_optimizer(model, wrap(model.optimizer.inner_optimizer))
        if not told:
            told.append("compile puts optimizers into mpt's LossScaleOptimizer, because of set_global_policy.")
            logging.getLogger("mpt_cli").warning(told[0])

    compile_scaled.unscaled = original  # type: ignore[attr-defined]
    Trainer.compile = compile_scaled if policy.name == "mixed_float16" else original


def put_optimizer(model: Any, optimizer: Any) -> None:
    """Train a compiled model with `optimizer` from now on, and save it with the model.

    A wrapper that scales no loss is saved as the optimizer inside, which Keras opens without mpt.
    """
    model.optimizer = optimizer
    if hasattr(model, "_compile_config"):
        kept = optimizer if getattr(optimizer, "scales", True) else optimizer.inner_optimizer
        model._compile_config.config["optimizer"] = kept


def loss_tracker(model: Any) -> Any:
    """Return the metric `loss` of a compiled model, which Keras updates in its `train_step`."""
    return model._loss_tracker


def updated_metrics(model: Any, metrics: list[Tensor], loss: Tensor, batch: Any, y_pred: Any) -> list[Tensor]:
    """Return the values of the metric variables after a batch `(x, y, sample_weight)` (JAX)."""
    x, y, sample_weight = batch
    return list(model._update_metrics_variables(metrics, loss, x, y, y_pred, sample_weight)[1])


def optimizer_values_in_fit(model: Any) -> list[Tensor] | None:
    """Return the values of the optimizer's variables while `fit` on JAX holds them; None outside of that."""
    inside_fit = None if getattr(model, "_jax_state_synced", True) else model._jax_state
    return inside_fit["optimizer_variables"] if inside_fit else None


def idles_at_batches(callback: Any) -> bool:
    """Return whether a callback of Keras declares batch hooks that do nothing with its present settings.

    TensorBoard counts there, and writes the graph of Keras's own `train_function`.
    """
    if type(callback) is keras.callbacks.ModelCheckpoint:
        return bool(callback.save_freq == "epoch")
    if type(callback) is keras.callbacks.TensorBoard:
        return bool(callback.update_freq == "epoch") and not (callback._should_trace or callback.write_steps_per_second)
    return False


def has_value(variable: Any) -> bool:
    """Return whether a variable holds its value; while `fit` on JAX runs, it does not."""
    return variable._value is not None


def inner_layers(part: Any, recursive: bool = True) -> list[Any]:
    """Return the layers inside a layer or model, at every depth or only directly; an operation has none.

    `model.layers` has neither the layers inside a layer nor those that a subclassed model holds in a list.
    """
    if not isinstance(part, keras.Layer):
        return []
    return list(part._flatten_layers(include_self=False, recursive=recursive))


def remake_lambda(layer: Any, **changes: Any) -> Any:
    """Return a `Lambda` layer with the function of this one: the public `from_config` remakes the function from its
    code, without the names that it closes over."""
    config = {name: getattr(layer, name) for name in ("name", "trainable", "dtype_policy")}
    config["dtype"] = config.pop("dtype_policy")
    return type(layer)(layer.function, layer._output_shape, layer.mask, layer.arguments, **{**config, **changes})


def made_to_be_trained(model: Any) -> list[Any]:
    """Return the variables of a model that its layers train unless they are frozen, in the order of
    `model.variables`."""
    ids = {id(variable) for layer in [model, *inner_layers(model)] for variable in layer._trainable_variables}
    return [variable for variable in model.variables if id(variable) in ids]


def untracked_variables(model: Any) -> list[Any]:
    """Return variables of layers that Keras doesn't count among those of the model: the states of a stateful RNN.

    None on JAX, where they are no part of a step and stay as they are.
    """
    if on_jax():
        return []
    known = {id(variable) for variable in model.variables}
    held = [
        value
        for layer in inner_layers(model)
        for value in vars(layer).values()
        if isinstance(value, (keras.Variable, list, tuple))
    ]
    found = {id(each): each for each in keras.tree.flatten(held) if isinstance(each, keras.Variable)}
    return [variable for key, variable in found.items() if key not in known]


def tracked_layers(layer: Any) -> list[Any]:
    """Return the layers right inside, also before `layer` is built, in the order in which they were given to it."""
    return list(layer._layers)


def direct_trainable_variables(holder: Any) -> list[Any]:
    """Return the variables of a layer without those of layers inside it, or the weights an optimizer was built for."""
    return list(holder._trainable_variables)


def step_options(optimizer: Any) -> tuple[Any, ...] | None:
    """Return the options, beside variables, that a compiled step of a Keras optimizer depends on; None for an optimizer
    that may run the user's Python in each step."""
    rate = optimizer._learning_rate
    has_own_rate = isinstance(rate, keras.Variable) or type(rate) in vars(keras.optimizers.schedules).values()
    if not has_own_rate or type(optimizer) not in vars(keras.optimizers).values():
        return None
    return tuple(option for option in vars(optimizer).items() if isinstance(option[1], (int, float, str)))


def configured_rate(optimizer: Any) -> Any:
    """Return the learning rate of an optimizer; a schedule as an object, while the public property returns its present
    value."""
    rate = optimizer._learning_rate
    return rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else float(rate)


def copied_optimizer(optimizer: Any) -> Any:
    """Return a new optimizer with the present configuration of `optimizer`, without its state."""
    rate = configured_rate(optimizer)
    return type(optimizer).from_config(optimizer.get_config(), custom_objects={type(rate).__name__: type(rate)})


class _ReadVariables(keras.StatelessScope):  # type: ignore[misc]
    """Remembers the variables that are read in the block, and their values outside of it."""

    found: dict[int, tuple[Any, Tensor]]

    def get_current_value(self, variable: Any) -> Tensor:
        outside = self.original_scope
        value = None if outside is None else outside.get_current_value(variable)
        value = variable._value if value is None else value
        self.found.setdefault(id(variable), (variable, value))
        return value


def variables_read(function: Callable[[], Any]) -> tuple[list[Any], list[Tensor]]:
    """Return the variables that `function` reads, in the order of their first use, and their values (JAX).

    They are found without computing it; the values are in the variables' own dtype, also where reading casts them.
    """
    import jax

    scope = _ReadVariables()
    scope.found = {}
    with scope:
        jax.eval_shape(function)
    pairs = list(scope.found.values())
    return [variable for variable, _ in pairs], [value for _, value in pairs]


def reading_values(variables: list[Any], values: list[Tensor]) -> AbstractContextManager[Any]:
    """Make the `variables` read as these `values` in the block; without variables, change nothing."""
    return keras.StatelessScope(list(zip(variables, values, strict=True))) if variables else nullcontext()


def add_losses_in_float32(model: Any) -> None:
    """Add float16 and bfloat16 losses of layers (`add_loss`, regularizers) to the loss in float32.

    Keras adds them in their dtype, and TensorFlow then fails for an activity regularizer of a layer in float16.
    """
    if "_aggregate_additional_loss" in vars(model):
        return
    add = model._aggregate_additional_loss

    def in_float32(loss: Tensor) -> Tensor:
        is_half = keras.backend.standardize_dtype(loss.dtype) in ("float16", "bfloat16")
        return add(keras.ops.cast(loss, "float32") if is_half else loss)

    model._aggregate_additional_loss = in_float32


def call_behind(tensor: Any) -> tuple[Any, Any] | None:
    """Return the operation that made a symbolic tensor, and the node of that call; None if no operation made it."""
    history = getattr(tensor, "_keras_history", None)
    return None if history is None else (history[0], history[0]._inbound_nodes[history[1]])


def track_for_tensorflow(optimizer: Any, variable: Any) -> None:
    """Let `tf.train.Checkpoint` find a variable of an optimizer on TensorFlow's backend by its name."""
    optimizer._track_trackable(variable, name=variable.name, overwrite=True)


@contextmanager
def names_as_in_a_fresh_process() -> Iterator[None]:
    """Number layers without a name from the beginning, inside this context."""
    names = global_state.get_global_attribute("object_name_uids")
    naming.reset_uids()
    try:
        yield
    finally:
        global_state.set_global_attribute("object_name_uids", names)


@contextmanager
def tensorflow_left_out() -> Iterator[None]:
    """Keep Keras on another backend from importing TensorFlow, which seeding and saving do wherever it is installed.

    3 seconds and 500 MiB that a run on JAX has no use for. No effect once TensorFlow is loaded, or on its own backend.
    """
    known = lazy_tensorflow._available
    if not on_tensorflow() and "tensorflow" not in sys.modules:
        lazy_tensorflow._available = False
    try:
        yield
    finally:
        lazy_tensorflow._available = known


@contextmanager
def large_variables_without_values(most_elements: int) -> Iterator[None]:
    """Make larger variables without values, as Keras does in a stateless scope (JAX, inside this context).

    While a program is traced they read as zeros of their shape, which take no memory.
    """
    from keras.src.backend.jax.core import JaxVariable

    original = JaxVariable._initialize_with_initializer

    def initialize(variable: Any, initializer: Any) -> None:
        if math.prod(variable.shape) <= most_elements:
            original(variable, initializer)
        else:
            variable._value, variable._initializer = None, keras.initializers.Zeros()

    JaxVariable._initialize_with_initializer = initialize
    try:
        yield
    finally:
        JaxVariable._initialize_with_initializer = original


@contextmanager
def policies_kept(model: Any) -> Iterator[list[Any]]:
    """Yield the model and its layers; afterwards restore their present policies."""
    layers = [model, *inner_layers(model)]
    kept = [layer._dtype_policy for layer in layers]
    try:
        yield layers
    finally:
        for layer, own in zip(layers, kept, strict=True):
            layer._dtype_policy = own


@contextmanager
def computing_in_float32(model: Any) -> Iterator[None]:
    """Let every layer of `model` compute in float32 inside this context, whatever its policy.

    The public setter of `dtype_policy` quantizes, and changes the policies that layers share. A dtype that a layer
    copied from its policy when it was made, or a cast to float16 by name, stays. Layers that a model makes in its call
    are in float32 too.
    """
    before, policy = keras.config.dtype_policy(), keras.DTypePolicy("float32")
    with policies_kept(model) as layers:
        for layer in layers:
            layer._dtype_policy = policy
        if isinstance(model, keras.Model):
            keras.config.set_dtype_policy(policy)
        try:
            yield
        finally:
            keras.config.set_dtype_policy(before)


LayerCall = Callable[..., Any]


_replacing_calls = threading.RLock()  # two threads at a time could each restore what the other had set


@contextmanager
def calls_through(parts: Sequence[Any], wrap: Callable[[int, LayerCall], LayerCall]) -> Iterator[None]:
    """Replace the call of each of `parts` (layers, operations) by `wrap(index, call)`, inside this context."""
    # Keras's `__call__` runs another method of layers that multiply in float8
    methods = [(part, "quantized_call" if getattr(part, "quantization_mode", None) else "call") for part in parts]
    with _replacing_calls, ExitStack() as stack:
        for index, (part, name) in enumerate(methods):
            own = vars(part).get(name)  # without one, that of its class shows again
            undo = partial(delattr, part, name) if own is None else partial(setattr, part, name, own)
            setattr(part, name, wrap(index, getattr(part, name)))
            stack.callback(undo)
        yield


def outputs_noted(parts: Sequence[Any], note: Callable[[int, Any, Any], object]) -> AbstractContextManager[None]:
    """Call `note` with the index, the outputs and the inputs (as they were cast) of each of `parts` that is called
    inside this context, by this thread."""
    thread = threading.get_ident()

    def noting(index: int, call: LayerCall) -> LayerCall:
        def call_and_note(*arguments: Any, **named: Any) -> Any:
            outputs = call(*arguments, **named)
            if threading.get_ident() == thread:
                note(index, outputs, (arguments, named))
            return outputs

        return call_and_note

    return calls_through(parts, noting)
