"""`model.name: transformer`: a GPT as in Radford et al. 2019: pre-LayerNorm, learned positions, causal attention.

Built of Keras's own layers only, so that a saved file opens without this package. The head is not tied to the
embedding: 12 layers of width 768 over 50,257 tokens and 1024 positions are 163,037,184 parameters, not GPT-2's 124M.
"""

import keras
from keras import layers, ops

from mpt_cli.models.shapes import Shapes, count_outputs, token_input
from mpt_cli.settings.models import Transformer


def build_transformer(settings: Transformer, shapes: Shapes) -> keras.Model:
    """Tokens (batch, sequence_length) → logits (batch, sequence_length, num_classes) of each next token."""
    tokens = token_input(shapes)
    x = _embed(tokens, settings, count_outputs(shapes))
    for number in range(1, settings.layers + 1):
        x = _block(x, settings, f"block_{number}")
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


def _block(x: keras.KerasTensor, settings: Transformer, name: str) -> keras.KerasTensor:
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
