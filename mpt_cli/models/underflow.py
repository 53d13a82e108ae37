"""A network whose gradients underflow float16 unless the loss is scaled: Micikevicius et al. 2018 in small.

Forward it is an ordinary MLP. Backward, every gradient that enters the hidden layers is multiplied by 2**-20, so that
on a batch of 64 all of them lie below 2**-25, which float16 rounds to zero; a loss scale of 2**10 lifts them back.
The head stays as it was drawn (Hoffer et al. 2018, "Fix your classifier"): a head above the gate would learn in float32
on random features and hide the effect. Adam's step doesn't depend on the size of a gradient as long as its epsilon is
far below it: use 1e-12.
"""

import keras
from keras import layers, ops

GATE = 2.0**-20


def build_underflow_net(
    input_shape: tuple[int, ...], num_classes: int, width: int = 128, depth: int = 2
) -> keras.Model:
    """Build `depth` hidden layers, a gate that shrinks their gradients, and a fixed linear head."""
    inputs = keras.Input(input_shape, name="input")
    x = layers.Flatten(name="flatten")(inputs)
    for number in range(1, depth + 1):
        x = layers.Dense(width, activation="relu", name=f"hidden_{number}")(x)
    # GATE * x underflows harmlessly in the forward pass: the value of the sum is x, its derivative is GATE.
    x = GATE * x + ops.stop_gradient(x)
    return keras.Model(inputs, layers.Dense(num_classes, trainable=False, name="head")(x), name="underflow_net")
