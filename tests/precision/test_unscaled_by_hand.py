"""Who divides gradients by hand can say so: then nothing depends on what was told while a function was traced."""

from contextlib import nullcontext

import keras
import pytest
from backends import BACKEND, compiled, only_on

from mpt_cli.precision import LossScaleOptimizer

MODE = "xla" if BACKEND == "jax" else "graph"


def fixed():
    return LossScaleOptimizer(keras.optimizers.SGD(0.5), dynamic=False, initial_scale=8.0)


def test_said_by_hand_it_is_divided_once_whatever_was_told_between():
    """Weight 4, rate 0.5: the gradient of w*w/4 is w/2, and each step leaves 3/4 of the weight."""
    optimizer, weight = fixed(), keras.Variable(4.0)
    optimizer.build([weight])
    words = r"are both called: `apply` goes by the latest.*Say which by `apply\(unscaled="
    # told only while this is traced: the gradient of (w*w/4) * 8, and divided by 8
    unscaled = compiled(lambda w: optimizer.get_unscaled_gradients([w / 2 * optimizer.get_scaled_loss(1.0)])[0], MODE)
    found = []
    for step in range(4):
        gradient = unscaled(weight.value)
        if step % 2:  # of another loss, whose gradients are applied another time
            with pytest.warns(UserWarning, match=words) if step == 1 else nullcontext():
                optimizer.scale_loss(1.0)
        optimizer.apply_gradients([(gradient, weight)], unscaled=True)
        found.append(float(weight.value))
    assert found == [3.0, 2.25, 1.6875, 1.265625]
    optimizer.apply([keras.ops.convert_to_tensor(8.0)], [weight], unscaled=False)
    assert float(weight.value) == 1.265625 - 0.5
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (5, 0)


@only_on("jax")
def test_a_pure_step_is_told_by_its_argument():
    optimizer, weight = fixed(), keras.Variable(4.0)
    optimizer.build([weight])
    values = [variable.value for variable in optimizer.variables]
    (new,), _ = optimizer.stateless_apply(values, [keras.ops.ones(())], [weight.value], unscaled=True)
    assert float(new) == 3.5
