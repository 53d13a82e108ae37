"""`tf.distribute.MirroredStrategy` with two replicas: a step is applied on both or on none."""

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on

from mpt_cli.precision import LogMaxScale, LossScaleOptimizer

pytestmark = only_on("tensorflow")
if BACKEND == "tensorflow":
    import tensorflow as tf
INF, NAN = np.float32("inf"), np.float32("nan")


def copies(variable):
    """The value on each replica."""
    return [value.numpy() for value in variable.value.values]


def custom_loop(strategy, optimizer_of, pairs, by_hand=False, built=True, aggregate=True):
    """One step per pair of gradients, one for each replica, of a weight that starts at 1; the weight on both."""
    with strategy.scope():
        weight = keras.Variable([1.0, 1.0])
        optimizer = optimizer_of()
        if built:
            optimizer.build([weight])
    optimizer.scale_loss(1.0)

    def on_replica(gradient):
        grads = [gradient * optimizer.loss_scale]
        grads = optimizer.get_unscaled_gradients(grads) if by_hand else grads
        optimizer.apply_gradients(zip(grads, [weight], strict=True), experimental_aggregate_gradients=aggregate)

    @tf.function
    def step(gradient):
        strategy.run(on_replica, args=(gradient,))

    for pair in pairs:
        values = [tf.constant([value, value]) for value in pair]
        step(strategy.experimental_distribute_values_from_function(lambda c, v=values: v[c.replica_id_in_sync_group]))
    return optimizer, copies(weight)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("bad", [(INF, 1.0), (1.0, INF), (NAN, NAN), (1.0, -INF)])
def test_one_bad_replica_of_two_skips_the_step_on_both(strategy, bad, by_hand):
    def optimizer():
        return LossScaleOptimizer(keras.optimizers.SGD(0.125, momentum=0.5), initial_scale=4.0)

    # built before, or by the first step inside the function
    found, weights = custom_loop(strategy, optimizer, [(1.0, 3.0), bad, bad, (1.0, 3.0)], by_hand, built=by_hand)
    # gradients are summed: 1 - 0.5, then momentum 0.5 * 0.5 + 0.5
    np.testing.assert_array_equal(weights, np.float32([[-0.25, -0.25], [-0.25, -0.25]]))
    assert (int(found.seen_steps), int(found.applied_steps), int(found.skipped_steps)) == (4, 2, 2)
    assert (float(found.loss_scale), copies(found.iterations), int(found.dynamic_counter)) == (1.0, [2, 2], 1)


@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_that_are_summed_already_are_not_summed_again(strategy, by_hand):
    def optimizer():
        return LossScaleOptimizer(keras.optimizers.SGD(0.125), initial_scale=4.0)

    found, weights = custom_loop(strategy, optimizer, [(4.0, 4.0), (INF, INF)], by_hand, aggregate=False)
    np.testing.assert_array_equal(weights, np.full((2, 2), 0.5, "float32"))
    assert (int(found.applied_steps), int(found.skipped_steps)) == (1, 1)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(("pair", "expected"), [((40000, 40000), 80000), ((2048, 1), 2049)])
def test_gradients_in_float16_are_added_up_in_float32(strategy, pair, expected, by_hand):
    """80000 is inf in float16, and 2049 is 2048; also where the gradients were divided by hand, in float16."""
    with strategy.scope():
        weight = keras.Variable([0.0])
        optimizer = LossScaleOptimizer(keras.optimizers.SGD(2.0**-4), initial_scale=1.0)
        optimizer.build([weight])

    @tf.function
    def step(gradient):
        strategy.run(lambda part: optimizer.apply([part], [weight], unscaled=by_hand), args=(gradient,))

    values = [tf.constant([value], tf.float16) for value in pair]
    step(strategy.experimental_distribute_values_from_function(lambda c: values[c.replica_id_in_sync_group]))
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (1, 0)
    np.testing.assert_array_equal(copies(weight), np.float32([[-expected * 2.0**-4]] * 2))


def test_logmax_takes_the_largest_of_both_replicas(strategy):
    def optimizer():
        return LossScaleOptimizer(keras.optimizers.SGD(0.0), rule=LogMaxScale())

    for pair in ((1.0, 12.0), (12.0, 1.0)):
        found, _ = custom_loop(strategy, optimizer, [pair])
        assert float(found.loss_scale) == 2.0**12  # floor(16 - log2(12))


def test_gradient_accumulation_is_an_error_before_training(strategy):
    def optimizer():
        return LossScaleOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))

    with pytest.raises(ValueError, match="`gradient_accumulation_steps` does not work on several replicas"):
        custom_loop(strategy, optimizer, [])
