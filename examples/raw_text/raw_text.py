"""Raw text, turned into tokens by a layer of the model, adapted once to the training text."""

import keras
import numpy as np
from keras import layers

GOOD, BAD = ["great", "fine", "lovely", "good"], ["dull", "awful", "poor", "bad"]
FILLERS = ["the", "film", "was", "a", "story", "of", "two", "cities"]


def load_reviews(examples=192):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, examples)
    texts = [" ".join([*rng.choice(FILLERS, 5), rng.choice(GOOD if label else BAD), *rng.choice(FILLERS, 2)])
             for label in labels]
    split = examples * 3 // 4
    x = np.array(texts)[:, None]
    return (x[:split], labels[:split]), (x[split:], labels[split:])


def build_model():
    vectorize = layers.TextVectorization(max_tokens=40, output_sequence_length=8)
    vectorize.adapt(load_reviews()[0][0])
    return keras.Sequential([
        keras.Input((1,), dtype="string"),
        vectorize,
        layers.Embedding(40, 8),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ])
