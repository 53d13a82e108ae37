"""Three inputs and two outputs: the priority of a ticket and the department that it goes to."""

import keras
import numpy as np
from keras import layers

WORDS, TAGS, DEPARTMENTS = 50, 12, 4


def load_tickets(examples=256):
    rng = np.random.default_rng(0)
    title = rng.integers(1, WORDS, (examples, 6))
    body = rng.integers(1, WORDS, (examples, 10))
    tags = rng.integers(0, 2, (examples, TAGS)).astype("float32")
    priority = ((title.mean(1) + tags.sum(1)) / 31).astype("float32")[:, None]
    department = keras.utils.to_categorical(body.mean(1).astype(int) % DEPARTMENTS, DEPARTMENTS)
    x = {"title": title, "body": body, "tags": tags}
    y = {"priority": priority, "department": department}
    return x, y


def build_model():
    title = keras.Input((None,), dtype="int32", name="title")
    body = keras.Input((None,), dtype="int32", name="body")
    tags = keras.Input((TAGS,), name="tags")
    words = layers.Embedding(WORDS, 8)
    x = layers.concatenate([layers.LSTM(8)(words(title)), layers.GRU(8)(words(body)), tags])
    priority = layers.Dense(1, name="priority")(x)
    department = layers.Dense(DEPARTMENTS, activation="softmax", name="department")(x)
    outputs = {"priority": priority, "department": department}
    return keras.Model({"title": title, "body": body, "tags": tags}, outputs)
