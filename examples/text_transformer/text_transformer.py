"""A transformer block reads a text and says whether it praises; padding is masked."""

import keras
import numpy as np
from keras import layers, ops

WORDS, LENGTH, WIDTH = 40, 16, 16


def load_reviews(examples=256):
    """Texts of 6 to 16 words, padded with 0; words 1 to 4 praise, 5 to 8 blame."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, examples)
    x = rng.integers(9, WORDS, (examples, LENGTH))
    judged = rng.random((examples, LENGTH)) < 0.3
    x[judged] = (rng.integers(1, 5, (examples, LENGTH)) + 4 * (1 - labels[:, None]))[judged]
    x[np.arange(LENGTH) >= rng.integers(6, LENGTH + 1, (examples, 1))] = 0
    return x, labels


@keras.saving.register_keras_serializable("text_transformer")
class TransformerBlock(layers.Layer):
    def __init__(self, width, heads, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {"width": width, "heads": heads, "rate": rate}
        self.attention = layers.MultiHeadAttention(num_heads=heads, key_dim=width)
        self.feed_forward = keras.Sequential([layers.Dense(2 * width, activation="relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)]
        self.dropouts = [layers.Dropout(rate), layers.Dropout(rate)]
        self.supports_masking = True

    def call(self, inputs, training=False):
        attended = self.dropouts[0](self.attention(inputs, inputs), training=training)
        x = self.norms[0](inputs + attended)
        return self.norms[1](x + self.dropouts[1](self.feed_forward(x), training=training))

    def get_config(self):
        return {**super().get_config(), **self.sizes}


@keras.saving.register_keras_serializable("text_transformer")
class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, words, length, width, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {"words": words, "length": length, "width": width}
        self.token = layers.Embedding(words, width, mask_zero=True)
        self.position = layers.Embedding(length, width)

    def compute_mask(self, inputs, mask=None):
        return self.token.compute_mask(inputs, mask)

    def call(self, tokens):
        return self.token(tokens) + self.position(ops.arange(ops.shape(tokens)[-1]))

    def get_config(self):
        return {**super().get_config(), **self.sizes}


def build_model():
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = TokenAndPositionEmbedding(WORDS, LENGTH, WIDTH)(tokens)
    x = TransformerBlock(WIDTH, heads=2)(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.1)(x)
    return keras.Model(tokens, layers.Dense(2, activation="softmax")(x))
