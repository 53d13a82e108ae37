"""Properties of loss scaling over random sequences and settings."""

import dataclasses

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import ReferenceScale

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale, ScaleRule
from mpt_cli.precision.gradient_check import GradientMeasurement
from mpt_cli.precision.scale_state import TALLY, next_values

QUICK = settings(max_examples=25, deadline=None)
FINITE = st.lists(st.booleans(), max_size=60)
POWERS = st.integers(-6, 6).map(lambda k: 2.0**k)


@st.composite
def dynamic_scales(draw):
    low, initial, high = sorted(draw(st.tuples(POWERS, POWERS, POWERS)))
    return DynamicScale(
        initial,
        draw(st.integers(1, 5)),
        draw(st.sampled_from([1.5, 2.0, 4.0])),
        draw(st.sampled_from([0.25, 0.5, 0.75])),
        low,
        high,
        draw(st.integers(1, 3)),
    )


def run(rule: ScaleRule, sequence: list[bool], largest: list[float] | None = None):
    """State after each step, as numbers, computed by the very functions that the optimizer compiles."""
    state = {name: keras.ops.convert_to_tensor(value) for name, value in rule.initial().items()}
    state["tally"] = keras.ops.zeros(len(TALLY), "int32")
    rows = []
    for finite, size in zip(sequence, largest or [1.0] * len(sequence), strict=True):
        flag, size = keras.ops.convert_to_tensor(finite), keras.ops.convert_to_tensor(np.float32(size))
        state = next_values(rule, state, GradientMeasurement(flag, size), flag)
        rows.append({name: keras.ops.convert_to_numpy(value) for name, value in state.items()})
    return rows


@pytest.mark.slow
@QUICK
@given(st.one_of(dynamic_scales(), st.builds(FixedScale, POWERS)), FINITE)
def test_scale_and_counters_are_those_of_the_written_rule(rule, sequence):
    numbers = dataclasses.astuple(rule)
    reference = ReferenceScale(*numbers) if rule.moves else ReferenceScale(numbers[0], dynamic=False)
    for finite, row in zip(sequence, run(rule, sequence), strict=True):
        reference.step(finite)
        assert (float(row["scale"]), int(row["counter"])) == (reference.scale, reference.counter)
        moves = [
            np.sign(after - before) for _, kind, before, after in reference.events if kind in ("overflow", "growth")
        ]
        assert dict(zip(TALLY, row["tally"].tolist(), strict=True)) == {
            "seen": reference.seen,
            "applied": reference.applied,
            "skipped": reference.skipped,
            "consecutive_skips": reference.consecutive_skips,
            "growths": moves.count(1),
            "backoffs": moves.count(-1),
        }


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
