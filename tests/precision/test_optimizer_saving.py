"""Saving and loading: one copy of everything, with and without the wrapper on either side."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import DynamicScale, LogMaxScale, LossScaleOptimizer

X = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
Y = X[:, :1] * 2


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01)


def trained(optimizer: keras.optimizers.Optimizer, units: int = 16, dtype: str = "mixed_float16") -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units, "relu", dtype=dtype), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


def state(optimizer: keras.optimizers.Optimizer) -> list:
    return [keras.ops.convert_to_numpy(v).tolist() for v in optimizer.variables]


def scaled(**arguments) -> LossScaleOptimizer:
    arguments = {"initial_scale": 2.0**10, "dynamic_growth_steps": 3, **arguments}
    return LossScaleOptimizer(adam(), **arguments)


RULES = {
    "dynamic": lambda: scaled(min_scale=2.0, hysteresis=2, growth_factor=4.0, count_skipped_steps=True),
    "fixed": lambda: LossScaleOptimizer(adam(), dynamic=False, initial_scale=8.0, on_overflow="apply"),
    "logmax": lambda: LossScaleOptimizer(adam(), rule=LogMaxScale(beta1=0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_training_goes_on_after_loading_exactly_as_without(name, tmp_path):
    model = trained(RULES[name]())
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.rule == model.optimizer.rule
    assert again.optimizer.on_overflow == model.optimizer.on_overflow
    assert again.optimizer.count_skipped_steps == model.optimizer.count_skipped_steps
    for each in (model, again):
        each.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert int(again.optimizer.seen_steps) == 12
    assert state(again.optimizer) == state(model.optimizer)
    for found, expected in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_plain_optimizer_s_file_is_read_under_the_wrapper(tmp_path):
    plain = trained(adam(), dtype="float32")
    plain.save_weights(tmp_path / "m.weights.h5")
    model = trained(scaled(), dtype="float32")
    before = state(model.optimizer.scale_state)
    model.load_weights(tmp_path / "m.weights.h5")
    assert state(model.optimizer.inner_optimizer) == state(plain.optimizer)
    assert state(model.optimizer.scale_state) == before


@pytest.mark.slow
def test_a_wrapped_optimizer_s_file_is_read_by_the_plain_one(tmp_path):
    model = trained(scaled())
    model.save_weights(tmp_path / "m.weights.h5")
    plain = trained(adam())
    plain.load_weights(tmp_path / "m.weights.h5")
    assert state(plain.optimizer) == state(model.optimizer.inner_optimizer)


@pytest.mark.slow
def test_a_file_of_keras_s_own_wrapper_is_read(tmp_path):
    theirs = trained(keras.optimizers.LossScaleOptimizer(adam(), initial_scale=2.0**10, dynamic_growth_steps=3))
    theirs.save_weights(tmp_path / "m.weights.h5")
    model = trained(LossScaleOptimizer(adam()))
    model.load_weights(tmp_path / "m.weights.h5")
    assert state(model.optimizer.inner_optimizer) == state(theirs.optimizer.inner_optimizer)
    assert float(model.optimizer.loss_scale) == float(theirs.optimizer.dynamic_scale.value) == 2.0**12
    assert int(model.optimizer.dynamic_counter) == int(theirs.optimizer.step_counter.value) == 2


@pytest.mark.slow
def test_the_file_holds_the_inner_state_once(tmp_path):
    sizes = []
    for optimizer in (adam(), scaled()):
        trained(optimizer, units=4000).save(tmp_path / "model.keras")
        sizes.append((tmp_path / "model.keras").stat().st_size)
    assert sizes[1] / sizes[0] < 1.05  # 1.6 and more with Keras's own


class Halving(DynamicScale):
    """A user's rule."""


def test_a_rule_of_the_user_s_is_saved_by_name_and_needs_its_class_to_load():
    class OwnRule(LogMaxScale):
        pass

    config = LossScaleOptimizer(adam(), rule=OwnRule(beta1=0.5)).get_config()
    assert LossScaleOptimizer.from_config(config, {"OwnRule": OwnRule}).rule == OwnRule(beta1=0.5)
    with pytest.raises(ValueError, match=r"Unknown scale rule 'OwnRule'\. Pass custom_objects"):
        LossScaleOptimizer.from_config(config)


def test_a_subclass_of_a_shipped_rule_is_not_saved_as_that_rule():
    config = LossScaleOptimizer(adam(), rule=Halving(2.0**10, 3)).get_config()
    assert LossScaleOptimizer.from_config(config, {"Halving": Halving}).rule == Halving(2.0**10, 3)
