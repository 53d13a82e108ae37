"""A model of as many variables as one likes, for `model.builder`."""

from typing import Any

import keras
from keras import ops

WIDTH = 16


@keras.saving.register_keras_serializable("growing")
class Averaged(keras.layers.Layer):  # type: ignore[misc]
    """x times the mean of `count` vectors: nearly all the cost is in the vectors being variables of their own."""

    def __init__(self, count: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count

    def build(self, input_shape: Any) -> None:
        self.vectors = [self.add_weight((WIDTH,), name=f"vector_{index}") for index in range(self.count)]

    def call(self, x: Any) -> Any:
        vectors = ops.reshape(ops.concatenate([ops.convert_to_tensor(v) for v in self.vectors]), (self.count, WIDTH))
        return x * ops.mean(vectors, axis=0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "count": self.count}


def many_variables(input_shape: tuple[int, ...], num_classes: int, count: int) -> keras.Model:
    """A model with `count` trainable variables, two of which are the head's."""
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="head")(Averaged(count - 2)(inputs)))
