import math
import re
from dataclasses import asdict, replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry import health as v
from mpt_cli.telemetry.health import judge
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions
from mpt_cli.telemetry.records import Event, Scaling, UnmovedWeights
from mpt_cli.telemetry.signs import LONGEST_SETTLING_SKIPS, EventTally, LossTrend, Signs, observe

DYNAMIC = Scaling(DynamicScale())
FIXED = Scaling(FixedScale(2.0**24))
CLEAN = Signs(DYNAMIC, steps_seen=1000, applied_steps=1000, scale=2.0**15, loss=0.5)


def _skipping(steps, base: Signs = CLEAN, **more) -> Signs:
    skips = tuple(steps)
    return replace(base, skip_steps=skips, applied_steps=base.steps_seen - len(skips), **more)


FIXED_CLEAN = replace(CLEAN, scaling=FIXED, scale=2.0**24)
NO_SCALING = replace(CLEAN, scaling=Scaling(), scale=None)
CASES = [
    ("clean", CLEAN, v.HEALTHY, "All 1,000 steps were applied at scale 32768."),
    ("not scaled", NO_SCALING, v.HEALTHY, "the loss was not scaled, because nothing needed it"),
    ("fixed, clean", FIXED_CLEAN, v.HEALTHY, r"at scale 2\^24\."),
    (
        "probing",
        _skipping([401, 803], first_growth_step=400),
        v.HEALTHY,
        r"2 of 1,000 steps \(0.2%\) were skipped, few",
    ),
    ("fixed, rare skips", _skipping([500, 900], FIXED_CLEAN), v.HEALTHY, "few enough to do no harm"),
    ("one late skip in a short run", _skipping([19], replace(CLEAN, steps_seen=20)), v.WARM_UP, "1 of 20 steps .* was"),
    (
        "warm-up",
        _skipping(range(1, 16)),
        v.WARM_UP,
        r"15 of 1,000 steps \(1.5%\) were skipped while.*last at step 15; this is",
    ),
    ("mostly warm-up", _skipping(range(1, 16), replace(CLEAN, steps_seen=20)), v.WARM_UP, "15 of 20 steps"),
    (
        "chronic",
        _skipping(range(10, 1000, 10)),
        v.CHRONIC,
        r"49 of the last 500 steps were skipped \(9.8%\).*max_scale",
    ),
    ("chronic, fixed", _skipping(range(10, 1000, 10), FIXED_CLEAN), v.CHRONIC, r"fixed scale 2\^24 is too high"),
    (
        "a nan bug with head-room left",
        _skipping([7, 14, 21], nan_steps=[7, 14, 21], uncured_steps=[7, 14, 21]),
        v.BAD_VALUES,
        "3 of 1,000 steps, the last 21, were skipped though the scale was not to blame: the gradients held nan and no "
        "inf, of a finite loss, which the scale does not explain: a bug of the model or data.",
    ),
    ("nan twice", _skipping([7, 14], nan_steps=[7, 14], uncured_steps=[7, 14]), v.WARM_UP, "nothing needs to be done"),
    ("nan that went with the scale", _skipping([1, 2, 3], nan_steps=[1, 2, 3]), v.WARM_UP, "nothing needs to be done"),
    (
        "bad losses now and then",
        _skipping([100, 400, 700], forward_steps=[100, 400, 700]),
        v.BAD_VALUES,
        "3 of 1,000 steps, the last 700, were skipped though the scale was not to blame: the loss itself was",
    ),
    (
        "nan in every step",
        _skipping(range(1, 9), replace(CLEAN, steps_seen=8), nan_steps=range(1, 9)),
        v.NEVER_TRAINED,
        "The gradients held nan and no inf",
    ),
    (
        "loss nan",
        replace(CLEAN, loss=math.nan),
        v.COLLAPSED,
        "The loss ended as nan: the loss itself was not finite",
    ),
    (
        "at the floor, bad loss",
        _skipping(range(997, 1001), scale=2.0**-14, forward_steps=range(998, 1001)),
        v.COLLAPSED,
        "still overflowed: the loss itself was not finite",
    ),
    (
        "long streak, fixed",
        _skipping(range(900, 1001), FIXED_CLEAN),
        v.COLLAPSED,
        r"last 101 steps were all skipped at scale 2\^24: the fixed scale 2\^24 is too high: lower it",
    ),
    (
        "flushed",
        replace(FIXED_CLEAN, flushed_share=0.4),
        v.TOO_LOW,
        r"40\.0% of the gradient elements were flushed.*2\^24",
    ),
    ("vanished", replace(CLEAN, faults={"a": "flushed", "b": "vanished"}, sample_step=7, flushed_share=0.9),
     v.VANISHES, "The outputs of layer b were flushed to zero in float16 at step 7, and 90.0% of"),
    ("a layer flushed", replace(CLEAN, faults={"a": "flushed"}, flushed_share=0.02), v.TOO_LOW, "2.0% of the gradient"),
    ("a dead layer", replace(CLEAN, faults={"a": "dead"}, sample_step=7), v.DEAD_LAYERS,
     "No gradient reached the weights of layer a at step 7, in float32 neither"),
    ("a layer unmoved", replace(CLEAN, faults={"a": "unmoved"}, sample_step=7), v.LOST_UPDATES,
     "Next to none of the updates of layer a changed a weight at step 7: .*mixed_bfloat16"),
    ("all unmoved", replace(CLEAN, unmoved=UnmovedWeights(0, 1e-9)), v.NEVER_TRAINED,
     r"Not one bit of any kernel has changed since the start, though .* Raise the learning rate"),
    ("all unmoved since", replace(CLEAN, unmoved=UnmovedWeights(40, 1e-9)), v.NEVER_TRAINED, "since step 40, though"),
    ("no step", replace(CLEAN, steps_seen=0, applied_steps=0), v.NEVER_TRAINED, "ended before its first step"),
    (
        "all skipped, fixed",
        _skipping(range(1, 1001), FIXED_CLEAN),
        v.NEVER_TRAINED,
        r"The fixed scale 2\^24 is too high",
    ),
    (
        "all skipped, bad loss",
        _skipping(range(1, 1001), forward_steps=range(1, 1001)),
        v.NEVER_TRAINED,
        "the loss itself was not",
    ),
]


