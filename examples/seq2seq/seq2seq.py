"""Sequence to sequence: an encoder, and a decoder that sees the answer so far, write a word backwards."""

import keras
import numpy as np
from keras import layers

LETTERS, LENGTH = 8, 5
START = 0


def load_words(examples=192):
    rng = np.random.default_rng(0)
    word = rng.integers(1, LETTERS, (examples, LENGTH))
    answer = word[:, ::-1]
    shown = np.concatenate([np.full((examples, 1), START), answer[:, :-1]], axis=1)
    one_hot = keras.utils.to_categorical
    return [one_hot(word, LETTERS), one_hot(shown, LETTERS)], one_hot(answer, LETTERS)


def build_model(width=24):
    encoder_inputs = keras.Input((None, LETTERS))
    _, state_h, state_c = layers.LSTM(width, return_state=True)(encoder_inputs)
    decoder_inputs = keras.Input((None, LETTERS))
    outputs, _, _ = layers.LSTM(width, return_sequences=True, return_state=True)(
        decoder_inputs, initial_state=[state_h, state_c])
    outputs = layers.Dense(LETTERS, activation="softmax")(outputs)
    return keras.Model([encoder_inputs, decoder_inputs], outputs)
