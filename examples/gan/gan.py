"""A GAN on points in the plane: two networks, two optimizers, its own compile and train_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LATENT = 4


def load_points(examples=512):
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, examples)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seeds = keras.random.SeedGenerator(0)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, real):
        count = ops.shape(real)[0]
        points = ops.concatenate([ops.cast(self.generator(self.noise(count)), "float32"), real])
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))])
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(points, training=True))
            scaled = self.d_optimizer.scale_loss(d_loss)
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(scaled, weights), weights)
        with tf.GradientTape() as tape:
            fake = self.generator(self.noise(count), training=True)
            g_loss = self.loss_fn(ops.zeros((count, 1)), self.discriminator(fake))
            scaled = self.g_optimizer.scale_loss(g_loss)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(scaled, weights), weights)
        return {"d_loss": d_loss, "g_loss": g_loss}

    def noise(self, count):
        return keras.random.normal((count, LATENT), seed=self.seeds)


    def test_step(self, real):
        points = self.generator(self.noise(ops.shape(real)[0]))
        return {"radius_error": ops.mean(ops.abs(ops.norm(ops.cast(points, "float32"), axis=1) - 1.0))}


def build_model(input_shape):
    discriminator = [keras.Input(input_shape), layers.Dense(32, "leaky_relu"), layers.Dense(1)]
    generator = [keras.Input((LATENT,)), layers.Dense(32, "leaky_relu"), layers.Dense(2)]
    model = GAN(keras.Sequential(discriminator), keras.Sequential(generator))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3), loss)
    return model
