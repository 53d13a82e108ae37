"""`let_through_after`: after so many skips in a row what is not finite is applied, as by optax's apply_if_finite."""

import keras
import numpy as np
import pytest
from backends import BACKEND, compiled

from mpt_cli import Recorder
from mpt_cli.precision import DynamicScale, FixedScale, LossScaleOptimizer
from mpt_cli.precision.scale_state import STREAK

# G good, B bad; with 2 skips in a row the third bad one is let through, and so is each after it until a good one
PATTERN = "GBBBBGBBB"
APPLIED = [1, 4, 5, 6, 9]
RATE = 0.125


def optimizer_of(rule) -> LossScaleOptimizer:
    """An infinite gradient is clipped to 1 where it is applied, so that every applied step takes RATE off."""
    return LossScaleOptimizer(keras.optimizers.SGD(RATE, clipvalue=1.0), rule=rule)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("whole", [True, False])
def test_each_step_is_what_the_rule_says_by_hand(mode, whole):
    rule = DynamicScale(64.0, growth_steps=100, let_through_after=2) if whole else FixedScale(4.0, let_through_after=2)
    optimizer, weight = optimizer_of(rule), keras.Variable(0.5)
    optimizer.build([weight])
    optimizer.scale_loss(1.0)
    step = stepping(optimizer, weight, mode)
    applied, scales = [], []
    for number, kind in enumerate(PATTERN, 1):
        before = float(weight.value)
        step(np.float32("inf") if kind == "B" else np.float32(float(optimizer.loss_scale)))
        if float(weight.value) != before:
            assert float(weight.value) == before - RATE
            applied.append(number)
        scales.append(float(optimizer.loss_scale))
    assert applied == APPLIED
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps), int(optimizer.consecutive_skips)) == (5, 4, 0)
    # the scale falls at each bad step, also where it is let through
    assert scales == ([64, 32, 16, 8, 4, 4, 2, 1, 0.5] if whole else [4.0] * 9)


def stepping(optimizer, weight, mode):
    if mode == "eager":
        return lambda gradient: optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    if BACKEND == "tensorflow":
        return compiled(lambda gradient: optimizer.apply([gradient], [weight]), "graph")
    pure = compiled(optimizer.stateless_apply, "xla")

    def step(gradient):
        own = [variable.value for variable in optimizer.variables]
        (new,), state = pure(own, [keras.ops.convert_to_tensor(gradient)], [weight.value])
        for variable, value in zip([weight, *optimizer.variables], [new, *state], strict=True):
            variable.assign(value)

    return step


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_a_recorded_fit_tells_them_from_skips(tmp_path, steps):
    """The gradient of the mean output by the weight is the input: 3e38 times the scale is beyond float32."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer_of(FixedScale(4.0, let_through_after=2)), lambda y, outputs: keras.ops.mean(outputs),
                  steps_per_execution=steps, jit_compile=BACKEND == "jax")  # fmt: skip
    model.set_weights([np.full((1, 1), 0.5, "float32")])
    x = np.array([[3e38 if kind == "B" else 1.0] for kind in PATTERN], "float32")
    recorder = Recorder(tmp_path / "run", on_unhealthy="go_on", settings={"logger.console": "quiet"})
    model.fit(x, np.zeros((9, 1)), batch_size=1, shuffle=False, verbose=0, callbacks=[recorder])
    run = recorder.run
    assert float(model.get_weights()[0][0, 0]) == 0.5 - 5 * RATE
    assert (run.summary["applied_steps"], run.summary["skipped_steps"]) == (5, 4)
    assert [(event["step"], event["kind"]) for event in run.events] == [
        (2, "overflow"), (3, "overflow"), (4, "let_through"), (5, "let_through"), (7, "overflow"), (8, "overflow"),
        (9, "let_through")]  # fmt: skip
    assert all(event["inf"] == 1 and event["cause"] == "backward" for event in run.events)
    said = (run.path / "console.log").read_text()
    assert "3 overflows were applied all the same, after as many skipped in a row as loss_scale.let_through" in said


def test_it_is_an_option_that_is_saved_and_checked():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(), dynamic=False, initial_scale=2.0, let_through_after=3)
    again = LossScaleOptimizer.from_config(optimizer.get_config())
    assert again.rule == FixedScale(2.0, let_through_after=3)
    moving = LossScaleOptimizer(keras.optimizers.SGD(), let_through_after=7)
    assert LossScaleOptimizer.from_config(moving.get_config()).rule == DynamicScale(let_through_after=7)
    weight = keras.Variable(1.0)
    plain = LossScaleOptimizer(keras.optimizers.SGD())
    plain.build([weight])
    assert STREAK not in plain.scale_state.by_name and "let_through_after" not in plain.get_config()
    with pytest.raises(ValueError, match="`let_through_after` must be a whole number of at least 1"):
        DynamicScale(let_through_after=0)
    with pytest.raises(TypeError, match="`let_through_after` must be a whole number"):
        LossScaleOptimizer(keras.optimizers.SGD(), let_through_after="3")


def test_consecutive_hysteresis_begins_anew_at_a_finite_step():
    """DeepSpeed: with 2 of them, single overflows cost nothing; without, the second since the last growth does."""
    for consecutive, expected in ((True, [8, 8, 8, 8, 8, 4]), (False, [8, 8, 4, 4, 2, 1])):
        rule = DynamicScale(8.0, growth_steps=100, hysteresis=2, consecutive_hysteresis=consecutive)
        optimizer, weight = LossScaleOptimizer(keras.optimizers.SGD(0.0), rule=rule), keras.Variable(1.0)
        scales = []
        for kind in "BGBGBB":
            optimizer.scale_loss(1.0)
            optimizer.apply([keras.ops.convert_to_tensor(float("inf") if kind == "B" else 1.0)], [weight])
            scales.append(float(optimizer.loss_scale))
        assert scales == expected
        assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (2, 4)