@pytest.mark.parametrize(
    ("signs", "verdict", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_verdict_and_its_reason(signs: Signs, verdict: str, words: str) -> None:
    found, explanation = judge(signs)
    assert found == verdict, explanation
    assert re.search(words, explanation), explanation


LOGMAX = Scaling(LogMaxScale())


class Golden(LogMaxScale):
    """Of another package."""

    mode = "golden"


OF_ANOTHER_PACKAGE = Scaling(Golden())


@pytest.mark.parametrize("scaling", [DYNAMIC, OF_ANOTHER_PACKAGE], ids=lambda scaling: scaling.mode)
@pytest.mark.parametrize("streak", [v.FLOOR_STREAK - 1, v.FLOOR_STREAK])
def test_any_scale_that_moves_collapses_at_its_floor(scaling: Scaling, streak: int) -> None:
    skips = _skipping(range(1001 - streak, 1001), scaling=scaling, scale=2.0**-14)
    verdict, words = judge(skips)
    assert verdict == (v.COLLAPSED if streak == v.FLOOR_STREAK else v.TOO_LOW)
    if streak == v.FLOOR_STREAK:
        assert words == (
            "The scale fell to its floor, 2^-14, and steps still overflowed: when no scale is low enough, the cause is "
            "a nan or a value beyond float16, not the scale. Try the policy mixed_bfloat16 or float32, a lower "
            "learning rate, or clipping gradients by their global norm."
        )
        assert "floor" not in judge(replace(skips, scale=2.0**-13))[1]


def test_a_fixed_scale_has_no_floor_to_collapse_at() -> None:
    low = Scaling(FixedScale(0.5))
    assert judge(_skipping(range(991, 1001), scaling=low, scale=0.5))[0] == v.TOO_LOW


@pytest.mark.parametrize(
    ("skips", "forward", "blamed"),
    [
        ([5, *range(972, 1001)], [5], False),  # of another time
        (range(972, 1001), range(986, 1001), True),  # 15 of 29
    ],
)
def test_a_long_streak_is_the_forward_pass_where_most_of_it_is(skips, forward, blamed) -> None:
    verdict, words = judge(_skipping(skips, forward_steps=forward))
    assert verdict == v.COLLAPSED and ("the loss itself was not finite" in words) == blamed
    assert ("when no scale is low enough" in words) != blamed


@pytest.mark.parametrize(("early", "late", "blamed"), [(40, 0, False), (0, 25, True)])
def test_chronic_overflow_is_blamed_on_most_of_the_late_skips(early: int, late: int, blamed: bool) -> None:
    skips = range(10, 1000, 10)  # 49 of them late
    forward = [*skips[:early], *skips[len(skips) - late :]]
    assert ("In most of them the loss itself" in judge(_skipping(skips, forward_steps=forward))[1]) == blamed


def test_a_run_that_never_trained_at_any_scale_is_not_told_to_start_lower() -> None:
    assert judge(_skipping(range(1, 1001), scale=2.0**-14))[1] == (
        "None of 1,000 steps was applied, so the weights are those of the start: every gradient overflowed at scale "
        "2^-14. When no scale is low enough, the cause is a nan or a value beyond float16, not the scale. Try "
        "the policy mixed_bfloat16 or float32, a lower learning rate, or clipping gradients by their global norm."
    )
    assert judge(_skipping(range(1, 1001)))[1].endswith(
        "every gradient overflowed at scale 32768. Start lower (loss_scale.initial_scale), or give the scale more "
        "epochs to settle."
    )


@pytest.mark.parametrize(
    ("skip_steps", "scaling", "advice"),
    [
        ((), DYNAMIC, "Nothing overflowed: raise the initial loss scale (loss_scale.initial_scale)."),
        ((400,), DYNAMIC, "Something overflows at any useful scale: keep that layer in float32."),
        ((400,), FIXED, "Raise the scale (loss_scale.initial_scale), or let it move (loss_scale=dynamic)."),
    ],
)
def test_what_to_do_about_a_useless_scale(skip_steps, scaling, advice) -> None:
    verdict, words = judge(_skipping(skip_steps, scaling=scaling, scale=1.0))
    assert (verdict, words) == (v.TOO_LOW, f"The scale ended at 1, which lifts no gradient out of underflow. {advice}")
    assert judge(_skipping(skip_steps, scaling=scaling, scale=2.0))[0] != v.TOO_LOW


@pytest.mark.parametrize(("growth_steps", "verdict"), [(20, v.CHRONIC), (19, v.HEALTHY)])
def test_twice_the_share_that_probing_explains_is_not_chronic(growth_steps: int, verdict: str) -> None:
    """51 of the last 500 steps, 10.2 %: 2 in 20 are 10 %, 2 in 19 are 10.5 %."""
    scaling = Scaling(DynamicScale(growth_steps=growth_steps))
    assert judge(_skipping(range(501, 909, 8), scaling=scaling, first_growth_step=9))[0] == verdict


def test_two_late_skips_of_a_short_run_are_not_chronic() -> None:
    short = replace(FIXED_CLEAN, steps_seen=10)
    assert judge(_skipping([7, 9], short))[0] == v.HEALTHY and judge(_skipping([6, 8, 9], short))[0] == v.CHRONIC


@pytest.mark.parametrize("late_skips", [25, 26])
def test_chronic_begins_above_a_twentieth_of_the_second_half(late_skips: int) -> None:
    signs = _skipping(range(502, 502 + 2 * late_skips, 2))
    assert (judge(signs)[0] == v.CHRONIC) == (late_skips > 25)


@pytest.mark.parametrize("streak", [LONGEST_SETTLING_SKIPS - 1, LONGEST_SETTLING_SKIPS])
def test_collapse_begins_at_the_streak_that_leads_from_the_default_to_the_floor(streak: int) -> None:
    signs = _skipping(range(1001 - streak, 1001))
    assert (judge(signs)[0] == v.COLLAPSED) == (streak == LONGEST_SETTLING_SKIPS)


def test_the_signs_come_from_the_tally_and_the_optimizers_counters() -> None:
    tally = EventTally()
    tally.add([Event(1, 1, "overflow", 4.0, 2.0, cause="forward"), Event(9, 1, "growth", 2.0, 4.0)])
    found = observe(Ledger(LedgerOptions(), seen=10, applied=9), tally, DYNAMIC, {})
    assert (found.steps_seen, found.skip_steps, found.first_growth_step, found.forward_steps) == (10, [1], 9, [1])


@pytest.mark.parametrize("scaling", [replace(FIXED, on_overflow="apply"), Scaling()])
def test_overflows_that_were_applied_are_steps_like_others(scaling) -> None:
    tally = EventTally()
    tally.add([Event(1, 1, "overflow", 4.0, 4.0)])
    signs = observe(Ledger(LedgerOptions(), seen=10, applied=10, scale=4.0, last_mean_loss=0.5), tally, scaling, {})
    assert (signs.steps_seen, signs.skipped_steps, signs.bad_steps) == (10, 0, 1)
    verdict, words = judge(signs)
    assert verdict == v.HEALTHY
    assert words.startswith("All 10 steps were applied, 1 of them with gradients that were not finite")


@pytest.mark.parametrize(("share", "verdict"), [(v.FLUSHED_SHARE, v.HEALTHY), (0.98, v.TOO_LOW)])
def test_float16_without_scaling_is_judged_by_what_was_flushed(share, verdict):
    signs = Signs(Scaling(is_needed=True), steps_seen=10, applied_steps=10, loss=2.3, scale=1.0,
                        flushed_share=share)  # fmt: skip
    words = {
        v.HEALTHY: "All 10 steps were applied; the loss was not scaled although layers compute in float16, and 10.0% "
                   "of the gradient elements were flushed to zero: few enough to do no harm.",
        v.TOO_LOW: "98.0% of the gradient elements were flushed to zero without loss scaling. Scale the loss "
                   "(loss_scale=dynamic).",
    }  # fmt: skip
    assert judge(signs) == (verdict, words[verdict])


def test_float16_without_scaling_is_not_said_to_need_none():
    signs = Signs(Scaling(is_needed=True), steps_seen=10, applied_steps=10, loss=2.3)
    assert judge(signs) == (
        "healthy",
        "All 10 steps were applied; the loss was not scaled although layers compute in float16, so every gradient "
        "below 2^-24 was lost. If the loss did not fall, that is why: loss_scale=dynamic keeps those gradients.",
    )


def test_a_nan_at_a_scale_that_had_worked_is_not_the_scales():
    tally, nan = EventTally(), {"nan": 5, "cause": "backward"}
    tally.add([
        Event(1, 1, "overflow", 64.0, 32.0, **nan),  # before any applied step: it may be the scale
        Event(9, 1, "overflow", 32.0, 16.0, **nan),  # 2 to 8 were applied at 32
        Event(20, 1, "growth", 16.0, 32.0),
        Event(21, 1, "overflow", 32.0, 16.0, nan=2, inf=1, cause="backward"),  # an overflow makes inf first
        Event(30, 1, "growth", 16.0, 64.0),
        Event(31, 1, "overflow", 64.0, 32.0, **nan),  # higher than any that worked
        Event(40, 1, "overflow", 32.0, 16.0, nan=1, cause="forward"),
        Event(41, 1, "overflow", 16.0, 8.0, **nan),
    ])  # fmt: skip
    assert (tally.nan_steps, tally.uncured_steps, tally.forward_steps) == ([1, 9, 31, 41], [9, 41], [40])


def nan_at(step: int, scale: float, **more) -> Event:
    return Event(step, 1, "overflow", scale, scale / 2, **{"nan": 5, "cause": "backward", **more})


@pytest.mark.parametrize(("rule", "events", "uncured"), [
    (DynamicScale(64.0), [nan_at(1, 64.0), nan_at(2, 32.0), nan_at(9, 16.0), nan_at(20, 8.0), nan_at(30, 4.0)],
     [9, 20, 30]),  # the first two were above all that worked; 9 and 20 were in doubt up to 4 = 16 / MARGIN
    (DynamicScale(64.0), [nan_at(9, 64.0), nan_at(20, 32.0), nan_at(50, 64.0), nan_at(70, 64.0)], []),  # probing
    (FixedScale(64.0), [nan_at(9, 64.0), nan_at(20, 64.0), nan_at(30, 64.0)], [9, 20, 30]),
    (FixedScale(64.0), [nan_at(9, 64.0, inf=1), nan_at(20, 64.0), nan_at(30, 64.0)], []),  # it overflows there
    (LogMaxScale(64.0), [nan_at(9, 64.0), nan_at(20, 64.0), nan_at(21, 128.0)], [9, 20]),
    (DynamicScale(8.0), [nan_at(step, 2.0 ** (4 - step)) for step in range(1, 7)], [1, 2, 3, 4, 5, 6]),  # 4 was at 1
])  # fmt: skip
def test_the_mode_says_what_its_scale_may_explain(rule, events, uncured):
    tally = EventTally(Scaling(rule))
    tally.add(events)
    assert tally.uncured_steps == uncured


def test_a_nan_in_two_optimizers_at_once_is_one():
    tally = EventTally(Scaling(FixedScale(64.0)))
    tally.add([nan_at(step, 64.0, optimizer=name) for step in (5, 9) for name in ("a", "b")])
    assert tally.uncured_steps == [5, 9]


def test_scales_of_several_optimizers_are_not_mixed_up():
    tally = EventTally()
    tally.add([Event(5, 1, "growth", 64.0, 128.0, optimizer="a"),
               Event(1, 1, "overflow", 32.0, 16.0, nan=1, cause="backward", optimizer="b")])  # fmt: skip
    assert tally.uncured_steps == []


LATE = _skipping([1, 2, 46], replace(CLEAN, steps_seen=64), unprovoked_steps=(1, 2, 46))
RISING = LossTrend(0.31, 4, 9, (0.4, 0.45, 0.52))


@pytest.mark.parametrize(("signs", "words"), [
    (LATE, "3 of 64 steps (4.7%) were skipped: 2 while the scale settled, 1 later, few enough to do no harm. Step 46 "
           "was skipped long after the scale had settled, and not because it had grown: a batch with unusual gradients "
           "does that, or a learning rate that rises. If more follow, lower the learning rate or clip gradients to a "
           "global norm of 1.0."),
    (_skipping(range(100, 500, 100), unprovoked_steps=range(100, 500, 100)),
     "4 of 1,000 steps (0.4%) were skipped, few enough to do no harm. 4 steps (… 200, 300, 400) were skipped long "
     "after the scale had settled, and not because it had grown: a batch with unusual gradients does that, or a "
     "learning rate that rises. If more follow, lower the learning rate or clip gradients to a "
     "global norm of 1.0."),
    (replace(NO_SCALING, val_loss=RISING), "All 1,000 steps were applied; the loss was not scaled, because nothing "
     "needed it. val_loss was lowest in epoch 4, 0.3100, and is 0.5200 after 5 more: the model may be overfitting, and "
     "early stopping ends a run there."),
    (replace(CLEAN, input_seconds=30.0, step_seconds=20.0), "All 1,000 steps were applied at scale 32768. Steps waited "
     "for their data 60% of the time (30.0 s), so a quicker device gains little: let the loader do less for each "
     "example, or do it once and keep the result."),
])  # fmt: skip
def test_a_good_verdict_says_what_is_worth_a_word(signs: Signs, words: str) -> None:
    assert judge(signs) == (v.HEALTHY, words)


@pytest.mark.parametrize("signs", [
    _skipping([1, 2, 3], replace(CLEAN, steps_seen=64), unprovoked_steps=(1, 2, 3)),  # the settling itself
    _skipping([401, 803], first_growth_step=400),  # each after a growth
    _skipping([500], FIXED_CLEAN, unprovoked_steps=(500,)),  # a fixed scale never settles
    replace(CLEAN, val_loss=LossTrend(0.31, 7, 9, (0.31, 0.45, 0.52))),  # two epochs may be chance
    replace(CLEAN, val_loss=LossTrend(0.31, 4, 9, (0.4, 0.32, 0.52))),  # it came back to the lowest
    replace(CLEAN, input_seconds=4.0, step_seconds=1.0),  # too short to matter
    replace(CLEAN, input_seconds=30.0, step_seconds=70.0),
])  # fmt: skip
def test_what_is_usual_gets_no_remark(signs: Signs) -> None:
    assert len(re.findall(r"\. [A-Z]|\. val_loss", judge(signs)[1])) == 0


def test_a_bad_verdict_stands_alone() -> None:
    assert "val_loss" not in judge(replace(CLEAN, loss=math.nan, val_loss=RISING))[1]


@pytest.mark.parametrize(("applied", "verdict"), [(20, v.WARM_UP), (21, v.HEALTHY)])
def test_the_settling_ends_after_a_twentieth_of_the_run_or_its_first_steps(applied: int, verdict: str) -> None:
    assert judge(_skipping([1, applied + 2], replace(CLEAN, steps_seen=64)))[0] == verdict
    assert judge(_skipping([1, 2 * applied + 12 - 2 * (applied - 20)], replace(CLEAN, steps_seen=1000)))[0] == v.WARM_UP


def test_a_skip_is_provoked_by_a_growth_since_the_skip_before_and_so_is_the_streak_it_begins() -> None:
    tally = EventTally()
    tally.add(halved_at(step, scale) for step, scale in ((1, 16.0), (2, 8.0)))
    tally.add([Event(40, 1, "growth", 4.0, 8.0)])
    tally.add(halved_at(step, scale) for step, scale in ((60, 8.0), (61, 4.0), (63, 2.0)))
    assert (tally.skip_steps, tally.unprovoked_steps) == ([1, 2, 60, 61, 63], [1, 2, 63])
    assert tally.skip_scales == [8.0, 4.0, 4.0, 2.0, 1.0]


def halved_at(step: int, scale: float) -> Event:
    return Event(step, 1, "overflow", scale, scale / 2)


@pytest.mark.parametrize(("skips", "unprovoked"), [
    ([(2001, 8.0), (2003, 4.0)], []),  # one halving too few: back at what it had grown from, and once more
    ([(2001, 8.0), (2021, 4.0)], []),
    ([(2001, 8.0), (2022, 4.0)], [2022]),  # long after
    ([(2001, 8.0), (2003, 4.0), (2005, 2.0)], [2005]),  # lower than it had been for a whole stretch
    ([(2500, 8.0), (2700, 8.0)], []),  # of hysteresis: it stays where it had grown to
])  # fmt: skip
def test_a_search_after_a_growth_may_go_one_halving_too_far(skips, unprovoked) -> None:
    tally = EventTally(DYNAMIC)
    tally.add([Event(2000, 1, "growth", 4.0, 8.0), *(halved_at(*skip) for skip in skips)])
    assert tally.unprovoked_steps == unprovoked
    signs = observe(Ledger(LedgerOptions(), seen=4000, applied=3990, scale=4.0, last_mean_loss=0.5), tally, DYNAMIC, {})
    assert ("long after the scale had settled" in judge(signs)[1]) == bool(unprovoked)


HIGH = Scaling(DynamicScale(2.0**40, growth_steps=100, max_scale=2.0**40))
FAR = tuple(2.0 ** (40 - step) for step in range(1, 26))


@pytest.mark.parametrize(("late", "growth", "unprovoked", "words"), [
    ((), None, (), "25 of 128 steps (19.5%) were skipped while the scale settled at scale 32768, the last at step 25; "
     "this is normal and nothing needs to be done. The first 25 skips came of a scale that began too high, at 2^40: "
     "an initial loss scale of 32768 (loss_scale.initial_scale) would have needed none."),
    ((100,), None, (100,), "26 of 128 steps (20.3%) were skipped: 25 while the scale settled, 1 later, few enough to "
     "do no harm. The first 25 skips came of a scale that began too high, at 2^40: an initial loss scale of "
     "32768 (loss_scale.initial_scale) would have needed none. Step 100 was skipped long after the scale had "
     "settled, and not because it had grown"),
    ((101, 120), 100, (120,), "27 of 128 steps (21.1%) were skipped: 25 while the scale settled, 1 after it had grown, "
     "1 later, few enough to do no harm. The first 25 skips came of"),
])  # fmt: skip
def test_each_group_of_skips_is_told_by_what_it_is_due_to(late, growth, unprovoked, words) -> None:
    scales = FAR + (2.0**14,) * len(late)
    base = replace(CLEAN, scaling=HIGH, steps_seen=128, first_growth_step=growth, skip_scales=scales)
    verdict, said = judge(_skipping([*range(1, 26), *late], base, unprovoked_steps=(*range(1, 26), *unprovoked)))
    assert said.startswith(words) and verdict == (v.HEALTHY if late else v.WARM_UP)


def test_one_skip_of_a_first_scale_that_was_too_high_names_the_half() -> None:
    signs = _skipping([1], scaling=Scaling(DynamicScale(2.0**30)), skip_scales=(2.0**29,), scale=2.0**29)
    assert judge(signs)[1].endswith(
        "The first skip came of a scale that began too high, at 2^30: an initial loss scale of 2^29 "
        "(loss_scale.initial_scale) would have needed none.")  # fmt: skip


def test_a_logmax_scale_is_not_told_to_grow_later() -> None:
    words = judge(_skipping(range(10, 1000, 10), scaling=LOGMAX))[1]
    assert "Lower the highest scale (loss_scale.max_scale), or try" in words


def test_a_val_loss_that_is_not_finite_leaves_the_trend_as_it_was() -> None:
    trend = LossTrend().after(1, 0.5)
    assert trend.after(2, math.nan) == trend and not trend.is_rising
    assert LossTrend.from_position(asdict(trend)) == trend
