"""A variational autoencoder whose layers add its losses: the divergence where it samples, the error at its end."""

import keras
import numpy as np
from keras import layers, ops

LATENT = 2


def load_images(examples=192):
    rng = np.random.default_rng(0)
    shades = rng.random((examples, 1, 8, 1)) * np.linspace(0, 1, 8).reshape(1, 8, 1, 1) * np.ones((1, 1, 8, 1))
    return shades.astype("float32")


@keras.saving.register_keras_serializable("vae_add_loss")
class Sampling(layers.Layer):
    """Draws from the normal distribution of each example, and adds how far that is from the standard one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1337)

    def call(self, mean, log_variance):
        mean, log_variance = ops.cast(mean, "float32"), ops.cast(log_variance, "float32")
        divergence = -0.5 * ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=1)
        self.add_loss(ops.mean(divergence))
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)


@keras.saving.register_keras_serializable("vae_add_loss")
class ReconstructionError(layers.Layer):
    def call(self, images, reconstruction):
        images, reconstruction = ops.cast(images, "float32"), ops.cast(reconstruction, "float32")
        self.add_loss(ops.mean(ops.sum(ops.square(images - reconstruction), axis=(1, 2, 3))))
        return reconstruction


def build_model(input_shape):
    images = keras.Input(input_shape)
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(images)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    latent = Sampling()(layers.Dense(LATENT, name="mean")(x), layers.Dense(LATENT, name="log_variance")(x))
    x = layers.Reshape((4, 4, 4))(layers.Dense(64, activation="relu")(latent))
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(x)
    reconstruction = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)
    return keras.Model(images, ReconstructionError(dtype="float32")(images, reconstruction))
