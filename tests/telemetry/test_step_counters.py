import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ReferenceScale, Step

from mpt_cli.files import strict_json
from mpt_cli.precision.scale_rules import FLOAT_FIELDS, INT_FIELDS
from mpt_cli.telemetry.record_types import GradientSample
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters, StepRecords

NAN, INF = math.nan, math.inf


def block_of(steps: list[Step], losses: list[float] | None = None, **columns: int):
    """A block of these steps; `columns` gives nan, inf and nearest for all of them."""
    losses = losses or [0.5] * len(steps)
    floats = [[loss, step.scale_before, step.scale_after, 0.25] for step, loss in zip(steps, losses, strict=True)]
    ints = [[step.finite, step.counter, *(columns.get(name, 0) for name in INT_FIELDS[2:])] for step in steps]
    return StepRecords(
        np.array(floats, np.float32).reshape(-1, len(FLOAT_FIELDS)),
        np.array(ints, np.int32).reshape(-1, len(INT_FIELDS)),
    )


def steps_of(pattern: str, **rule: float):
    """Steps of a dynamic scale: a dot is an applied step, an x a skipped one."""
    return ReferenceScale(**rule).run([mark == "." for mark in pattern])


def kinds(events):
    return [(event.step, event.kind) for event in events]


def portions(steps: list, sizes: list[int]):
    """`steps` in portions of these sizes, over and over."""
    first = 0
    while first < len(steps):
        size = sizes[0]
        sizes = [*sizes[1:], size]
        yield steps[first : first + size]
        first += size


rules = st.fixed_dictionaries(
    {
        "scale": st.sampled_from([1.0, 8.0, 1000.0]),
        "growth_steps": st.integers(1, 5),
        "growth_factor": st.sampled_from([1.5, 2.0, 16.0]),
        "backoff_factor": st.sampled_from([0.1, 0.5]),
        "min_scale": st.sampled_from([1.0, 2.0**-14]),
        "max_scale": st.sampled_from([1000.0, 2.0**32]),
        "hysteresis": st.integers(1, 3),
    }
)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(rules, st.lists(st.booleans(), min_size=1, max_size=80), st.lists(st.integers(1, 70), min_size=1, max_size=5))
def test_equals_the_reference_however_steps_are_divided_into_calls_and_resumed(rule, pattern, sizes):
    reference = ReferenceScale(**rule)
    steps = reference.run(pattern)
    counters = StepCounters(CounterOptions(min_scale=rule["min_scale"], max_scale=rule["max_scale"]))
    counters.sample = sample = GradientSample(3, 0.5, 0.25, 0.125, None)

    events, highest = [], 0
    for part in portions(steps, sizes):
        position = json.loads(strict_json(counters.position()))
        counters = StepCounters(counters.rules)
        counters.resume(position)
        events += counters.absorb(block_of(part), epoch=3)
        highest = max(highest, counters.peaks.skips)

    assert [(e.step, e.kind, e.scale_before, e.scale_after) for e in events] == reference.events
    assert all(event.epoch == 3 for event in events)
    assert counters.streaks.skips == reference.consecutive_skips
    for name in ("seen", "applied", "skipped", "scale", "counter"):
        assert getattr(counters, name) == getattr(reference, name), name
    assert counters.seen == counters.applied + counters.skipped == len(pattern)
    assert counters.applied_in_epoch == counters.applied and counters.sample == sample
    scales = [scale for step in steps for scale in (step.scale_before, step.scale_after)]
    assert (counters.lowest_scale, counters.highest_scale) == (min(scales), max(scales))
    assert highest == max(len(row) for row in "".join("x."[finite] for finite in pattern).split("."))
    assert counters.take_mean_loss() == (0.5 if counters.applied else None)


