"""Build a `keras.Model` that fits the data from its settings, and set which layers are trained.

The shipped networks (mlp, cnn, resnet and transformer) consist of Keras's own layers, so that a file opens without mpt.
The others are a function of the user's or of keras.applications (`model.name: builder`), and a .keras file whose
weights are trained further (`model.name: saved`).
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import keras
from keras import layers, ops

from mpt_cli.data.examples import Shapes, map_arrays
from mpt_cli.errors import ConfigError, DataError, Problem, UserCodeError, config_error, did_you_mean
from mpt_cli.precision.keras_internals import inner_layers
from mpt_cli.precision.train_step import has_custom
from mpt_cli.settings.model_data_optimizer_keys import CNN, MLP, Builder, ModelSettings, ResNet, Saved, Transformer
from mpt_cli.user_code import call_user, load_function, model_problem, parameters_of


def float_input(shapes: Shapes) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Return the input and a floating-point view of it: uint8 is an image and goes to 0…1, others keep their value."""
    array = keras.Input(single_shape(shapes), dtype=shapes.input_dtype, name="input")
    if "float" in shapes.input_dtype:
        return array, array
    scale = 1 / 255 if shapes.input_dtype == "uint8" else 1.0
    return array, layers.Rescaling(scale, name="to_float")(array)


def image_input(shapes: Shapes, model: str) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Return what `float_input` does, for (height, width) or (height, width, channels); the image has channels."""
    array, image = float_input(shapes)
    if len(array.shape) == 3:
        image = layers.Reshape((*array.shape[1:], 1), name="add_channel")(image)
    if len(image.shape) != 4:
        raise unfit_data(f"model {model} needs images: (height, width) or (height, width, channels)", shapes)
    return array, image


def token_input(shapes: Shapes) -> keras.KerasTensor:
    """Return the input (sequence_length,) of whole numbers, each below the number of tokens."""
    shape = single_shape(shapes)
    if len(shape) != 1 or "int" not in shapes.input_dtype:
        raise unfit_data("model transformer needs sequences of whole numbers: (sequence_length,) of int32", shapes)
    return keras.Input(shape, dtype=shapes.input_dtype, name="input")


def count_outputs(shapes: Shapes) -> int:
    """Return the units of the head."""
    if shapes.num_classes is None:
        raise config_error(
            "data.num_classes",
            "must be known, to size the head of a shipped model",
            None,
            "Set it, or build the model yourself with model=builder.",
        )
    return shapes.num_classes


def single_shape(shapes: Shapes) -> tuple[int, ...]:
    """Return the shape, where the data has one input of fixed size."""
    shape = shapes.input_shape
    if isinstance(shape, Mapping) or not shape or not all(isinstance(size, int) and size for size in shape):
        raise unfit_data("a shipped model needs one input of fixed shape, with a dimension beside the examples", shapes)
    return tuple(shape)


def unfit_data(rule: str, shapes: Shapes) -> ConfigError:
    """Return the error for data that the chosen model can't take."""
    return config_error(
        "model.name", rule, shapes.input_shape, f"The data gives {shapes}. Choose another model or other data."
    )


def check_fit(model: keras.Model, shapes: Shapes, key: str) -> keras.Model:
    """Return the model, built if it was not; ConfigError on `key` where inputs or outputs don't fit.

    UserCodeError for an exception of the user's `call`: Keras raises ValueError if shapes don't fit. A model with its
    own train_step is accepted without a `call`, or with one for other inputs, as in a GAN whose call generates.
    """
    own_step = has_custom(model, "train_step")
    if own_step and not has_custom(model, "call"):
        model.built = True
        return model
    try:
        outputs = _call_symbolically(model, shapes)
    except Exception as error:
        if own_step:  # its error appears when the step is traced
            model.built = True
            return model
        is_unfit = isinstance(error, ValueError)
        problem, said = model_problem(key, error), plain_message(error)
        if problem is None and not is_unfit:
            raise UserCodeError(f"{key}: calling the model raised {type(error).__name__}: {said}") from error
        rule = "the model must take the data's examples."
        unfit_problem = Problem(key, rule, None, f"The data gives {shapes}. Keras says: {said}")
        raise ConfigError(problem or unfit_problem) from error
    has_own_loss = own_step or model.compiled  # which may compare what it likes
    if shapes.num_classes is not None and not has_own_loss and not shapes.targets_as_given:
        _check_outputs(outputs, shapes, key)
    return model


