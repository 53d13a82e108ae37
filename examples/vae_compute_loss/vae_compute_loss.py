"""A variational autoencoder with its own compute_loss, and metrics of the two parts of its loss."""

import keras
import numpy as np
from keras import layers, ops

LATENT = 2


def load_images(examples=192):
    rng = np.random.default_rng(0)
    shades = rng.random((examples, 1, 8, 1)) * np.linspace(0, 1, 8).reshape(1, 8, 1, 1) * np.ones((1, 1, 8, 1))
    return shades.astype("float32")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, beta=1.0):
        super().__init__()
        self.encoder, self.decoder, self.beta = encoder, decoder, beta
        self.seeds = keras.random.SeedGenerator(0)
        self.error_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.divergence_tracker = keras.metrics.Mean(name="kl_loss")

    def call(self, images, training=False):
        mean, log_variance = ops.split(ops.cast(self.encoder(images), "float32"), 2, axis=-1)
        latent = mean
        if training:
            latent += ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)
        return {"images": self.decoder(latent), "mean": mean, "log_variance": log_variance}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        mean, log_variance = y_pred["mean"], y_pred["log_variance"]
        error = ops.mean(ops.sum(keras.losses.binary_crossentropy(x, y_pred["images"]), axis=(1, 2)))
        divergence = ops.mean(-0.5 * ops.sum(1 + log_variance - mean**2 - ops.exp(log_variance), axis=1))
        self.error_tracker.update_state(error)
        self.divergence_tracker.update_state(divergence)
        return error + self.beta * divergence


def build_model(input_shape):
    encoder = [keras.Input(input_shape), layers.Flatten(), layers.Dense(32, "relu"), layers.Dense(2 * LATENT)]
    decoder = [keras.Input((LATENT,)), layers.Dense(32, "relu"), layers.Dense(64), layers.Reshape(input_shape),
               layers.Activation("sigmoid", dtype="float32")]  # fmt: skip
    return VAE(keras.Sequential(encoder), keras.Sequential(decoder))