def test_an_overflow_names_the_variable_the_counts_and_the_way():
    def event(loss: float = 0.5, **columns: int):
        counters = StepCounters(CounterOptions(variables=("dense/kernel", "dense/bias")))
        (found,) = counters.absorb(block_of(steps_of("x"), [loss], **columns), epoch=1)
        return found.variable, found.layer, found.nan, found.inf, found.cause, found.fault

    assert event(nan=2, inf=5, nearest=1) == ("dense/bias", "dense", 2, 5, "backward", "nan")
    assert event(inf=5, nearest=0, holds_inf=1) == ("dense/kernel", "dense", 0, 5, "backward", "inf")
    assert event(nearest=-1)[0] is None
    for loss in (NAN, INF, -INF):  # which spoils every gradient: none tells where it was
        assert event(loss, nearest=0)[::4] == (None, "forward")


def test_a_bound_that_float32_cannot_hold_is_met_all_the_same():
    """0.1 in float32 lies above 0.1, and 1000.1 below 1000.1."""
    counters = StepCounters(CounterOptions(min_scale=0.1, max_scale=1000.1))
    low = np.float32(0.1).item()
    high = np.float32(1000.1).item()
    assert low > 0.1 and high < 1000.1
    steps = [Step(False, 0.15, low, 0), Step(True, 900.0, high, 0)]
    assert kinds(counters.absorb(block_of(steps), 1)) == [(1, "overflow"), (1, "floor"), (2, "growth"), (2, "ceiling")]


def test_the_mean_loss_is_that_of_applied_steps_since_it_was_last_taken():
    counters = StepCounters(CounterOptions())

    def mean(pattern: str, *losses: float):
        counters.absorb(block_of(steps_of(pattern), list(losses)), 1)
        return counters.take_mean_loss()

    assert mean(".x..", 1.0, NAN, 4.0, 4.0) == 3.0 and mean("x", 1.0) is None
    assert mean("...", 2.0**24, 1.0, 1.0) == (2.0**24 + 2) / 3  # in float32 the small ones would be lost
    with np.errstate(all="raise"):
        assert math.isnan(mean("..", INF, -INF))


def test_bad_losses_are_counted_over_applied_steps_in_a_row():
    counters = StepCounters(CounterOptions())
    counters.absorb(block_of(steps_of("..x."), [0.5, NAN, NAN, INF]), 1)
    assert counters.streaks.non_finite_losses == 2  # the skipped step between them neither counts nor ends the row
    counters.absorb(block_of(steps_of("xx"), [NAN, NAN]), 1)
    assert counters.streaks.non_finite_losses == 2
    counters.absorb(block_of(steps_of(".."), [NAN, 0.5]), 1)
    assert counters.streaks.non_finite_losses == 0


def test_a_new_epoch_counts_its_own_applied_steps():
    counters = StepCounters(CounterOptions())
    counters.absorb(block_of(steps_of("...")), 1)
    counters.start_epoch()
    counters.absorb(block_of(steps_of(".x")), 2)
    assert (counters.applied_in_epoch, counters.applied) == (1, 4)


@pytest.mark.parametrize(
    ("marks", "loss", "applies", "sound"),
    [
        ("x.", 0.5, True, True),
        ("x.", NAN, True, False),
        ("xx", 0.5, True, False),
        (".x", NAN, False, True),
    ],
)
def test_whether_the_last_applied_step_was_sound(marks, loss, applies, sound):
    counters = StepCounters(CounterOptions(applies_non_finite=applies))
    counters.absorb(block_of(steps_of(marks, scale=1.0), [0.5, loss]), 1)
    assert counters.is_sound == sound


def test_a_scale_that_falls_without_an_overflow_declines():
    steps = [Step(True, 16.0, 4.0, 0), Step(True, 4.0, 1.0, 0), Step(True, 1.0, 8.0, 0)]
    assert kinds(StepCounters(CounterOptions(min_scale=1.0)).absorb(block_of(steps), 1)) == [
        (1, "decline"),
        (2, "decline"),
        (2, "floor"),
        (3, "growth"),
    ]
