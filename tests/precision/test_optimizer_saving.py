"""Saved, loaded, copied and set: one copy of everything, with and without the wrapper on either side."""

import copy
import pickle
from pathlib import Path

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import DynamicScale, LogMaxScale, LossScaleOptimizer

X = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
Y = X[:, :1] * 2


def adam(**arguments):
    return keras.optimizers.Adam(0.01, **arguments)


def trained(optimizer: keras.optimizers.Optimizer, units: int = 16, dtype: str = "mixed_float16"):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units, "relu", dtype=dtype), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


def state(part):
    return [keras.ops.convert_to_numpy(v).tolist() for v in part.variables]


def scaled(inner: keras.optimizers.Optimizer | None = None, **arguments):
    arguments = {"initial_scale": 2.0**10, "dynamic_growth_steps": 3, **arguments}
    return LossScaleOptimizer(inner or adam(), **arguments)


def dynamic():
    inner = adam(clipnorm=2.0, use_ema=True)
    numbers = {"min_scale": 2.0, "hysteresis": 2, "growth_factor": 4.0}
    return scaled(inner, initial_scale=2.0**20, **numbers)  # which overflows in its first steps


def logmax():
    return LossScaleOptimizer(adam(), rule=LogMaxScale(beta1=0.5))


def by_file(model: keras.Model, folder: Path):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def remade(model: keras.Model):
    again = keras.models.clone_model(model)
    again.compile(LossScaleOptimizer.from_config(model.optimizer.get_config()), "mse", jit_compile=False)
    return again


def by_values(model: keras.Model, folder: Path):
    again = remade(model)
    again.optimizer.build(again.trainable_variables)
    again.set_weights(model.get_weights())
    again.optimizer.set_weights(model.optimizer.variables)
    return again


def by_checkpoint(model: keras.Model, folder: Path):
    """Read by a dynamic one that is built, and by another before."""
    from tensorflow.train import Checkpoint

    path, again = Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "saved")), remade(model)
    if isinstance(model.optimizer.rule, DynamicScale):
        again.optimizer.build(again.trainable_variables)
    status = Checkpoint(model=again, optimizer=again.optimizer).restore(path)
    again.optimizer.build(again.trainable_variables)
    status.assert_consumed()
    return again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "handed_on"),
    [
        (dynamic, by_file),
        (logmax, by_file),
        (dynamic, by_values),
        pytest.param(dynamic, by_checkpoint, marks=only_on("tensorflow")),
        pytest.param(logmax, by_checkpoint, marks=only_on("tensorflow")),
    ],
)
def test_training_goes_on_exactly_as_without(made, handed_on, tmp_path):
    model = trained(made())
    again = handed_on(model, tmp_path)
    assert again.optimizer.rule == model.optimizer.rule
    for each in (model, again):
        each.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    assert state(again.optimizer) == state(model.optimizer) and state(again) == state(model)
    assert int(again.optimizer.seen_steps) == 12
    assert int(again.optimizer.applied_steps) > 0 and (int(again.optimizer.skipped_steps) > 0) == (made is dynamic)


@pytest.mark.slow
def test_a_plain_optimizer_s_file_is_read_under_the_wrapper(tmp_path):
    plain = trained(adam(), dtype="float32")
    plain.save_weights(tmp_path / "m.weights.h5")
    model = trained(scaled(), dtype="float32")
    before = state(model.optimizer.scale_state)
    model.load_weights(tmp_path / "m.weights.h5")
    assert state(model.optimizer.inner_optimizer) == state(plain.optimizer)
    assert state(model.optimizer.scale_state) == before


def test_the_config_of_version_0_1_is_read_where_it_skips():
    config = scaled().get_config()
    assert (
        LossScaleOptimizer.from_config({**config, "on_overflow": "skip", "count_skipped_steps": False}).rule
        == scaled().rule
    )
    with pytest.raises(ValueError, match="does not support arguments: `on_overflow`"):
        LossScaleOptimizer.from_config({**config, "on_overflow": "apply"})


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


def test_a_rule_of_the_user_s_is_saved_by_name_and_needs_its_class_to_load():
    """Also where it is a subclass of one of ours."""

    class OwnRule(DynamicScale):
        pass

    config = scaled(initial_scale=None, dynamic_growth_steps=None, rule=OwnRule(2.0**10, 3)).get_config()
    assert LossScaleOptimizer.from_config(config, {"OwnRule": OwnRule}).rule == OwnRule(2.0**10, 3)
    with pytest.raises(ValueError, match=r"Unknown scale rule 'OwnRule'\. Pass custom_objects"):
        LossScaleOptimizer.from_config(config)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_it_is_copied_by_its_configuration_and_refused_once_it_is_built(copied):
    optimizer = dynamic()
    again = copied(optimizer)
    assert again is not optimizer and again.inner_optimizer is not optimizer.inner_optimizer
    assert again.get_config() == optimizer.get_config() and again.rule == optimizer.rule
    optimizer.build([keras.Variable(1.0)])
    with pytest.raises(TypeError, match=r"copied once it is built\. Make another one by `from_config\("):
        copied(optimizer)


def test_set_weights_before_it_is_built_or_of_another_number_is_an_error():
    optimizer = scaled()
    with pytest.raises(ValueError, match="has not yet been built"):
        optimizer.set_weights([])
    optimizer.build([keras.Variable(1.0)])
    before = state(optimizer)
    with pytest.raises(ValueError, match=r"`weights` must be one for each of the 8 `variables`, or of the 4 of the"):
        optimizer.set_weights(optimizer.variables[:-1])
    assert state(optimizer) == before
