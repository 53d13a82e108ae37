"""Properties of loss scaling over random sequences and settings."""

import dataclasses

import keras
import numpy as np
import pytest
from backends import BACKEND, MODE_NAMES, MODES, compiled
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale, LossScaleOptimizer, ScaleRule
from mpt_cli.precision.finite import Measured
from mpt_cli.precision.scale_state import TALLY, next_values

QUICK = settings(max_examples=60, deadline=None)
FINITE = st.lists(st.booleans(), max_size=60)
POWERS = st.integers(-6, 6).map(lambda k: 2.0**k)


@st.composite
def dynamic_scales(draw) -> DynamicScale:
    low, initial, high = sorted(draw(st.tuples(POWERS, POWERS, POWERS)))
    return DynamicScale(
        initial, draw(st.integers(1, 5)), draw(st.sampled_from([1.5, 2.0, 4.0])),
        draw(st.sampled_from([0.25, 0.5, 0.75])), low, high, draw(st.integers(1, 3)),
    )  # fmt: skip


def model_of(rule: DynamicScale, sequence: list[bool]) -> list[tuple]:
    """The rule as NUMERICS writes it, in Python numbers: (scale, counter) after each step."""
    scale, counter, left, rows = np.float32(rule.initial_scale), 0, rule.hysteresis, []
    for finite in sequence:
        if finite:
            counter += 1
            if counter >= rule.growth_steps:
                scale, counter = min(scale * np.float32(rule.growth_factor), np.float32(rule.max_scale)), 0
                left = rule.hysteresis
        else:
            counter, left = 0, left - 1
            if left <= 0:
                scale = max(scale * np.float32(rule.backoff_factor), np.float32(rule.min_scale))
        rows.append((float(scale), counter))
    return rows


def run(rule: ScaleRule, sequence: list[bool], largest: list[float] | None = None) -> list[dict]:
    """State after each step, as numbers, computed by the very functions that the optimizer compiles."""
    state = {name: keras.ops.convert_to_tensor(value) for name, value in rule.initial().items()}
    state["tally"] = keras.ops.zeros(len(TALLY), "int32")
    rows = []
    for finite, size in zip(sequence, largest or [1.0] * len(sequence), strict=True):
        flag, size = keras.ops.convert_to_tensor(finite), keras.ops.convert_to_tensor(np.float32(size))
        state = next_values(rule, state, Measured(flag, size), flag)
        rows.append({name: keras.ops.convert_to_numpy(value) for name, value in state.items()})
    return rows


def tally(row: dict) -> dict[str, int]:
    return dict(zip(TALLY, row["tally"].tolist(), strict=True))


@pytest.mark.slow
@QUICK
@given(dynamic_scales(), FINITE)
def test_scale_and_counter_are_those_of_the_written_rule(rule, sequence):
    found = [(float(row["scale"]), int(row["counter"])) for row in run(rule, sequence)]
    assert found == model_of(rule, sequence)


@pytest.mark.slow
@QUICK
@given(st.one_of(dynamic_scales(), st.builds(FixedScale, POWERS)), FINITE)
def test_every_step_seen_is_applied_or_skipped(rule, sequence):
    for steps, row in enumerate(run(rule, sequence), start=1):
        count = tally(row)
        assert count["seen"] == steps == count["applied"] + count["skipped"]
        assert count["applied"] == sum(sequence[:steps])
        run_of_skips = next((k for k, finite in enumerate(reversed(sequence[:steps])) if finite), steps)
        assert count["consecutive_skips"] == run_of_skips


@pytest.mark.slow
@QUICK
@given(dynamic_scales(), FINITE)
def test_the_scale_stays_within_its_bounds_and_follows_from_growths_and_backoffs(rule, sequence):
    rule = dataclasses.replace(rule, growth_factor=2.0, backoff_factor=0.5)
    unbounded = True
    for row in run(rule, sequence):
        scale, count = float(row["scale"]), tally(row)
        assert rule.min_scale <= scale <= rule.max_scale
        unbounded = unbounded and rule.min_scale < scale < rule.max_scale
        if unbounded:
            assert scale == rule.initial_scale * 2.0 ** (count["growths"] - count["backoffs"])


