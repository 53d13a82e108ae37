"""An autoencoder that is trained on x alone, with its own loss."""

import keras
import numpy as np
from keras import layers, ops


def load_images(examples=192):
    rng = np.random.default_rng(0)
    shades = rng.random((examples, 1, 8, 1)) * np.linspace(0, 1, 8).reshape(1, 8, 1, 1)
    return shades.astype("float32")


@keras.saving.register_keras_serializable("autoencoder")
class Reconstruction(layers.Layer):
    """Adds the error of the reconstruction to the losses of the model."""

    def call(self, image, reconstruction):
        image, reconstruction = ops.cast(image, "float32"), ops.cast(reconstruction, "float32")
        self.add_loss(ops.mean(ops.square(image - reconstruction)))
        return reconstruction


def build_model(input_shape):
    image = keras.Input(input_shape)
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(image)
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2D(1, 3, padding="same")(x)
    return keras.Model(image, Reconstruction(dtype="float32")(image, x))
