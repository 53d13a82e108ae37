"""Callbacks as a user writes them, and a small model and data for runs with them."""

from typing import Any

import keras
import numpy as np

CALLS: list[tuple[str, Any, dict[str, float]]] = []  # of every hook: its name, where, its logs


def load() -> Any:
    """40 examples of three classes to train on and 12 to validate with."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(52, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(1).astype("int32")
    return (x[:40], y[:40]), (x[40:], y[40:])


def build() -> keras.Model:
    """The same weights each time."""
    initial = keras.initializers.GlorotUniform(7)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "relu", kernel_initializer=initial),
            keras.layers.Dense(3, kernel_initializer=initial),
        ]
    )


def _recording(name: str) -> Any:
    def hook(self: Any, *where: Any, logs: Any = None):
        *numbers, logs = where if logs is None else (*where, logs)
        CALLS.append((name, numbers[0] if numbers else None, dict(logs)))

    return hook


class Recording(keras.callbacks.Callback):
    """Writes down each hook."""


for each in ("train", "epoch", "train_batch", "test", "test_batch"):
    for end in ("begin", "end"):
        setattr(Recording, f"on_{each}_{end}", _recording(f"on_{each}_{end}"))


class Halving(keras.callbacks.Callback):
    """Halves the learning rate after every fourth batch, and keeps count."""

    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None):
        self.batches += 1
        if self.batches % 4 == 0:
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) / 2


class Noise(keras.callbacks.Callback):
    """Changes the weights at the beginning of each epoch, and what it adds itself."""

    def __init__(self):
        super().__init__()
        self.size = np.float32([0.5])

    def on_epoch_begin(self, epoch: int, logs: Any = None):
        first = self.model.trainable_variables[0]
        first.assign(first + self.size[0])
        self.size = self.size * np.float32(0.5)


class Looking(keras.callbacks.Callback):
    """Evaluates and predicts with the model in the middle of its training."""

    def on_train_batch_end(self, batch: int, logs: Any = None):
        outputs = self.model.predict(load()[1][0], verbose=0)
        CALLS.append(("predict", batch, {"size": float(abs(outputs).sum())}))

    def on_epoch_end(self, epoch: int, logs: Any = None):
        CALLS.append(("evaluate", epoch, self.model.evaluate(*load()[1], verbose=0, return_dict=True)))


class StopsAt(keras.callbacks.Callback):
    """Ends the run after a batch."""

    def __init__(self, batch: int):
        super().__init__()
        self.at = batch

    def on_train_batch_end(self, batch: int, logs: Any = None):
        if batch == self.at:
            self.model.stop_training = True


class Broken(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None):
        raise ValueError("no such cell")


class Unstorable(keras.callbacks.Callback):
    """Holds a metric of Keras's."""

    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean()

    def on_epoch_end(self, epoch: int, logs: Any = None):
        self.mean.update_state(logs["loss"])


class SaysItsState(Unstorable):
    """The same, storable."""

    def on_epoch_end(self, epoch: int, logs: Any = None):
        super().on_epoch_end(epoch, logs)
        logs["mean_loss"] = float(self.mean.result())

    def get_state(self) -> Any:
        return [v.numpy() for v in self.mean.variables]

    def set_state(self, state: Any):
        for variable, value in zip(self.mean.variables, state, strict=True):
            variable.assign(value)


def slower(epoch: int, rate: float) -> float:
    """A schedule of LearningRateScheduler."""
    return rate * 0.5


def no_callback() -> int:
    return 3
