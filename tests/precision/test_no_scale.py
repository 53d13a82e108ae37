"""No scaling: the scale is 1, whatever was loaded."""

import keras
import pytest

from mpt_cli.precision import FixedScale, LossScaleOptimizer, NoScale


def test_a_scale_that_a_file_of_another_rule_held_scales_nothing():
    """The gradient of the scaled loss, unscaled, is that of the loss; after a step the scale is 1 again."""
    weight = keras.Variable(0.5)
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0), rule=NoScale())
    optimizer.build([weight])
    optimizer.scale_state.scale.assign(1024.0)
    optimizer.minimize(lambda: 3.0 * weight, [weight])
    assert weight.numpy() == 0.5 - 3.0 and float(optimizer.loss_scale) == 1.0
    optimizer.scale_state.scale.assign(1024.0)
    scaled = float(optimizer.scale_loss(3.0))
    assert [float(g) for g in optimizer.get_unscaled_gradients([keras.ops.convert_to_tensor(scaled)])] == [3.0]


def test_it_is_a_fixed_scale_of_one_and_no_other():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(), rule=NoScale())
    assert not optimizer.dynamic and optimizer.initial_scale == 1.0
    assert not optimizer.scales
    assert LossScaleOptimizer.from_config(optimizer.get_config()).rule == NoScale()
    assert LossScaleOptimizer(keras.optimizers.SGD(), rule=FixedScale(1.0)).scales
    with pytest.raises(ValueError, match="initial_scale` of NoScale must be 1"):
        NoScale(2.0)
