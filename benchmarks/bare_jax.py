"""The bare loop on JAX: Keras's own `train_step`, jitted, in a `fori_loop` on the device and in one on the host."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def loops(model: Any, x: Any, y: Any) -> dict[str, Callable[[Any], None]]:
    """By name: a function of rows of indices, a row per step."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    model._symbolic_build(data_batch=(x[:2], y[:2]))
    lists = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    held = [tuple([jnp.array(v.value) for v in variables] for variables in lists)]

    def step(state: Any, x: Any, y: Any, row: Any) -> Any:
        return model.train_step(state, (x[row], y[row]))[1]

    def many(state: Any, x: Any, y: Any, rows: Any) -> Any:
        return jax.lax.fori_loop(0, rows.shape[0], lambda i, state: step(state, x, y, rows[i]), state)

    one_jitted, many_jitted = jax.jit(step, donate_argnums=0), jax.jit(many, donate_argnums=0)

    def on_host(rows: Any) -> None:
        for row in rows:
            held[0] = one_jitted(held[0], x, y, row)
        jax.block_until_ready(held[0])

    def on_device(rows: Any) -> None:
        held[0] = jax.block_until_ready(many_jitted(held[0], x, y, rows))

    return {"host loop": on_host, "device loop": on_device}
