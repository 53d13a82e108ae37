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
    with pytest.raises(ValueError, match="`dynamic_growth_steps` must be a whole number"):
        LossScaleOptimizer(keras.optimizers.SGD(0.0)).dynamic_growth_steps = value


def test_growth_steps_of_a_fixed_scale_cannot_be_set():
    with pytest.raises(ValueError, match="does not grow by steps"):
        LossScaleOptimizer(keras.optimizers.SGD(0.0), dynamic=False, initial_scale=2.0).dynamic_growth_steps = 3


def test_the_tally_counts_every_kind_of_step():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.0), dynamic_growth_steps=2)
    inf = float("inf")
    stepped(optimizer, 1.0, 1.0, inf, 1.0, inf, inf)
    names = ("seen_steps", "applied_steps", "skipped_steps", "consecutive_skips", "growths", "backoffs")
    assert [int(getattr(optimizer, name)) for name in names] == [6, 3, 3, 2, 1, 3]
