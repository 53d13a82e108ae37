"""The shipped networks: mlp, cnn, resnet and transformer, of Keras's own layers, so that a file opens without mpt."""

import keras
from keras import layers, ops

from mpt_cli.errors import ConfigError, Problem, did_you_mean
from mpt_cli.models.shapes import Shapes, count_outputs, float_input, image_input, token_input
from mpt_cli.settings.variants import CNN, MLP, ResNet, Transformer


def build_mlp(settings: MLP, shapes: Shapes) -> keras.Model:
    """Fully connected layers on flattened input."""
    _check_activation(settings.activation)
    inputs, x = float_input(shapes)
    x = layers.Flatten(name="flatten")(x)
    for number, units in enumerate(settings.hidden_units, start=1):
        x = _hidden(x, units, number, settings)
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="mlp")


def _hidden(x: keras.KerasTensor, units: int, number: int, settings: MLP) -> keras.KerasTensor:
    x = layers.Dense(units, use_bias=not settings.batch_norm, name=f"hidden_{number}")(x)
    if settings.batch_norm:
        x = layers.BatchNormalization(momentum=0.9, name=f"batch_norm_{number}")(x)
    x = layers.Activation(settings.activation, name=f"activation_{number}")(x)
    return layers.Dropout(settings.dropout, name=f"dropout_{number}")(x) if settings.dropout else x


def _check_activation(name: str) -> None:
    names = [known for known in vars(keras.activations) if not known.startswith("_") and "serialize" not in known]
    try:
        keras.activations.get(name)
    except ValueError as error:
        raise ConfigError(Problem("model.activation", "Keras has no activation of this name.", name,
                                  did_you_mean(name, names) or f"There are {', '.join(names)}.")) from error


def build_cnn(settings: CNN, shapes: Shapes) -> keras.Model:
    """Blocks of two 3x3 convolutions and a 2x2 max pooling, then one hidden layer.

    Pooling stops when a side of the image is one pixel, so that any depth works on 8x8 digits.
    """
    inputs, x = image_input(shapes, "cnn")
    for number, filters in enumerate(settings.filters, start=1):
        x = _conv_block(x, filters, f"block_{number}")
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(settings.hidden_units, activation="relu", name="hidden")(x)
    if settings.dropout:
        x = layers.Dropout(settings.dropout, name="dropout")(x)
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="cnn")


def _conv_block(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
    for number in (1, 2):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"{name}_conv_{number}")(x)
    return layers.MaxPooling2D(2, name=f"{name}_pool")(x) if min(x.shape[1:3]) > 1 else x


EXPANSION = 4  # filters of a bottleneck's last convolution over those of its middle one


def build_resnet(settings: ResNet, shapes: Shapes) -> keras.Model:
    """A stem, then stages of residual blocks (He et al. 2016); each stage but the first halves the image.

    The stride is in the 3x3 convolution ("v1.5"). With `bottleneck: true`, `stem: imagenet`, filters 64…512 and blocks
    3, 4, 6, 3 it is ResNet-50: 25,557,032 trainable parameters on 1000 classes. Convolutions have no bias, since
    BatchNormalization follows. The moving statistics forget at 0.9 a step, not Keras's 0.99: a run of a few hundred
    steps would be validated on stale ones.
    """
    inputs, image = image_input(shapes, "resnet")
    x = _stem(image, settings)
    for stage, (filters, blocks) in enumerate(zip(settings.filters, settings.blocks, strict=True), start=1):
        for block in range(1, blocks + 1):
            strides = 2 if stage > 1 and block == 1 else 1
            x = _residual(x, filters, strides, f"stage_{stage}_block_{block}", settings.bottleneck)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="resnet")


def _stem(x: keras.KerasTensor, settings: ResNet) -> keras.KerasTensor:
    if settings.stem == "small":
        return _conv_norm(x, settings.filters[0], 3, 1, "stem", relu=True)
    x = _conv_norm(x, settings.filters[0], 7, 2, "stem", relu=True)
    return layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x)


def _residual(x: keras.KerasTensor, filters: int, strides: int, name: str, bottleneck: bool) -> keras.KerasTensor:
    """x + f(x), the shortcut projected by a 1x1 convolution where the shapes differ."""
    branch = (_bottleneck if bottleneck else _basic)(x, filters, strides, name)
    if strides > 1 or x.shape[-1] != branch.shape[-1]:
        x = _conv_norm(x, branch.shape[-1], 1, strides, f"{name}_shortcut")
    x = layers.Add(name=f"{name}_add")([x, branch])
    return layers.ReLU(name=f"{name}_relu")(x)


def _basic(x: keras.KerasTensor, filters: int, strides: int, name: str) -> keras.KerasTensor:
    x = _conv_norm(x, filters, 3, strides, f"{name}_1", relu=True)
    return _conv_norm(x, filters, 3, 1, f"{name}_2")


def _bottleneck(x: keras.KerasTensor, filters: int, strides: int, name: str) -> keras.KerasTensor:
    x = _conv_norm(x, filters, 1, 1, f"{name}_1", relu=True)
    x = _conv_norm(x, filters, 3, strides, f"{name}_2", relu=True)
    return _conv_norm(x, EXPANSION * filters, 1, 1, f"{name}_3")


def _conv_norm(
    x: keras.KerasTensor, filters: int, size: int, strides: int, name: str, relu: bool = False
) -> keras.KerasTensor:
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False, kernel_initializer="he_normal",
                      name=f"{name}_conv")(x)
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x) if relu else x


def build_transformer(settings: Transformer, shapes: Shapes) -> keras.Model:
    """Tokens (batch, sequence_length) → logits (batch, sequence_length, num_classes) of each next token.

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
    place = layers.Embedding(tokens.shape[1], settings.width, embeddings_initializer=_normal(),
                             name="position_embedding")
    # 0, 1, 2, … must come from the input for the functional graph to hold the embedding; one row serves the batch.
    positions = ops.cumsum(ops.ones_like(tokens[0])) - 1
    return _dropout(token(tokens) + place(positions), settings, "embedding")


def _transformer_block(x: keras.KerasTensor, settings: Transformer, name: str) -> keras.KerasTensor:
    """x + attention(norm(x)), then x + mlp(norm(x))."""
    y = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm_1")(x)
    attention = layers.MultiHeadAttention(
        settings.heads, settings.width // settings.heads, dropout=settings.dropout, kernel_initializer=_normal(),
        name=f"{name}_attention")
    x = layers.Add(name=f"{name}_add_1")([x, attention(y, y, use_causal_mask=True)])
    y = layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm_2")(x)
    return layers.Add(name=f"{name}_add_2")([x, _mlp(y, settings, name)])


def _mlp(x: keras.KerasTensor, settings: Transformer, name: str) -> keras.KerasTensor:
    x = layers.Dense(settings.mlp_ratio * settings.width, kernel_initializer=_normal(), name=f"{name}_mlp_1")(x)
    x = layers.Activation("gelu", name=f"{name}_gelu")(x)
    x = layers.Dense(settings.width, kernel_initializer=_normal(), name=f"{name}_mlp_2")(x)
    return _dropout(x, settings, name)


def _dropout(x: keras.KerasTensor, settings: Transformer, name: str) -> keras.KerasTensor:
    return layers.Dropout(settings.dropout, name=f"{name}_dropout")(x) if settings.dropout else x


def _normal() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.02)  # one each: a seeded initializer repeats its values
