"""On a CPU XLA updates weights in place in a loop over steps on JAX."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.scale_rules import NoScale
from mpt_cli.precision.train_step import keep_skips_whole
from tests.backends import only_on

X, Y = np.ones((4, 9), "float32"), np.ones((4, 3), "float32")


@pytest.mark.slow
@only_on("jax")
def test_no_weight_is_copied_because_the_backward_pass_reads_it():
    import jax

    layers = [keras.layers.Dense(72, "relu"), keras.layers.Dense(72, "relu"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((9,)), *layers])
    model.compile(LossScaleOptimizer(keras.optimizers.Adam(), rule=NoScale()), "mse")
    keep_skips_whole(model)._symbolic_build(data_batch=(X, Y))
    lists = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([v.value for v in variables] for variables in lists)
    loop = jax.jit(lambda state: jax.lax.fori_loop(0, 5, lambda _, now: model.train_step(now, (X, Y))[1], state))

    lines = str(loop.lower(state).compile().as_text()).splitlines()

    assert any("= f32[72,72]" in line for line in lines)
    assert not [line for line in lines if "= f32[72,72]" in line and " copy(%get-tuple-element" in line]
