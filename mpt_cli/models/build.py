"""From the settings of a model to a built `keras.Model` that fits the data, and which of its layers are trained.

Shipped networks, a function of the user's or of keras.applications (`model.name: builder`), and a .keras file whose
weights are trained further (`model.name: saved`).
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import keras

from mpt_cli.data.paths import damage_of
from mpt_cli.errors import ConfigError, DataError, Problem, did_you_mean
from mpt_cli.models.networks import build_cnn, build_mlp, build_resnet, build_transformer
from mpt_cli.models.shapes import Shapes, check_fit, plain_message
from mpt_cli.precision.keras_internals import inner_layers
from mpt_cli.settings.references import call_user, load_function
from mpt_cli.settings.schema import PhaseSettings, Settings
from mpt_cli.settings.variants import Builder, ModelSettings, Saved

BUILDER_KEY = "model.builder"


def build_user_model(settings: Builder, shapes: Shapes) -> keras.Model:
    """Whatever the function returns, built on the data's shape and held against it."""
    function = load_function(settings.builder, BUILDER_KEY)
    model = call_user(function, BUILDER_KEY, **builder_arguments(function, settings.kwargs, shapes))
    if not isinstance(model, keras.Model):
        raise ConfigError(Problem(BUILDER_KEY, f"{settings.builder} must return a keras.Model.", type(model).__name__))
    return check_fit(model, shapes, BUILDER_KEY)


def build_installed_model(settings: Any, shapes: Shapes) -> keras.Model:
    """What the method `build` of another package's model returns, called as a function of the user's is."""
    model = call_user(settings.build, "model.name", **builder_arguments(settings.build, {}, shapes))
    if not isinstance(model, keras.Model):
        rule = f"the method build of {settings.name} must return a keras.Model."
        raise ConfigError(Problem("model.name", rule, type(model).__name__))
    return check_fit(model, shapes, "model.name")