def _call_symbolically(model: keras.Model, shapes: Shapes) -> Any:
    """Return the outputs of the model without computing anything; no state of it changes."""
    with warnings.catch_warnings():
        # before an error in the user's `call` Keras warns at length that it can't trace it; the error says it better
        warnings.filterwarnings("ignore", message=".*unbuilt state", category=UserWarning)
        inputs = map_arrays(
            lambda dtype, shape: keras.KerasTensor((None, *shape), dtype), shapes.input_dtypes, shapes.input_shape
        )
        if isinstance(model, keras.Function) and isinstance(model.input, (list, tuple)) and isinstance(inputs, dict):
            names = [getattr(each, "name", "") for each in model.input]
            if inputs.keys() >= {*names}:  # Keras does so with arrays, but takes symbolic tensors in sorted order
                inputs = [inputs[name] for name in names]
        return model(inputs)


def _check_outputs(outputs: Any, shapes: Shapes, key: str) -> None:
    if not isinstance(outputs, keras.KerasTensor):
        raise config_error(key, "the model must have one output.", type(outputs).__name__)
    count = outputs.shape[-1] if len(outputs.shape) > 1 else 1
    binary = shapes.task == "classification" and shapes.num_classes == 2
    if count != shapes.num_classes and not (binary and count == 1):
        unit = "targets" if shapes.task == "regression" else "classes"
        raise config_error(
            key,
            f"the model has {count} outputs, the data {shapes.num_classes} {unit}; they must agree.",
            remedy="Give the last layer that many units, or set data.num_classes where the data can't tell.",
        )


