"""What can be read of a `LossScaleOptimizer`, and where a write goes."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import LogMaxScale, LossScaleOptimizer


def stepped(optimizer: LossScaleOptimizer, *gradients: float) -> keras.Variable:
    variable = keras.Variable(1.0)
    optimizer.build([variable])
    optimizer.scale_loss(1.0)
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(np.float32(gradient))], [variable])
    return variable


def test_logmax_is_dynamic_and_does_not_grow_by_steps():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.25), rule=LogMaxScale())
    assert (optimizer.dynamic, optimizer.initial_scale, optimizer.dynamic_growth_steps) == (True, 2.0**15, None)
    assert (float(optimizer.loss_scale), int(optimizer.dynamic_counter)) == (2.0**15, 0)


def test_the_loss_scale_is_a_float32_scalar_before_and_after_build():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.25))
    for _ in range(2):
        scale = keras.ops.convert_to_tensor(optimizer.loss_scale)
        assert (keras.backend.standardize_dtype(scale.dtype), tuple(scale.shape)) == ("float32", ())
        stepped(optimizer)


def test_a_value_read_earlier_does_not_move_with_the_optimizer():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.25))
    stepped(optimizer)
    before = optimizer.loss_scale
    optimizer.apply([keras.ops.convert_to_tensor(np.float32("inf"))])
    assert (float(before), float(optimizer.loss_scale)) == (2.0**15, 2.0**14)


def test_growth_steps_set_later_take_effect():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.0), initial_scale=4.0, dynamic_growth_steps=100)
    optimizer.dynamic_growth_steps = 50
    variable = stepped(optimizer, 0.0, 0.0)
    optimizer.dynamic_growth_steps = 2
    optimizer.apply([keras.ops.zeros(())], [variable])
    assert (float(optimizer.loss_scale), optimizer.dynamic_growth_steps, optimizer.rule.growth_steps) == (8.0, 2, 2)


@pytest.mark.parametrize("value", [0, True])
def test_growth_steps_are_checked_when_set(value):
    with pytest.raises((ValueError, TypeError), match="`dynamic_growth_steps` must be a whole number"):
        LossScaleOptimizer(keras.optimizers.SGD(0.0)).dynamic_growth_steps = value


def test_growth_steps_of_a_fixed_scale_cannot_be_set():
    with pytest.raises(ValueError, match="does not grow by steps"):
        LossScaleOptimizer(keras.optimizers.SGD(0.0), dynamic=False, initial_scale=2.0).dynamic_growth_steps = 3


def test_learning_rate_and_lr_read_and_write_the_inner_one():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5))
    optimizer.learning_rate = 0.25
    assert float(optimizer.inner_optimizer.learning_rate) == float(optimizer.lr) == 0.25
    optimizer.lr = 0.125
    assert float(optimizer.inner_optimizer.learning_rate) == float(optimizer.learning_rate) == 0.125


def test_every_public_attribute_of_the_inner_optimizer_reads_through():
    inner = keras.optimizers.AdamW(0.25, weight_decay=0.125, beta_1=0.75, clipnorm=3.0, use_ema=True, ema_momentum=0.5)
    optimizer = LossScaleOptimizer(inner)
    stepped(optimizer)
    own = {"name", "loss_scale_factor"}  # the wrapper's own, and one that stays None
    for name in sorted(n for n in vars(inner) if not n.startswith("_") and n not in own):
        assert getattr(optimizer, name) is getattr(inner, name), name
    found = (optimizer.beta_1, optimizer.weight_decay, optimizer.clipnorm, optimizer.ema_momentum)
    assert found == (0.75, 0.125, 3.0, 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("beta_1", 0.7), ("clipnorm", 2.0)],
)
def test_a_write_reaches_the_inner_optimizer(name, value):
    optimizer = LossScaleOptimizer(keras.optimizers.Adam(0.25))
    setattr(optimizer, name, value)
    assert getattr(optimizer.inner_optimizer, name) == getattr(optimizer, name) == value


def test_a_write_to_a_name_nobody_has_raises():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.25))
    with pytest.raises(AttributeError, match="Neither LossScaleOptimizer nor its inner SGD has an attribute 'beta_1'"):
        optimizer.beta_1 = 0.7
    with pytest.raises(AttributeError, match="beta_1"):
        _ = optimizer.beta_1


@pytest.mark.parametrize("name", ["loss_scale", "dynamic", "iterations", "applied_steps", "rule"])
def test_what_only_the_optimizer_may_change_cannot_be_set(name):
    with pytest.raises(AttributeError):
        setattr(LossScaleOptimizer(keras.optimizers.SGD(0.25)), name, 1)


def test_an_inner_loss_scale_factor_set_later_would_divide_twice_and_is_refused():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.25))
    with pytest.raises(ValueError, match="`loss_scale_factor` can't be set"):
        optimizer.loss_scale_factor = 8.0
    assert optimizer.loss_scale_factor is None


def test_exclude_from_weight_decay_reaches_the_inner_optimizer():
    kernel, bias = keras.Variable([1.0], name="kernel"), keras.Variable([1.0], name="bias")
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5, weight_decay=0.5), initial_scale=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.scale_loss(1.0)
    optimizer.apply([keras.ops.zeros((1,)), keras.ops.zeros((1,))], [kernel, bias])
    assert (kernel.numpy()[0], bias.numpy()[0]) == (0.75, 1.0)


def test_set_weights_reaches_the_inner_optimizer():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5, momentum=0.5))
    stepped(optimizer)
    inner = optimizer.inner_optimizer.variables
    optimizer.set_weights([np.full(v.shape, 3) for v in inner])
    assert [float(keras.ops.convert_to_numpy(v)) for v in inner] == [3.0] * len(inner)


def test_variables_are_the_scale_s_and_then_the_inner_ones():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5, momentum=0.5))
    stepped(optimizer)
    own = ["loss_scale_scale", "loss_scale_counter", "loss_scale_growth_steps", "loss_scale_hysteresis_left",
           "loss_scale_tally"]
    assert [v.name for v in optimizer.variables] == own + [v.name for v in optimizer.inner_optimizer.variables]


def test_the_tally_counts_every_kind_of_step():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.0), dynamic_growth_steps=2)
    inf = float("inf")
    stepped(optimizer, 1.0, 1.0, inf, 1.0, inf, inf)
    names = ("seen_steps", "applied_steps", "skipped_steps", "consecutive_skips", "growths", "backoffs")
    assert [int(getattr(optimizer, name)) for name in names] == [6, 3, 3, 2, 1, 3]