def builder_arguments(function: Callable[..., Any], kwargs: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    """`model.kwargs`, and those of input_shape, num_classes and classes (keras.applications) the signature takes.

    A function with `**kwargs` takes the first two. What the user gives in `model.kwargs` wins.
    """
    offered = {"input_shape": shapes.input_shape, "num_classes": shapes.num_classes, "classes": shapes.num_classes}
    parameters = inspect.signature(function).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    taken = set(parameters) | ({"input_shape", "num_classes"} if open_ended else set())
    return {**{name: value for name, value in offered.items() if name in taken}, **kwargs}


def load_saved_model(settings: Saved, shapes: Shapes) -> keras.Model:
    """The model as it was saved: its layers keep the dtype policies in the file, whatever `policy.name` says."""
    path = Path(settings.path)
    if not path.is_file():
        raise DataError(f"model.path: there is no such file. Received: {settings.path!r}.")
    damage = damage_of(path) if path.suffix == ".keras" else None  # of which Keras says that it is not found
    if damage is not None:
        raise DataError(f"model.path: {settings.path!r} is damaged: {damage}.")
    try:
        model = keras.models.load_model(settings.path, compile=False, safe_mode=True)
    except Exception as error:  # zip, JSON, HDF5 and missing user classes all raise their own
        if "safe_mode" in str(error):
            raise DataError(f"model.path: {settings.path!r} holds Python code (a Lambda layer), which is not run from "
                            "a file. Make the model by model.builder and take its weights from the file with "
                            "model.weights, or register the function with Keras and save the model again."
                            ) from error  # fmt: skip
        message = f"model.path: {settings.path!r} can't be read as a Keras model: {plain_message(error)}"
        raise DataError(message) from error
    return check_fit(model, shapes, "model.path")


BUILDERS: dict[str, Callable[[Any, Shapes], keras.Model]] = {
    "mlp": build_mlp,
    "cnn": build_cnn,
    "resnet": build_resnet,
    "transformer": build_transformer,
    "builder": build_user_model,
    "saved": load_saved_model,
}


def build_model(
    settings: ModelSettings,
    input_shape: Any,
    num_classes: int | None,
    input_dtype: str = "float32",
    task: str = "classification",
    input_dtypes: Any = None,
    targets_as_given: bool = False,
) -> keras.Model:
    """A built, uncompiled model under the dtype policy in force; shipped ones end in a linear Dense layer "head".

    `input_shape` has no batch dimension and may be a dict or tuple of shapes; `num_classes` is the number of outputs
    in regression; with `targets_as_given` a builder may leave it. ConfigError where model and data don't fit,
    DataError for a .keras file that can't be read.
    """
    build = BUILDERS.get(settings.name, build_installed_model)
    with adapted_in_float32():
        return build(settings, Shapes(input_shape, num_classes, input_dtype, task, input_dtypes, targets_as_given))


@contextmanager
def adapted_in_float32() -> Iterator[None]:
    """Inside, a Normalization is adapted in float32, whatever the policy: Keras would take means and variances of a
    dataset in float16, where it fails for mixed dtypes, as it does for a FeatureSpace, and where squares overflow.

    >>> layer = keras.layers.Normalization(axis=None, dtype="mixed_float16")
    >>> with adapted_in_float32():
    ...     layer.adapt([keras.ops.array([[999.0], [1001.0]])])
    >>> float(layer.adapt_mean), layer.mean.dtype == "float16"
    (1000.0, True)
    """
    adapt = keras.layers.Normalization.adapt

    def adapt_in_float32(layer: Any, data: Any) -> None:
        own = layer.dtype_policy
        try:
            layer.dtype_policy = "float32" if own.compute_dtype in ("float16", "bfloat16") else own
            adapt(layer, data)
        finally:
            layer.dtype_policy = own
        layer.finalize_state()  # in the dtype in which it will compute

    keras.layers.Normalization.adapt = adapt_in_float32
    try:
        yield
    finally:
        keras.layers.Normalization.adapt = adapt



def freeze_layers(settings: Settings, model: Any) -> None:
    """Say which layers the run trains at first: those of the builder, changed by `model` and then by the first phase.

    ConfigError as `set_trained` raises it.
    """
    set_trained(model, settings.model, "model")
    for index, phase in enumerate(settings.phases[:1]):
        set_trained(model, phase, f"phases.{index}")


def set_trained(model: Any, changes: ModelSettings | PhaseSettings, key: str) -> None:
    """Make the layers of `changes.freeze` untrainable, then those of `changes.unfreeze` trainable.

    What a layer is set to, the layers inside it are, as in Keras. ConfigError for a pattern that no layer matches, and
    where nothing is left to train; `key` is where the patterns stand.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="one"), keras.layers.Dense(2)])
    >>> set_trained(model, PhaseSettings(epochs=1, freeze=["*"], unfreeze=["one"]), "phases.0")
    >>> [layer.trainable for layer in model.layers]
    [True, False]
    """
    for name, trained in (("freeze", False), ("unfreeze", True)):
        patterns = getattr(changes, name)
        for pattern in patterns:
            _check_pattern(model, pattern, f"{key}.{name}")
        _set_layers(model, patterns, trained)
    if (changes.freeze or changes.unfreeze) and model.built and not model.trainable_variables:
        frozen = changes.freeze or changes.unfreeze
        raise ConfigError(Problem(f"{key}.freeze", "must leave something to train.", frozen,
                                  "Name what is to be trained in `unfreeze`."))


KEPT = "!"  # before a pattern of layers that stay as they are


def _set_layers(model: Any, patterns: list[str], trained: bool) -> None:
    """Containers come before what is inside them; layers that are to stay as they are get back what they had."""
    layers = inner_layers(model)
    kept = [layer for layer in layers if any(_names(p[1:], layer) for p in patterns if p.startswith(KEPT))]
    before = [(part, part.trainable) for layer in kept for part in (layer, *inner_layers(layer))]
    for layer in layers:
        if any(_names(pattern, layer) for pattern in patterns):
            layer.trainable = trained
    for part, was_trained in before:
        part.trainable = was_trained


def _names(pattern: str, layer: Any) -> bool:
    """Whether a pattern, as in a shell, is for this layer: by its name, its path or its class."""
    return any(fnmatchcase(text, pattern) for text in (layer.name, layer.path or layer.name, type(layer).__name__))


def _check_pattern(model: Any, pattern: str, key: str) -> None:
    layers = inner_layers(model)
    if not any(_names(pattern.removeprefix(KEPT), layer) for layer in layers):
        names = [*dict.fromkeys(layer.name for layer in layers)]
        remedy = did_you_mean(pattern.removeprefix(KEPT), names) or f"It has {', '.join(names[:8])}."
        raise ConfigError(Problem(key, "must match the name, path or class of a layer of the model.", pattern, remedy))


Flags = list[tuple[Any, bool]]


def trained_flags(model: Any) -> Flags:
    """Which layers are trained, for `put_back_flags`."""
    return [(layer, bool(layer.trainable)) for layer in inner_layers(model)]


def put_back_flags(flags: Flags) -> None:
    """Layers are trained as they were at `trained_flags`: containers first, which set what is inside them."""
    for layer, trained in flags:
        layer.trainable = trained
