"""`count_skipped_steps`: `iterations` moves in a skipped step, as in tf.keras, or stays, as in Keras 3."""

import keras
import numpy as np
import pytest
from backends import BACKEND, MODES, compiled

from mpt_cli.precision import LossScaleOptimizer, keep_skips_whole

INF = np.float32("inf")
SEQUENCE = np.float32([1.0, INF, 0.5, -INF, np.nan, 1.0, 0.25])


def halving_rate() -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.ExponentialDecay(1.0, decay_steps=1, decay_rate=0.5)


def iterations_and_rates(optimizer: LossScaleOptimizer, mode: str) -> list[tuple[int, float]]:
    """Both after each step of SEQUENCE."""
    weight = keras.Variable(0.0)
    optimizer.build([weight])
    optimizer.scale_loss(1.0)
    if BACKEND == "tensorflow" or mode == "eager":
        step = compiled(lambda gradient: optimizer.apply([gradient], [weight]), mode)
    else:
        pure = compiled(lambda own, gradient: optimizer.stateless_apply(own, [gradient], [weight.value])[1], mode)

        def step(gradient):
            for variable, value in zip(optimizer.variables, pure([v.value for v in optimizer.variables], gradient),
                                       strict=True):
                variable.assign(value)

    rows = []
    for gradient in SEQUENCE:
        step(keras.ops.convert_to_tensor(gradient))
        rows.append((int(optimizer.iterations.value), float(optimizer.learning_rate)))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("count", "iterations"), [(False, [1, 1, 2, 2, 2, 3, 4]), (True, [1, 2, 3, 4, 5, 6, 7])])
def test_iterations_and_the_schedule_follow_applied_or_all_steps(count, iterations, mode):
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(halving_rate()), count_skipped_steps=count)
    assert iterations_and_rates(optimizer, mode) == [(n, 0.5**n) for n in iterations]
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (4, 3)


@pytest.mark.slow
def test_in_fit_and_after_loading(tmp_path):
    x = np.ones((20, 2), "float32")
    x[4:12] = INF
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(halving_rate()), count_skipped_steps=True)
    model.compile(optimizer, "mse", jit_compile=False)
    for _ in range(2):
        model = keep_skips_whole(model)
        model.fit(x, np.ones((20, 1)), batch_size=4, shuffle=False, verbose=0)
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        assert model.optimizer.count_skipped_steps
    assert (int(model.optimizer.iterations.value), int(model.optimizer.applied_steps)) == (10, 6)
    assert float(model.optimizer.learning_rate) == 0.5**10


def test_accumulation_is_refused_at_once_and_when_it_is_set_later():
    accumulating = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="`count_skipped_steps` does not go with `gradient_accumulation_steps`"):
        LossScaleOptimizer(accumulating, count_skipped_steps=True)
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5), count_skipped_steps=True)
    optimizer.gradient_accumulation_steps = 2
    with pytest.raises(ValueError, match="would end a group of gradients early"):
        optimizer.build([keras.Variable(1.0)])


def test_a_moving_average_begins_with_the_weights_though_the_first_step_is_skipped():
    """As in tf.keras; Keras 3 begins it at step 0, which is over then, and would take 0 for the average so far."""
    weight = keras.Variable(4.0)
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5), dynamic=False, initial_scale=1.0, use_ema=True,
                                   ema_momentum=0.75, count_skipped_steps=True)  # fmt: skip
    optimizer.build([weight])
    optimizer.scale_loss(1.0)
    for gradient in (INF, np.float32(2.0)):
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    optimizer.finalize_variable_values([weight])
    assert float(weight.value) == 0.75 * 4 + 0.25 * 3
