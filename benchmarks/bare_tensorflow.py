"""The bare loop on TensorFlow: Keras's own `train_step` in a `tf.while_loop`, with and without XLA."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def loops(model: Any, x: Any, y: Any) -> dict[str, Callable[[Any], None]]:
    """By name: a function of rows of indices, a row per step."""
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    model._symbolic_build(data_batch=(x[:2], y[:2]))

    def train(rows: Any) -> Any:
        def body(i: Any) -> Any:
            model.train_step((tf.gather(x, rows[i]), tf.gather(y, rows[i])))
            return (i + 1,)

        tf.while_loop(lambda i: i < tf.shape(rows)[0], body, (tf.constant(0),), parallel_iterations=1)
        return model.get_metrics_result()["loss"]

    def compiled(xla: bool) -> Callable[[Any], None]:
        function = tf.function(train, jit_compile=xla, autograph=False)
        return lambda rows: function(tf.convert_to_tensor(rows)).numpy()

    return {"XLA": compiled(True), "no XLA": compiled(False)}
