"""A variational autoencoder with its own train_step and test_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


def load_images(examples=256):
    rng = np.random.default_rng(0)
    shades = rng.random((examples, 1, 8, 1)) * np.linspace(0, 1, 8).reshape(1, 8, 1, 1) * np.ones((1, 1, 8, 1))
    return shades.astype("float32")


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.seeds = keras.random.SeedGenerator(0)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.kl_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.loss_tracker, self.kl_tracker]

    def losses_of(self, images):
        mean, log_variance = ops.split(ops.cast(self.encoder(images), "float32"), 2, axis=1)
        latent = mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)
        error = ops.square(ops.cast(self.decoder(latent), "float32") - images)
        kl_loss = -0.5 * ops.mean(ops.sum(1 + log_variance - mean**2 - ops.exp(log_variance), axis=1))
        return ops.mean(ops.sum(error, axis=(1, 2, 3))) + kl_loss, kl_loss

    def report(self, loss, kl_loss):
        self.loss_tracker.update_state(loss)
        self.kl_tracker.update_state(kl_loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, images):
        with tf.GradientTape() as tape:
            loss, kl_loss = self.losses_of(images)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return self.report(loss, kl_loss)

    def test_step(self, images):
        return self.report(*self.losses_of(images))


def build_model(input_shape):
    encoder = [keras.Input(input_shape), layers.Flatten(), layers.Dense(32, "relu"), layers.Dense(4)]
    decoder = [keras.Input((2,)), layers.Dense(32, "relu"), layers.Dense(64, "sigmoid"), layers.Reshape(input_shape)]
    model = VAE(keras.Sequential(encoder), keras.Sequential(decoder))
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    return model