def plain_message(error: Exception) -> str:
    """Return what an exception says, without Keras's colors, its frame around the message and its list of arguments."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).rsplit("Exception encountered:\n'", 1)[-1]
    text = re.sub(r"^Exception encountered when calling .*\n+", "", text).split("\n\nArguments received by")[0]
    text = text.rsplit("Error encountered:\n\n", 1)[-1]
    return " ".join(text.split()) or type(error).__name__


def build_mlp(settings: MLP, shapes: Shapes) -> keras.Model:
    """Build fully connected layers on flattened input."""
    name = settings.activation
    try:
        keras.activations.get(name)
    except ValueError as error:
        remedy = did_you_mean(name, vars(keras.activations))
        raise config_error("model.activation", "Keras has no activation of this name.", name, remedy) from error
    inputs, x = float_input(shapes)
    x = layers.Flatten(name="flatten")(x)
    for number, units in enumerate(settings.hidden_units, start=1):
        x = layers.Dense(units, use_bias=not settings.batch_norm, name=f"hidden_{number}")(x)
        if settings.batch_norm:
            x = layers.BatchNormalization(momentum=0.9, name=f"batch_norm_{number}")(x)
        x = layers.Activation(name, name=f"activation_{number}")(x)
        x = _dropout(x, settings.dropout, f"dropout_{number}")
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="mlp")


def _dropout(x: keras.KerasTensor, rate: float, name: str) -> keras.KerasTensor:
    return layers.Dropout(rate, name=name)(x) if rate else x


def build_cnn(settings: CNN, shapes: Shapes) -> keras.Model:
    """Build blocks of two 3x3 convolutions and a 2x2 max pooling, then one hidden layer.

    Pooling stops when a side of the image is one pixel, so that any depth works on 8x8 digits.
    """
    inputs, x = image_input(shapes, "cnn")
    for number, filters in enumerate(settings.filters, start=1):
        name = f"block_{number}"
        for part in (1, 2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"{name}_conv_{part}")(x)
        x = layers.MaxPooling2D(2, name=f"{name}_pool")(x) if min(x.shape[1:3]) > 1 else x
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(settings.hidden_units, activation="relu", name="hidden")(x)
    x = _dropout(x, settings.dropout, "dropout")
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="cnn")


def build_resnet(settings: ResNet, shapes: Shapes) -> keras.Model:
    """Build a 3x3 convolution, then stages of residual blocks (He et al. 2016); each but the first halves the image.

    Convolutions have no bias, since BatchNormalization follows. The moving statistics forget at 0.9 a step, not Keras's
    0.99: a run of a few hundred steps would be validated on stale ones.
    """
    inputs, image = image_input(shapes, "resnet")
    x = _conv_norm(image, settings.filters[0], 3, 1, "stem", relu=True)
    for stage, (filters, blocks) in enumerate(zip(settings.filters, settings.blocks, strict=True), start=1):
        for block in range(1, blocks + 1):
            strides = 2 if stage > 1 and block == 1 else 1
            x = _residual(x, filters, strides, f"stage_{stage}_block_{block}")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="resnet")


def _residual(x: keras.KerasTensor, filters: int, strides: int, name: str) -> keras.KerasTensor:
    """Return x + f(x), the shortcut projected by a 1x1 convolution where the shapes differ."""
    branch = _conv_norm(x, filters, 3, strides, f"{name}_1", relu=True)
    branch = _conv_norm(branch, filters, 3, 1, f"{name}_2")
    if strides > 1 or x.shape[-1] != filters:
        x = _conv_norm(x, filters, 1, strides, f"{name}_shortcut")
    x = layers.Add(name=f"{name}_add")([x, branch])
    return layers.ReLU(name=f"{name}_relu")(x)


def _conv_norm(
    x: keras.KerasTensor, filters: int, size: int, strides: int, name: str, relu: bool = False
) -> keras.KerasTensor:
    x = layers.Conv2D(
        filters, size, strides, padding="same", use_bias=False, kernel_initializer="he_normal", name=f"{name}_conv"
    )(x)
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x) if relu else x


def build_transformer(settings: Transformer, shapes: Shapes) -> keras.Model:
    """Build tokens (batch, sequence_length) → logits (batch, sequence_length, num_classes) of each next token.

    A GPT as in Radford et al. 2019: pre-LayerNorm, learned positions, causal attention. The head is not tied to the
    embedding: 12 layers of width 768 over 50,257 tokens and 1024 positions are 163,037,184 parameters, not GPT-2's
    124M.
    """
    tokens = token_input(shapes)
    x = _embed(tokens, settings, count_outputs(shapes))
    for number in range(1, settings.layers + 1):
        x = _transformer_block(x, settings, f"block_{number}")
    x = layers.LayerNormalization(epsilon=1e-5, name="final_norm")(x)
    head = layers.Dense(count_outputs(shapes), use_bias=False, kernel_initializer=_normal(), name="head")
    return keras.Model(tokens, head(x), name="transformer")


def _embed(tokens: keras.KerasTensor, settings: Transformer, vocabulary: int) -> keras.KerasTensor:
    token = layers.Embedding(vocabulary, settings.width, embeddings_initializer=_normal(), name="token_embedding")
    position = layers.Embedding(
        tokens.shape[1], settings.width, embeddings_initializer=_normal(), name="position_embedding"
    )
    # 0, 1, 2, … must come from the input for the functional graph to hold the embedding; one row serves the batch.
    positions = ops.cumsum(ops.ones_like(tokens[0])) - 1
    return _dropout(token(tokens) + position(positions), settings.dropout, "embedding_dropout")


def _transformer_block(x: keras.KerasTensor, settings: Transformer, name: str) -> keras.KerasTensor:
    """Return x + attention(norm(x)), then x + mlp(norm(x))."""
    y = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm_1")(x)
    attention = layers.MultiHeadAttention(
        settings.heads,
        settings.width // settings.heads,
        dropout=settings.dropout,
        kernel_initializer=_normal(),
        name=f"{name}_attention",
    )
    x = layers.Add(name=f"{name}_add_1")([x, attention(y, y, use_causal_mask=True)])
    y = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm_2")(x)
    return layers.Add(name=f"{name}_add_2")([x, _mlp(y, settings, name)])


def _mlp(x: keras.KerasTensor, settings: Transformer, name: str) -> keras.KerasTensor:
    x = layers.Dense(settings.mlp_ratio * settings.width, kernel_initializer=_normal(), name=f"{name}_mlp_1")(x)
    x = layers.Activation("gelu", name=f"{name}_gelu")(x)
    x = layers.Dense(settings.width, kernel_initializer=_normal(), name=f"{name}_mlp_2")(x)
    return _dropout(x, settings.dropout, f"{name}_dropout")


def _normal() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.02)  # one each: a seeded initializer repeats its values


def build_user_model(settings: Builder, shapes: Shapes) -> keras.Model:
    """Return the model of the user's function, built for the data's shape and checked against it."""
    key = "model.builder"
    function = load_function(settings.builder, key)
    model = call_user(function, key, **builder_arguments(function, settings.kwargs, shapes))
    if not isinstance(model, keras.Model):
        raise config_error(key, f"{settings.builder} must return a keras.Model.", type(model).__name__)
    return check_fit(model, shapes, key)


def builder_arguments(function: Callable[..., Any], kwargs: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Return `model.kwargs`, and those of input_shape, num_classes and classes (keras.applications) it takes.

    A function with `**kwargs` takes the first two. What the user gives in `model.kwargs` wins.
    """
    offered = {"input_shape": shapes.input_shape, "num_classes": shapes.num_classes, "classes": shapes.num_classes}
    parameters = parameters_of(function, "model.builder")
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    taken = set(parameters) | ({"input_shape", "num_classes"} if open_ended else set())
    return {**{name: value for name, value in offered.items() if name in taken}, **kwargs}


