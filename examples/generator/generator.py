"""A generator that never ends, cut into epochs by steps_per_epoch, with its own optimizer and schedule."""

import keras
import numpy as np
from keras import layers, ops


def waves(batch_size, seed):
    rng = np.random.default_rng(seed)
    while True:
        phase = rng.random((batch_size, 1)) * 2 * np.pi
        points = np.sin(phase + np.linspace(0, 3, 17)).astype("float32")
        yield points[:, :16, None], points[:, 16:]


def load_waves(batch_size=16):
    return waves(batch_size, seed=1), waves(batch_size, seed=2)


def build_model():
    return keras.Sequential([keras.Input((16, 1)), layers.Conv1D(8, 3, activation="relu"), layers.Flatten(),
                             layers.Dense(1)])


@keras.saving.register_keras_serializable("generator")
class SignMomentum(keras.optimizers.Optimizer):
    """Steps of one size in the direction of the momentum's sign."""

    def __init__(self, learning_rate=0.001, momentum=0.9, name="sign_momentum", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.averages = [self.add_variable_from_reference(v, "average") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        average = self.averages[self._get_variable_index(variable)]
        self.assign(average, self.momentum * average + (1 - self.momentum) * gradient)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * ops.sign(average))

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}
