"""Who likes what: embeddings of users and films, and a layer that is made in call."""

import keras
import numpy as np
from keras import layers, ops

USERS, FILMS = 30, 20


def load_ratings(examples=512):
    rng = np.random.default_rng(0)
    users, films = rng.integers(0, USERS, examples), rng.integers(0, FILMS, examples)
    liked = ((users % 4) == (films % 4)).astype("float32")
    return np.stack([users, films], axis=1).astype("int32"), liked


@keras.saving.register_keras_serializable("recommender")
class Recommender(keras.Model):
    def __init__(self, width=8, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.user, self.user_bias = layers.Embedding(USERS, width), layers.Embedding(USERS, 1)
        self.film, self.film_bias = layers.Embedding(FILMS, width), layers.Embedding(FILMS, 1)

    def call(self, pairs):
        user, film = self.user(pairs[:, 0]), self.film(pairs[:, 1])
        match = layers.Dot(axes=1)([user, film]) + self.user_bias(pairs[:, 0]) + self.film_bias(pairs[:, 1])
        return ops.sigmoid(ops.cast(match, "float32"))


def build_model():
    return Recommender()