def load_saved_model(settings: Saved, shapes: Shapes) -> keras.Model:
    """Return the model as it was saved: its layers keep the dtype policies in the file, whatever `policy.name` says."""
    try:
        model = keras.models.load_model(settings.path, compile=False, safe_mode=True)
    except Exception as error:  # zip, JSON, HDF5 and missing user classes all raise their own
        if "safe_mode" in str(error):
            raise DataError(
                f"model.path: {settings.path!r} holds Python code (a Lambda layer), which is not run from "
                "a file. Make the model by model.builder and take its weights from the file with "
                "model.weights, or register the function with Keras and save the model again."
            ) from error
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


def build_model(settings: ModelSettings, shapes: Shapes) -> keras.Model:
    """Return a built, uncompiled model under the dtype policy in force; shipped ones end in a linear Dense layer
    "head".

    ConfigError where model and data don't fit, DataError for a .keras file that can't be read.
    """
    with adapted_in_float32():
        return BUILDERS[settings.name](settings, shapes)


@contextmanager
def adapted_in_float32() -> Iterator[None]:
    """Make `Normalization.adapt` compute in float32 in the block, whatever the policy: Keras would compute means and
    variances of a dataset in float16, where squares overflow, and where it fails for mixed dtypes, as for a
    FeatureSpace.

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


def set_trained(model: Any, settings: ModelSettings) -> None:
    """Make the layers of `model.freeze` untrainable, then those of `model.unfreeze` trainable.

    Setting a layer also sets the layers inside it, as in Keras. ConfigError for a pattern that no layer matches, and if
    nothing is left to train.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="one"), keras.layers.Dense(2)])
    >>> set_trained(model, ModelSettings(freeze=["*"], unfreeze=["one"]))
    >>> [layer.trainable for layer in model.layers]
    [True, False]
    """
    for name, trained in (("freeze", False), ("unfreeze", True)):
        _set_layers(model, getattr(settings, name), trained, f"model.{name}")
    if (settings.freeze or settings.unfreeze) and model.built and not model.trainable_variables:
        frozen = settings.freeze or settings.unfreeze
        raise config_error(
            "model.freeze", "must leave something to train.", frozen, "Name what is to be trained in `unfreeze`."
        )


KEPT = "!"  # before a pattern of layers that stay as they are


def _set_layers(model: Any, patterns: list[str], trained: bool, key: str) -> None:
    """Freeze or unfreeze; containers come before their layers, and layers to be left alone get their state back."""
    layers = inner_layers(model)
    for pattern in patterns:
        plain = pattern.removeprefix(KEPT)
        if not any(_matches(plain, layer) for layer in layers):
            names = [*dict.fromkeys(layer.name for layer in layers)]
            remedy = did_you_mean(plain, names) or f"It has {', '.join(names[:8])}."
            raise config_error(key, "must match the name, path or class of a layer of the model.", pattern, remedy)
    kept = [layer for layer in layers if any(_matches(p[1:], layer) for p in patterns if p.startswith(KEPT))]
    before = [(part, part.trainable) for layer in kept for part in (layer, *inner_layers(layer))]
    for layer in layers:
        if any(_matches(pattern, layer) for pattern in patterns):
            layer.trainable = trained
    for part, was_trained in before:
        part.trainable = was_trained


def _matches(pattern: str, layer: Any) -> bool:
    return any(fnmatchcase(text, pattern) for text in (layer.name, layer.path or layer.name, type(layer).__name__))
