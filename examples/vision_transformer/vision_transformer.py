"""A vision transformer on small images, with layers that augment them."""

import keras
import numpy as np
from keras import layers, ops

IMAGE, PATCH, WIDTH, CLASSES = 16, 4, 16, 3


def load_images(examples=192, seed=0):
    """Noisy images with a bar, a frame or a spot, a byte for each pixel."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, examples)
    x = rng.integers(0, 80, (examples, IMAGE, IMAGE, 1)).astype("uint8")
    x[labels == 0, :, 6:9] += 150
    x[labels == 1, 2:14, 2:14] += 60
    x[labels == 1, 5:11, 5:11] -= 60
    x[labels == 2, 6:10, 6:10] += 150
    split = examples * 3 // 4
    return (x[:split], labels[:split]), (x[split:], labels[split:])


@keras.saving.register_keras_serializable("vision_transformer")
class Patches(layers.Layer):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def call(self, images):
        patches = ops.image.extract_patches(images, self.size)
        return ops.reshape(patches, (-1, patches.shape[1] * patches.shape[2], patches.shape[3]))

    def get_config(self):
        return {**super().get_config(), "size": self.size}


@keras.saving.register_keras_serializable("vision_transformer")
class PatchEncoder(layers.Layer):
    def __init__(self, patches, width, **kwargs):
        super().__init__(**kwargs)
        self.patches, self.width = patches, width
        self.project, self.place = layers.Dense(width), layers.Embedding(patches, width)

    def call(self, patches):
        return self.project(patches) + self.place(ops.arange(self.patches))

    def get_config(self):
        return {**super().get_config(), "patches": self.patches, "width": self.width}


def build_model(input_shape, blocks=2):
    inputs = keras.Input(input_shape)
    augmentation = keras.Sequential([
        layers.Rescaling(1 / 255),
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(0.02),
        layers.RandomZoom(0.1, 0.1),
    ], name="augmentation")  # fmt: skip
    x = PatchEncoder((IMAGE // PATCH) ** 2, WIDTH)(Patches(PATCH)(augmentation(inputs)))
    for _ in range(blocks):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        attention = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH, dropout=0.1, use_bias=False)
        x = layers.Add()([x, attention(y, y)])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dropout(0.1)(layers.Dense(2 * WIDTH, activation="gelu")(y))
        x = layers.Add()([x, layers.Dense(WIDTH)(y)])
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = layers.Dropout(0.2)(x)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))
