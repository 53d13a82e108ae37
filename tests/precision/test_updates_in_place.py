"""On a CPU XLA updates weights in place in a loop over steps."""

import re

import keras
import numpy as np
import pytest

from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.keras_fit import keep_skips_whole
from mpt_cli.precision.scale_rules.fixed import NoScale
from tests.backends import only_on
from tests.hlo import optimized_program


@only_on("jax")
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, keras.optimizers.SGD], ids=["adam", "sgd"])
def test_no_weight_is_copied_because_the_backward_pass_reads_it(optimizer: type) -> None:
    import jax

    layers = [keras.layers.Dense(72, "relu"), keras.layers.Dense(72, "relu"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((9,)), *layers])
    model.compile(LossScaleOptimizer(optimizer(), rule=NoScale(), on_overflow="apply"), "mse")
    x, y = np.ones((4, 9), "float32"), np.ones((4, 3), "float32")
    keep_skips_whole(model)._symbolic_build(data_batch=(x, y))
    lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
             model.metrics_variables)  # fmt: skip
    state = tuple([v.value for v in variables] for variables in lists)

    def loop(state, steps):
        return jax.lax.fori_loop(0, steps, lambda _, state: model.train_step(state, (x, y))[1], state)

    text = optimized_program(loop, state, 5)

    assert re.search(r"f32\[72,72\]", text)
    assert not re.search(r"= f32\[72,72\]\S* copy\(%get-tuple-element", text)
