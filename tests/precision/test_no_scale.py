"""No scaling: the scale is 1, whatever was loaded, and a step is that of the optimizer itself."""

import keras
import numpy as np
import pytest

from mpt_cli.precision import FixedScale, LossScaleOptimizer, NoScale
from mpt_cli.settings.model_data_optimizer_keys import LossScaleSettings
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.training.loss_and_optimizer import wrap_optimizer


def wrapped(rule) -> tuple[LossScaleOptimizer, list[keras.Variable]]:
    optimizer = LossScaleOptimizer(keras.optimizers.Adam(0.1), rule=rule)
    weights = [keras.Variable([1.0, -2.0]), keras.Variable(0.5)]
    optimizer.build(weights)
    return optimizer, weights


def gradients(step: int) -> list:
    rng = np.random.default_rng(step)
    return [keras.ops.convert_to_tensor(rng.normal(size=shape).astype("float32")) for shape in ((2,), ())]


@pytest.mark.slow
def test_steps_are_those_of_the_optimizer_itself_bit_for_bit():
    optimizer, weights = wrapped(NoScale())
    plain = keras.optimizers.Adam(0.1)
    others = [keras.Variable(weight) for weight in weights]
    for step in range(20):
        optimizer.scale_loss(1.0)
        optimizer.apply([keras.ops.ones((2,)), keras.ops.ones(()) * np.inf], weights)  # is skipped all the same
        optimizer.apply(gradients(step), weights)
        plain.apply(gradients(step), others)
    for ours, theirs in zip(weights, others, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert float(optimizer.loss_scale) == 1.0
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (20, 20)


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
    optimizer, _ = wrapped(NoScale())
    assert not optimizer.dynamic and optimizer.initial_scale == 1.0
    assert not optimizer.scales
    assert LossScaleOptimizer.from_config(optimizer.get_config()).rule == NoScale()
    assert LossScaleOptimizer(keras.optimizers.SGD(), rule=FixedScale(1.0)).scales
    with pytest.raises(ValueError, match="initial_scale` of NoScale must be 1"):
        NoScale(2.0)


def test_a_run_without_scaling_has_it():
    assert wrap_optimizer(keras.optimizers.SGD(), LossScaleSettings(), Scaling()).rule == NoScale()
