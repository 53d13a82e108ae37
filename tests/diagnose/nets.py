"""Models whose gradients have known ranges, or that overflow in one known layer, for `model.builder`.

A `Gate` leaves its input as it is and multiplies the gradient on its way back, so that the layers above and below it
have gradients that far apart.
"""

from typing import Any

import keras
from keras import layers, ops

from mpt_cli.precision.gradients.custom_gradients import scale_gradient


class Gate(layers.Layer):
    def __init__(self, power: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.power = power

    def call(self, inputs: Any) -> Any:
        return scale_gradient(inputs, 2.0**self.power)

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)


class Times(layers.Layer):
    """Multiplies by a constant, in the dtype of the layer."""

    def __init__(self, factor: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        return inputs * ops.cast(self.factor, inputs.dtype)


def sequential(input_shape: tuple[int, ...], num_classes: int, power: int = -14) -> keras.Model:
    """One hidden layer, whose gradients lie 2**power below those of the head."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(name="flatten"),
            layers.Dense(32, "relu", name="hidden"),
            Gate(power, name="gate"),
            layers.Dense(num_classes, name="head"),
        ]
    )


def functional(input_shape: tuple[int, ...], num_classes: int, power: int = -12) -> keras.Model:
    """Two branches, one behind a gate, joined by a plain operation."""
    inputs = keras.Input(input_shape)
    flat = layers.Flatten(name="flatten")(inputs)
    far = Gate(power, name="gate")(layers.Dense(16, "tanh", name="far")(flat))
    near = layers.Dense(16, "tanh", name="near")(flat)
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(near + far))


class Subclassed(keras.Model):
    """A convolution and a dense layer with a gate between them; `call` mixes layers and plain operations."""

    def __init__(self, num_classes: int, power: int):
        super().__init__()
        self.convolution = layers.Conv2D(4, 3, name="convolution")
        self.gate = Gate(power, name="gate")
        self.flatten = layers.Flatten(name="flatten")
        self.middle = layers.Dense(16, name="middle")
        self.head = layers.Dense(num_classes, name="head")

    def call(self, inputs: Any) -> Any:
        x = ops.relu(self.gate(self.convolution(inputs)))
        return self.head(ops.relu(self.middle(self.flatten(x))))


def subclassed(input_shape: tuple[int, ...], num_classes: int, power: int = -15) -> keras.Model:
    return Subclassed(num_classes, power)


def torn_apart(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Gradients of `low` lie 2**45 below those of `high`: no scale of float16 holds both."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(name="flatten"),
            layers.Dense(16, "tanh", name="low"),
            Gate(-45, name="gate"),
            layers.Dense(16, "tanh", name="high"),
            layers.Dense(num_classes, name="head"),
        ]
    )


def hot(input_shape: tuple[int, ...], num_classes: int, factor: float = 1e6) -> keras.Model:
    """`hot` overflows float16 in the forward pass; `cool` undoes it, so that float32 has no trouble."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(name="flatten"),
            layers.Dense(16, "tanh", name="hidden"),
            Times(factor, name="hot"),
            Times(1 / factor, name="cool"),
            layers.Dense(num_classes, name="head"),
        ]
    )


def penalised(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """The sum of squares that `penalty` adds to the loss overflows float16, its gradient does not."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(name="flatten"),
            layers.Dense(16, name="hidden"),
            Times(300.0, name="loud"),
            layers.ActivityRegularization(l2=1e-6, name="penalty"),
            Times(1 / 300.0, name="quiet"),
            layers.Dense(num_classes, name="head"),
        ]
    )


def steep(input_shape: tuple[int, ...], num_classes: int, power: int = 12) -> keras.Model:
    """Gradients grow by 2**power at `gate` on their way back, and overflow there first."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(name="flatten"),
            layers.Dense(16, "tanh", name="hidden"),
            Gate(power, name="gate"),
            layers.Dense(16, "tanh", name="high"),
            layers.Dense(num_classes, name="head"),
        ]
    )


def vanishing(input_shape: tuple[int, ...], num_classes: int, depth: int = 10) -> keras.Model:
    """Outputs fall to a sixth at each layer, below what float16 holds."""
    small = keras.initializers.RandomNormal(stddev=0.02, seed=1)
    hidden = [layers.Dense(64, "tanh", kernel_initializer=small, name=f"h{i}") for i in range(depth)]
    head = layers.Dense(num_classes, name="head")
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(name="flatten"), *hidden, head])


def lost(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Overflows float32."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            Times(1e30, name="hot"),
            Times(1e30, name="hotter"),
            layers.Dense(num_classes, name="head"),
        ]
    )


def faint_convolution(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Outputs of `second` are too small for float16, though not for the normalisation after them."""
    small = keras.initializers.RandomNormal(stddev=1e-9, seed=1)
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(8, 3, activation="relu", name="first")(inputs)
    x = layers.Conv2D(8, 3, kernel_initializer=small, use_bias=False, name="second")(x)
    x = layers.LayerNormalization(axis=(1, 2, 3), epsilon=1e-24, name="norm")(x)
    x = layers.Flatten(name="flatten")(layers.ReLU(name="relu")(x))
    return keras.Model(inputs, layers.Dense(num_classes, name="head")(x))
