"""Verdicts: for each case of `CASES` verdicts.txt has the verdict and its words, and none names a cause that no event and
no sample has. How events become a `RunState`."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from golden import assert_said
from hypothesis import given
from hypothesis import strategies as st

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale, NoScale
from mpt_cli.telemetry import health_and_verdict as v
from mpt_cli.telemetry.health_and_verdict import judge
from mpt_cli.telemetry.record_types import (
    DEAD,
    DIGITS,
    FLUSHED,
    NO_STREAKS,
    STALE,
    VANISHED,
    Event,
    Scaling,
    UnmovedWeights,
)
from mpt_cli.telemetry.run_state import LONGEST_SETTLING_SKIPS, EventTally, RunState, build_run_state
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters

DYNAMIC, FIXED, LOGMAX, HIGH = (
    Scaling(rule, is_needed=True)
    for rule in (
        DynamicScale(),
        FixedScale(2.0**24),
        LogMaxScale(),
        DynamicScale(2.0**40, growth_steps=100, max_scale=2.0**40),
    )
)
CLEAN = RunState(DYNAMIC, steps_seen=1000, applied_steps=1000, scale=2.0**15, loss=0.5)
FIXED_CLEAN = replace(CLEAN, scaling=FIXED, scale=2.0**24)
NO_SCALING = replace(CLEAN, scaling=Scaling(), scale=None)
FLOAT16 = RunState(Scaling(is_needed=True), steps_seen=10, applied_steps=10, loss=2.3, scale=1.0)
SHORT = replace(CLEAN, steps_seen=64)
SAMPLED = replace(CLEAN, loss=0.2, first_loss=1.0, flushed_share=0.0)
FIRST, ALL, TENTHS = range(1, 16), range(1, 1001), range(10, 1000, 10)
LAST, MOST = 1000 - LONGEST_SETTLING_SKIPS, 1001 - LONGEST_SETTLING_SKIPS


def skipping(steps, base: RunState = CLEAN, **more):
    skips = tuple(steps)
    return replace(base, skip_steps=skips, applied_steps=base.steps_seen - len(skips), **more)


def at_floor(streak: int, **more):
    return skipping(range(1001 - streak, 1001), **{"scale": 2.0**-14, **more})


def from_high(*late: int, growth: int | None):
    """25 skips on the way down from 2**40, and later ones."""
    scales = tuple(2.0 ** (40 - step) for step in range(1, 26)) + (2.0**14,) * len(late)
    base = replace(CLEAN, scaling=HIGH, steps_seen=128, first_growth_step=growth, skip_scales=scales)
    return skipping([*range(1, 26), *late], base)


CASES = {
    "probing": skipping([401, 803], first_growth_step=400),
    "two late skips of ten at a fixed scale": skipping([7, 9], replace(FIXED_CLEAN, steps_seen=10)),
    "three": skipping([6, 8, 9], replace(FIXED_CLEAN, steps_seen=10)),
    "warm-up": skipping(FIRST),
    "settled after 20 of 64 steps": skipping([1, 22], SHORT),
    "settled after 21 of 64 steps": skipping([1, 23], SHORT),
    "chronic": skipping(TENTHS),
    "chronic, logmax": skipping(TENTHS, scaling=LOGMAX),
    "chronic, most of the early skips forward": skipping(TENTHS, forward_steps=TENTHS[:40]),
    "chronic, most of the late skips forward": skipping(TENTHS, forward_steps=TENTHS[-25:]),
    "a twentieth of the second half": skipping(range(502, 552, 2)),
    "more than a twentieth of the second half": skipping(range(502, 554, 2)),
    "growing every 5 steps": skipping(
        range(6, 1000, 6), scaling=Scaling(DynamicScale(growth_steps=5)), first_growth_step=5
    ),
    "growing every 50 steps": skipping(TENTHS, scaling=Scaling(DynamicScale(growth_steps=50)), first_growth_step=9),
    "all gradients 0": replace(FLOAT16, streaks=NO_STREAKS._replace(zero_steps=10), unchecked="hidden."),
    "all gradients 0, and the loss": replace(FLOAT16, streaks=NO_STREAKS._replace(zero_steps=10), loss=0.0),
    "all gradients 0, of float32": replace(
        CLEAN, scaling=Scaling(), steps_seen=10, applied_steps=10, streaks=NO_STREAKS._replace(zero_steps=10)
    ),
    "a nan bug": skipping([7, 14, 21], persistent_nan_steps=[7, 14, 21]),
    "bad losses now and then": skipping([7, 9, 40, 70], forward_steps=[9, 40, 70], is_of_program=True, first_loss=0.01),
    "nan in every step": skipping(range(1, 9), replace(CLEAN, steps_seen=8)),
    "loss nan": replace(CLEAN, loss=math.nan),
    "loss nan, after gradients of nan without scaling": replace(NO_SCALING, loss=math.nan, began_as_nan=True),
    "near the floor": at_floor(v.FLOOR_STREAK - 1),
    "at the floor": at_floor(v.FLOOR_STREAK),
    "at the floor, logmax": at_floor(v.FLOOR_STREAK, scaling=LOGMAX),
    "above the floor": at_floor(v.FLOOR_STREAK, scale=2.0**-13),
    "at the floor, bad loss": at_floor(4, forward_steps=range(998, 1001)),
    "fixed has no floor": at_floor(10, scaling=Scaling(FixedScale(0.5)), scale=0.5),
    "long streak, fixed": skipping(range(900, 1001), FIXED_CLEAN),
    "the longest streak that settles": skipping(range(LAST + 2, 1001)),
    "a longer one": skipping(range(MOST, 1001)),
    "a longer one, most of it bad losses": skipping(range(MOST, 1001), forward_steps=range(986, 1001)),
    "flushed": replace(FIXED_CLEAN, flushed_share=0.4),
    "vanished": replace(CLEAN, faults={"a": "flushed", "b": "vanished"}, sample_step=7, flushed_share=0.9),
    "vanished behind a layer that float32 cures": replace(SAMPLED, faults={"a": DIGITS, "b": VANISHED}, sample_step=7),
    "a layer flushed": replace(CLEAN, faults={"a": "flushed"}, flushed_share=0.02),
    "a dead layer": replace(CLEAN, faults={"a": "dead"}, sample_step=7),
    "a layer unmoved": replace(CLEAN, faults={"a": "unmoved"}, sample_step=7),
    "all unmoved": replace(CLEAN, unmoved=UnmovedWeights(0, 1e-9, True)),
    "all unmoved, without gradients": replace(CLEAN, unmoved=UnmovedWeights(0, 1e-9, False)),
    "all unmoved, not checked": replace(CLEAN, unmoved=UnmovedWeights(0, 1e-9)),
    "all unmoved, flushed": replace(CLEAN, unmoved=UnmovedWeights(0, 1e-9), faults={"a": "flushed"}, flushed_share=0.8),
    "no step": replace(CLEAN, steps_seen=0, applied_steps=0),
    "all skipped": skipping(ALL),
    "all skipped, bad loss": skipping(ALL, forward_steps=ALL),
    "all skipped, inputs too large": skipping(ALL, forward_steps=ALL, forward_layer="net/cube", largest_input=113168.0),
    "all skipped, nan by inputs too large": skipping(ALL, persistent_nan_steps=ALL, largest_input=113168.0),
    "all skipped, bad loss by a layer": skipping(ALL, forward_steps=ALL, forward_layer="net/cube"),
    "all skipped, bad loss by a layer in float32": skipping(
        ALL, forward_steps=ALL, forward_layer="net/log", forward_dtype="float32"
    ),
    "all late ones skipped, with state not finite": skipping(
        range(MOST, 1001), forward_steps=range(MOST, 1001), spoiled_state=["norm/moving_mean"]
    ),
    "a low scale that flushes": skipping([], scale=1.0, flushed_share=0.4),
    "a low scale that flushes, and something overflows": skipping([400], scale=1.0, flushed_share=0.4),
    "a scale that overflows drove below its start": skipping(
        [400], scale=2.0**-14, flushed_share=0.8, headroom_doublings=30.0
    ),
    "the same, and digits lost": skipping(
        [400], scale=2.0**-14, flushed_share=0.8, faults={"a": DIGITS, "b": "flushed"}, output_noise=1.4
    ),
    "float16 without scaling": replace(FLOAT16, scale=None),
    "float16 without scaling, few flushed": replace(FLOAT16, flushed_share=v.FLUSHED_SHARE),
    "float16 without scaling, most flushed": replace(FLOAT16, flushed_share=0.98),
    "from too high": from_high(growth=None),
    "from too high, and skips after a growth": from_high(101, 120, growth=100),
    "from twice too high": skipping([1], scaling=Scaling(DynamicScale(2.0**30)), skip_scales=(2.0**29,), scale=2.0**29),
    "too high, then a bad loss": skipping([1, 5], SAMPLED, forward_steps=[5], skip_scales=(2.0**14, 2.0**13)),
    "not checked": replace(SAMPLED, unchecked="too short."),
    "a scale below 1": replace(SAMPLED, scale=0.5),
    "a validation loss spoiled": replace(SAMPLED, spoiled_metrics=["val_loss"]),
    "a metric spoiled": replace(NO_SCALING, spoiled_metrics=["my_loss"]),
    # 2^15 doubled 9.5 times less two doublings; without a limit 2^22.5
    "flushed, with room above": replace(SAMPLED, flushed_share=0.9, headroom_doublings=9.5, scale=2.0**15),
    "flushed, with room without end": replace(SAMPLED, flushed_share=0.9, headroom_doublings=40.0, scale=2.0**15),
    "flushed, and tiny in float32": replace(
        SAMPLED, flushed_share=0.9, headroom_doublings=56.0, scale=2.0**-4, skip_steps=[1, 2]
    ),
    "flushed, and met": replace(SAMPLED, flushed_share=0.9, loss=1e-6),
    "flushed, of bfloat16": replace(SAMPLED, flushed_share=0.9, scaling=Scaling(NoScale())),
    "a dead layer, not met": replace(SAMPLED, faults={"gate": "dead"}, loss=0.9),
    "a dead layer, met": replace(SAMPLED, faults={"gate": "dead"}, loss=0.06),
    "digits": replace(SAMPLED, faults={"net/day": DIGITS}, output_noise=5.2, output_noise_left=2e-4),
    "digits of inputs": replace(SAMPLED, faults={"the inputs": DIGITS}, output_noise=5.2),
    "digits of inputs too": replace(SAMPLED, faults={"net/day": DIGITS, "the inputs": DIGITS}, output_noise=5.2),
    "digits everywhere": replace(SAMPLED, faults={"*": DIGITS, "net/day": DIGITS}, output_noise=0.3),
    "digits of targets": replace(SAMPLED, faults={"targets": DIGITS}, output_noise=0.3, output_noise_left=0.0),
    "few digits lost": replace(SAMPLED, output_noise=0.006, sample_step=100),
}


def test_the_verdicts_and_their_reasons():
    found = {name: "\n    ".join(judge(run_state)) for name, run_state in CASES.items()}
    text = "".join(f"{name}:\n    {words}\n" for name, words in found.items())
    assert_said(text, Path(__file__).with_name("verdicts.txt"))


CLAIMS = {
    "overflowed": lambda found: found.skipped_steps > 0,
    "a higher loss scale overflowed": lambda found: found.skipped_steps > 0,
    "skips at the start ended": lambda found: 1 not in found.forward_steps and found.found_scale is not None,
    "loss itself was not finite": lambda found: found.forward_steps or not math.isfinite(found.loss or 0.0),
    "held nan and no inf": lambda found: found.persistent_nan_steps or found.began_as_nan,
    "were flushed to zero": lambda found: found.flushed_share is not None,
    "loses what tells": lambda found: DIGITS in found.faults.values(),
    "running mean, does not move": lambda found: STALE in found.faults.values(),
    "No gradient reached": lambda found: DEAD in found.faults.values(),
    "The loss ended as": lambda found: found.loss is not None and not math.isfinite(found.loss),
    "val_loss": lambda found: "val_loss" in found.spoiled_metrics,
    "was not checked": lambda found: bool(found.unchecked),
}


SEEN = {  # of a sample, beside what the events of a case tell
    "flushed_share": st.sampled_from([0.0, 0.02, 0.9]),
    "faults": st.dictionaries(st.sampled_from("ab"), st.sampled_from([DEAD, DIGITS, FLUSHED, STALE, VANISHED])),
    "output_noise": st.just(0.5),
    "output_noise_left": st.just(0.1),
    "unchecked": st.just(""),
}
UNSEEN = {"flushed_share": None, "faults": {}, "output_noise": None, "unchecked": "no sample."}
AT_THE_END = {
    "loss": st.sampled_from([None, 0.5, 0.0, math.nan]),
    "spoiled_metrics": st.lists(st.sampled_from(["val_loss", "mae"]), unique=True),
}


@given(
    st.sampled_from(sorted(CASES)),
    st.one_of(st.just(UNSEEN), st.fixed_dictionaries(SEEN)),
    st.fixed_dictionaries(AT_THE_END),
)
def test_no_verdict_names_a_cause_that_no_event_or_sample_has(name, sample, end):
    found = replace(CASES[name], **sample, **end)
    _, explanation = judge(found)
    for words, is_shown in CLAIMS.items():
        assert words not in explanation or is_shown(found), (words, explanation)


def overflow(step: int, scale: float, **more):
    return Event(step, 1, "overflow", scale, scale / 2, **more)


def nan_at(step: int, scale: float, **more):
    return overflow(step, scale, **{"nan": 5, "cause": "backward", **more})


def tallied(scaling: Scaling, *events: Event):
    tally = EventTally(scaling)
    tally.add(events)
    return tally


def test_the_signs_come_from_the_tally_and_the_optimizers_counters():
    tally = tallied(DYNAMIC, overflow(1, 4.0, cause="forward"), Event(9, 1, "growth", 2.0, 4.0))
    found = build_run_state(StepCounters(CounterOptions(), seen=10, applied=9), tally, DYNAMIC, {})
    assert (found.steps_seen, found.skip_steps, found.first_growth_step, found.forward_steps) == (10, [1], 9, [1])


def test_overflows_that_were_applied_are_steps_like_others():
    scaling = Scaling()
    tally = tallied(DYNAMIC, overflow(1, 4.0))
    run_state = build_run_state(
        StepCounters(CounterOptions(), seen=10, applied=10, scale=4.0, last_mean_loss=0.5), tally, scaling, {}
    )
    assert (run_state.steps_seen, run_state.skipped_steps, run_state.bad_steps) == (10, 0, 1)
    assert not run_state.began_as_nan
    nan = tallied(DYNAMIC, overflow(1, 4.0, inf=0, nan=3), overflow(2, 4.0))
    assert build_run_state(StepCounters(CounterOptions(), seen=10, applied=10), nan, scaling, {}).began_as_nan
    assert judge(run_state)[1].startswith("All 10 steps were applied, 1 of them with gradients that were not finite")


def test_a_nan_at_a_scale_that_had_worked_is_not_the_scales():
    tally = EventTally()
    tally.add(
        [
            nan_at(1, 64.0),  # before any applied step: it may be the scale
            nan_at(9, 32.0),  # 2 to 8 were applied at 32
            Event(20, 1, "growth", 16.0, 32.0),
            nan_at(21, 32.0, inf=1),  # an overflow makes inf first
            Event(30, 1, "growth", 16.0, 64.0),
            nan_at(31, 64.0),  # higher than any that worked
            nan_at(40, 32.0, cause="forward"),
            nan_at(41, 16.0),
        ]
    )
    assert (tally.nan_steps, tally.persistent_nan_steps, tally.forward_steps) == ([1, 9, 31, 41], [9, 41], [40])
    again = nan_at(9, 2.0**9), Event(40, 1, "growth", 4.0, 8.0), nan_at(50, 8.0)  # the scale grew back to where it is
    assert tallied(DYNAMIC, *again).persistent_nan_steps == []
    mixed = Event(5, 1, "growth", 64.0, 128.0, optimizer="a"), nan_at(1, 32.0, optimizer="b")
    assert tallied(DYNAMIC, *mixed).persistent_nan_steps == []


@pytest.mark.parametrize(
    ("rule", "nans", "uncured"),
    [
        (
            DynamicScale(64.0),
            {1: 64.0, 2: 32.0, 9: 16.0, 20: 8.0, 30: 4.0, 40: 2.0, 50: 1.0},
            [9, 20, 30, 40, 50],
        ),  # the first two were above all that worked; the others were in doubt up to 1 = 16 / MARGIN
        (DynamicScale(64.0), {9: 64.0, 20: 32.0, 50: 64.0, 70: 64.0}, []),  # probing
        (FixedScale(64.0), {9: 64.0, 20: 64.0, 30: 64.0}, [9, 20, 30]),
        (LogMaxScale(64.0), {9: 64.0, 20: 64.0, 21: 128.0}, [9, 20]),
        (DynamicScale(8.0), {step: 2.0 ** (4 - step) for step in range(1, 7)}, []),  # a scale below 1 may cure them
        (DynamicScale(2.0**-11), {step: 2.0 ** (-10 - step) for step in range(1, 7)}, [1, 2, 3, 4, 5, 6]),  # 4: 2**-14
    ],
)
def test_the_mode_says_what_its_scale_may_explain(rule, nans, uncured):
    both = (nan_at(step, scale, optimizer=name) for step, scale in nans.items() for name in ("a", "b"))
    assert tallied(Scaling(rule), *both).persistent_nan_steps == uncured  # in two optimizers at once it is one
    first, *others = nans.items()
    if isinstance(rule, FixedScale):  # it overflows there
        assert tallied(Scaling(rule), nan_at(*first, inf=1), *(nan_at(*at) for at in others)).persistent_nan_steps == []