@pytest.mark.slow
@QUICK
@given(POWERS, FINITE)
def test_a_fixed_scale_never_moves(scale, sequence):
    for row in run(FixedScale(scale), sequence):
        assert (float(row["scale"]), tally(row)["growths"], tally(row)["backoffs"]) == (scale, 0, 0)


LARGEST = float(np.finfo("float32").max)


@pytest.mark.slow
@QUICK
@example([(True, 2.0**-126)])
@example([(True, 2.0**-149), (True, 0.0), (True, 2.0**-126), (True, LARGEST), (False, 0.0)])
@given(st.lists(st.tuples(st.booleans(), st.floats(0, LARGEST, width=32)), max_size=60))
def test_logmax_is_always_a_power_of_two_within_its_bounds(steps):
    rule = LogMaxScale()
    for row in run(rule, [finite for finite, _ in steps], [size for _, size in steps]):
        scale = float(row["scale"])
        assert rule.min_scale <= scale <= rule.max_scale
        assert np.frexp(scale)[0] == 0.5
        assert all(np.isfinite(row[name]) for name in ("fast", "slow", "square"))


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01, global_clipnorm=1.0),
}
X = np.random.default_rng(0).normal(size=(20, 8, 3)).astype("float32")


def start() -> keras.Variable:
    return keras.Variable(np.zeros((3, 1), "float32"))


def looped(optimizer: LossScaleOptimizer, weight: keras.Variable, mode: str):
    """(x, addition to the gradient) -> state after one step of least squares on a scaled loss."""

    def slope(x, value, scale):  # by hand, so that one program serves both backends
        return keras.ops.matmul(keras.ops.transpose(x), keras.ops.matmul(x, value) - 1.0) * scale

    if BACKEND == "tensorflow":
        import tensorflow as tf

        step = compiled(lambda x, bad: optimizer.apply([slope(x, weight, optimizer.loss_scale) + bad], [weight]), mode)
        return lambda x, bad: step(tf.constant(x), tf.constant(np.float32(bad)))

    def pure(own, value, x, bad):
        scale = own[0]
        return optimizer.stateless_apply(own, [slope(x, value, scale) + bad], [value])

    program = compiled(pure, mode)

    def step(x, bad):
        values, own = program([v.value for v in optimizer.variables], weight.value, x, np.float32(bad))
        for variable, new in zip([weight, *optimizer.variables], [*values, *own], strict=True):
            variable.assign(new)

    return step


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "sgd" else pytest.mark.slow) for n in OPTIMIZERS])
def test_two_power_of_two_scales_give_bit_identical_weights(name, mode):
    weights = []
    for scale in (1.0, 2.0**12):
        optimizer, weight = LossScaleOptimizer(OPTIMIZERS[name](), initial_scale=scale), start()
        optimizer.build([weight])
        optimizer.scale_loss(1.0)
        step = looped(optimizer, weight, mode)
        for x in X:
            step(x, 0.0)
        assert int(optimizer.applied_steps) == 20
        weights.append(keras.ops.convert_to_numpy(weight))
    np.testing.assert_array_equal(*weights)
    assert np.abs(weights[0]).max() > 0.01


@pytest.mark.slow
def test_every_mode_of_execution_gives_the_same_scales():
    bad = np.where(np.random.default_rng(1).random(20) < 0.4, np.float32("nan"), 0.0)
    sequences = []
    for mode in MODE_NAMES:
        optimizer = LossScaleOptimizer(OPTIMIZERS["adam"](), initial_scale=16.0, dynamic_growth_steps=2, hysteresis=2)
        weight = start()
        optimizer.build([weight])
        optimizer.scale_loss(1.0)
        step = looped(optimizer, weight, mode)
        scales = []
        for x, addition in zip(X, bad, strict=True):
            step(x, addition)
            scales.append(float(optimizer.loss_scale))
        sequences.append(scales)
        assert int(optimizer.skipped_steps) == np.isnan(bad).sum()
    assert all(sequence == sequences[0] for sequence in sequences)
    assert len(set(sequences[0])) > 3
