"""`tf.train.Checkpoint` of model and optimizer: scale, counters and inner state come back, whenever it is restored."""

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import LogMaxScale, LossScaleOptimizer

pytestmark = only_on("tensorflow")
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
BAD_X = np.where(np.arange(40)[:, None] // 4 == 6, np.float32("inf"), X)
RULES = {
    "dynamic": {"initial_scale": 2.0**10, "dynamic_growth_steps": 3, "hysteresis": 2},
    "logmax": {"rule": LogMaxScale()},
}


def network(**arguments) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(LossScaleOptimizer(keras.optimizers.Adam(0.01), **arguments), "mse", jit_compile=False)
    return model


def fit(model: keras.Model, x: np.ndarray = X) -> keras.Model:
    model.fit(x, X[:, :2], batch_size=4, shuffle=False, verbose=0)
    return model


def state(model: keras.Model) -> list:
    return [keras.ops.convert_to_numpy(v).tolist() for v in [*model.variables, *model.optimizer.variables]]


def checkpoint(model: keras.Model):
    import tensorflow as tf

    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "built"), [("dynamic", True), ("logmax", False)])
def test_restored_before_or_after_build_it_trains_on_as_if_never_stopped(built, name, tmp_path):
    model = fit(network(**RULES[name]), BAD_X)
    assert (int(model.optimizer.applied_steps), int(model.optimizer.skipped_steps)) == (9, 1)
    path = checkpoint(model).save(str(tmp_path / "saved"))
    again = network(**RULES[name])
    if built:
        again.optimizer.build(again.trainable_variables)
    status = checkpoint(again).restore(path)
    again.optimizer.build(again.trainable_variables)
    status.assert_consumed()
    assert state(again) == state(model)
    assert state(fit(again)) == state(fit(model))
    assert int(again.optimizer.seen_steps) == 20
