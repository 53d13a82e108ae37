"""The LogMax rule: the written formula in Python numbers, and what it makes of a run."""

import math

import keras
import numpy as np
import pytest
from backends import MODES, compiled

from mpt_cli.precision import LogMaxScale, LossScaleOptimizer
from mpt_cli.precision.gradient_check import GradientMeasurement, measure

RULE = LogMaxScale(beta1=0.75, beta2=0.875, deviations=2.0, log_max=15.0, min_scale=2.0**-4, max_scale=2.0**20)


def by_hand(rule: LogMaxScale, exponents: list[float | None]):
    """Scales after each step, in float64; None stands for an overflow."""
    fast = slow = square = 0.0
    scales = []
    for steps, exponent in enumerate(exponents, start=1):
        x = rule.log_max if exponent is None else exponent
        fast = rule.beta1 * fast + (1 - rule.beta1) * x
        slow = rule.beta2 * slow + (1 - rule.beta2) * x
        square = rule.beta2 * square + (1 - rule.beta2) * x**2
        weight = 1 - rule.beta2**steps
        deviation = math.sqrt(max(square / weight - (slow / weight) ** 2, 0.0))
        cutoff = fast / (1 - rule.beta1**steps) + rule.deviations * deviation
        scales.append(min(max(2.0 ** math.floor(rule.log_max - cutoff), rule.min_scale), rule.max_scale))
    return scales


def steps(rule: LogMaxScale, exponents: list[float | None], mode: str = "eager"):
    state = {name: keras.ops.convert_to_tensor(value) for name, value in rule.initial().items()}
    advance = compiled(lambda state, finite, largest: rule.advance(state, GradientMeasurement(finite, largest)), mode)
    rows = []
    for x in exponents:
        largest = np.float32("inf") if x is None else np.float32(2.0**x * float(state["scale"]))
        state = advance(state, keras.ops.convert_to_tensor(x is not None), keras.ops.convert_to_tensor(largest))
        rows.append({name: float(value) for name, value in state.items()})
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_scales_are_those_of_the_written_formula(mode):
    exponents = [*np.random.default_rng(0).normal(-3.3, 1.7, 40).tolist(), None, None, -2.9, -30.2, -28.7, 3.3, None]
    assert [row["scale"] for row in steps(RULE, exponents, mode)] == by_hand(RULE, exponents)
    assert len(set(by_hand(RULE, exponents))) > 5


def test_a_step_of_zero_gradients_changes_nothing_but_the_counter():
    rows = steps(RULE, [-3.3, -2.1])
    state = {name: keras.ops.convert_to_tensor(np.float32(value)) for name, value in rows[-1].items()}
    state["counter"] = keras.ops.convert_to_tensor(np.int32(4))
    zero = keras.ops.zeros(())
    after = RULE.advance(state, GradientMeasurement(keras.ops.convert_to_tensor(True), zero))
    assert {name: float(value) for name, value in after.items()} == {**rows[-1], "counter": 5.0}


def test_the_optimizer_scales_by_the_largest_gradient_and_statistics_are_none():
    statistics = keras.Variable(0.0)
    statistics.overwrite_with_gradient = True
    variables = [keras.Variable([1.0, 1.0]), statistics, keras.Variable(1.0)]
    grads = [keras.ops.convert_to_tensor(np.float32([1.0, -5.0])), keras.ops.ones(()) * 80.0, None]
    assert float(measure(grads, variables).largest) == 5.0
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.0), rule=LogMaxScale())
    assert float(optimizer.measure(grads, variables).largest) == 5.0
    optimizer.build(variables)
    assert float(optimizer.measure(grads, variables, unscaled=True).largest) == 5.0 * 2.0**15
    optimizer.scale_loss(1.0)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply(grads, variables)
    assert (optimizer.dynamic, optimizer.dynamic_growth_steps) == (True, None)
    assert (float(optimizer.loss_scale), int(optimizer.applied_steps)) == (2.0**28, 1)  # floor(16 - log2(5 / 2**15))
    grads[1] = keras.ops.ones(()) * np.inf
    measured = measure(grads, variables)  # the step is skipped without its being large
    assert not bool(measured.finite) and float(measured.largest) == 5.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"beta1": 1.0}, "`beta1` must be a number above 0 and below 1"),
        ({"beta2": 0.0}, "`beta2` must be a number above 0"),
        ({"log_max": 200.0}, "`log_max` must be a number above 0 and at most 127"),
        ({"deviations": float("nan")}, "`deviations` must be a number above 0"),
        ({"initial_scale": 0.5, "min_scale": 1.0}, "must lie between"),
    ],
)
def test_logmax_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        LogMaxScale(**arguments)
