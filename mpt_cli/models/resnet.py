"""`model.name: resnet`: residual networks (He et al. 2016), with the stride in the 3x3 convolution ("v1.5").

With `bottleneck: true`, `stem: imagenet`, filters 64…512 and blocks 3, 4, 6, 3 this is ResNet-50: 25,557,032 trainable
parameters on 1000 classes. Convolutions have no bias, since BatchNormalization follows. The moving statistics forget
at 0.9 a step, not Keras's 0.99: a run of a few hundred steps would be validated on stale ones.
"""

import keras
from keras import layers

from mpt_cli.models.shapes import Shapes, count_outputs, image_input
from mpt_cli.settings.models import ResNet

EXPANSION = 4  # filters of a bottleneck's last convolution over those of its middle one


def build_resnet(settings: ResNet, shapes: Shapes) -> keras.Model:
    """A stem, then stages of residual blocks; each stage but the first halves the image."""
    inputs, image = image_input(shapes, "resnet")
    x = _stem(image, settings)
    for stage, (filters, blocks) in enumerate(zip(settings.filters, settings.blocks, strict=True), start=1):
        for block in range(1, blocks + 1):
            strides = 2 if stage > 1 and block == 1 else 1
            x = _residual(x, filters, strides, f"stage_{stage}_block_{block}", settings.bottleneck)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(count_outputs(shapes), name="head")(x), name="resnet")


def _stem(x: keras.KerasTensor, settings: ResNet) -> keras.KerasTensor:
    if settings.stem == "small":
        return _conv(x, settings.filters[0], 3, 1, "stem", relu=True)
    x = _conv(x, settings.filters[0], 7, 2, "stem", relu=True)
    return layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x)


def _residual(x: keras.KerasTensor, filters: int, strides: int, name: str, bottleneck: bool) -> keras.KerasTensor:
    """x + f(x), the shortcut projected by a 1x1 convolution where the shapes differ."""
    branch = (_bottleneck if bottleneck else _basic)(x, filters, strides, name)
    if strides > 1 or x.shape[-1] != branch.shape[-1]:
        x = _conv(x, branch.shape[-1], 1, strides, f"{name}_shortcut")
    x = layers.Add(name=f"{name}_add")([x, branch])
    return layers.ReLU(name=f"{name}_relu")(x)


def _basic(x: keras.KerasTensor, filters: int, strides: int, name: str) -> keras.KerasTensor:
    x = _conv(x, filters, 3, strides, f"{name}_1", relu=True)
    return _conv(x, filters, 3, 1, f"{name}_2")


def _bottleneck(x: keras.KerasTensor, filters: int, strides: int, name: str) -> keras.KerasTensor:
    x = _conv(x, filters, 1, 1, f"{name}_1", relu=True)
    x = _conv(x, filters, 3, strides, f"{name}_2", relu=True)
    return _conv(x, EXPANSION * filters, 1, 1, f"{name}_3")


def _conv(
    x: keras.KerasTensor, filters: int, size: int, strides: int, name: str, relu: bool = False
) -> keras.KerasTensor:
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False, kernel_initializer="he_normal",
                      name=f"{name}_conv")(x)
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x) if relu else x
