import math
import re
from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale
from mpt_cli.telemetry import health as v
from mpt_cli.telemetry.health import EventTally, Evidence, evidence_from, judge
from mpt_cli.telemetry.records import Event, Scaling

DYNAMIC = Scaling(DynamicScale())
FIXED = Scaling(FixedScale(2.0**24))
CLEAN = Evidence(DYNAMIC, steps_seen=1000, applied_steps=1000, final_scale=2.0**15, final_loss=0.5)


def _skipping(steps, base: Evidence = CLEAN, **more) -> Evidence:
    skips = tuple(steps)
    return replace(base, skip_steps=skips, applied_steps=base.steps_seen - len(skips), **more)


FIXED_CLEAN = replace(CLEAN, scaling=FIXED, final_scale=2.0**24)
NO_SCALING = replace(CLEAN, scaling=Scaling(), final_scale=None)
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
    ("warm-up, then growths", _skipping([1, 2], first_growth_step=500), v.WARM_UP, "nothing needs to be done"),
    ("mostly warm-up", _skipping(range(1, 16), replace(CLEAN, steps_seen=20)), v.WARM_UP, "15 of 20 steps"),
    (
        "chronic",
        _skipping(range(10, 1000, 10)),
        v.CHRONIC,
        r"49 of the last 500 steps were skipped \(9.8%\).*max_scale",
    ),
    ("chronic, fixed", _skipping(range(10, 1000, 10), FIXED_CLEAN), v.CHRONIC, r"fixed scale 2\^24 is too high"),
    (
        "chronic, bad loss",
        _skipping(range(10, 1000, 10), forward_skips=90),
        v.CHRONIC,
        "In most of them the loss itself",
    ),
    (
        "probing often is what small growth_steps ask for",
        _skipping(range(10, 1000, 10), scaling=replace(DYNAMIC, growth_steps=9), first_growth_step=9),
        v.HEALTHY,
        "few enough",
    ),
    (
        "loss nan",
        replace(CLEAN, final_loss=math.nan),
        v.COLLAPSED,
        "The loss ended as nan: the loss itself was not finite",
    ),
    ("loss inf, not scaled", replace(NO_SCALING, final_loss=math.inf), v.COLLAPSED, "The loss ended as inf"),
    ("at the floor", _skipping(range(997, 1001), final_scale=2.0**-14), v.COLLAPSED, r"floor, 2\^-14, and steps still"),
    (
        "long streak",
        _skipping(range(972, 1001)),
        v.COLLAPSED,
        "last 29 steps were all skipped at scale 32768: when no scale",
    ),
    (
        "long streak, bad loss",
        _skipping(range(972, 1001), forward_skips=29),
        v.COLLAPSED,
        "the loss itself was not finite",
    ),
    ("long streak, fixed", _skipping(range(900, 1001), FIXED_CLEAN), v.COLLAPSED, "last 101 steps"),
    ("one skip at the floor", _skipping([1000], final_scale=2.0**-14), v.TOO_LOW, r"ended at 2\^-14"),
    ("scale one", replace(CLEAN, final_scale=1.0), v.TOO_LOW, "Nothing overflowed: raise loss_scale.initial_scale"),
    ("fixed scale one", replace(FIXED_CLEAN, final_scale=1.0), v.TOO_LOW, "Raise loss_scale.initial_scale"),
    (
        "flushed",
        replace(FIXED_CLEAN, flushed_share=0.4),
        v.TOO_LOW,
        r"40% of the gradient elements were flushed.*2\^24",
    ),
    ("flushed a little", replace(CLEAN, flushed_share=0.1), v.HEALTHY, "All"),
    ("no step", replace(CLEAN, steps_seen=0, applied_steps=0), v.NEVER_TRAINED, "ended before its first step"),
    ("all skipped", _skipping(range(1, 1001)), v.NEVER_TRAINED, "None of 1,000 steps was applied.*initial_scale"),
    (
        "all skipped, fixed",
        _skipping(range(1, 1001), FIXED_CLEAN),
        v.NEVER_TRAINED,
        r"The fixed scale 2\^24 is too high",
    ),
    (
        "all skipped, bad loss",
        _skipping(range(1, 1001), forward_skips=1000),
        v.NEVER_TRAINED,
        "the loss itself was not",
    ),
]


@pytest.mark.parametrize(
    ("evidence", "verdict", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_verdict_and_its_reason(evidence: Evidence, verdict: str, words: str) -> None:
    found, explanation = judge(evidence)
    assert found == verdict, explanation
    assert re.search(words, explanation), explanation


def test_all_six_verdicts_have_a_case() -> None:
    assert {case[2] for case in CASES} == {v.HEALTHY, v.WARM_UP, v.CHRONIC, v.COLLAPSED, v.TOO_LOW, v.NEVER_TRAINED}


@pytest.mark.parametrize("late_skips", [25, 26])
def test_chronic_begins_above_a_twentieth_of_the_second_half(late_skips: int) -> None:
    evidence = _skipping(range(502, 502 + 2 * late_skips, 2))
    assert (judge(evidence)[0] == v.CHRONIC) == (late_skips > 25)


@pytest.mark.parametrize("streak", [v.COLLAPSE_STREAK - 1, v.COLLAPSE_STREAK])
def test_collapse_begins_at_the_streak_that_leads_from_the_default_to_the_floor(streak: int) -> None:
    evidence = _skipping(range(1001 - streak, 1001))
    assert (judge(evidence)[0] == v.COLLAPSED) == (streak == v.COLLAPSE_STREAK)


def test_the_evidence_comes_from_the_tally_and_the_optimizers_counters() -> None:
    tally = EventTally()
    tally.add([Event(1, 1, "overflow", 4.0, 2.0, cause="forward"), Event(9, 1, "growth", 2.0, 4.0)])
    found = evidence_from(tally, DYNAMIC, applied_steps=9, final_scale=4.0, final_loss=0.5)
    assert (found.steps_seen, found.skip_steps, found.first_growth_step, found.forward_skips) == (10, (1,), 9, 1)


@pytest.mark.parametrize("scaling", [replace(FIXED, on_overflow="apply"), Scaling()])
def test_overflows_that_were_applied_are_steps_like_others(scaling) -> None:
    tally = EventTally()
    tally.add([Event(1, 1, "overflow", 4.0, 4.0)])
    evidence = evidence_from(tally, scaling, applied_steps=10, final_scale=4.0, final_loss=0.5)
    assert (evidence.steps_seen, evidence.skipped_steps, evidence.bad_steps) == (10, 0, 1)
    verdict, words = judge(evidence)
    assert verdict == v.HEALTHY
    assert words.startswith("All 10 steps were applied, 1 of them with gradients that were not finite")


@pytest.mark.parametrize(("share", "verdict"), [(v.FLUSHED_SHARE, v.HEALTHY), (0.98, v.TOO_LOW)])
def test_float16_without_scaling_is_judged_by_what_was_flushed(share, verdict):
    evidence = Evidence(Scaling(is_needed=True), steps_seen=10, applied_steps=10, final_loss=2.3, final_scale=1.0,
                        flushed_share=share)  # fmt: skip
    words = {
        v.HEALTHY: "All 10 steps were applied; the loss was not scaled although layers compute in float16, and 10% of "
                   "the gradient elements were flushed to zero: few enough to do no harm.",
        v.TOO_LOW: "98% of the gradient elements were flushed to zero without loss scaling. Use loss_scale=dynamic.",
    }  # fmt: skip
    assert judge(evidence) == (verdict, words[verdict])


def test_float16_without_scaling_is_not_said_to_need_none():
    evidence = Evidence(Scaling(is_needed=True), steps_seen=10, applied_steps=10, final_loss=2.3)
    assert judge(evidence) == (
        "healthy",
        "All 10 steps were applied; the loss was not scaled although layers compute in float16, so every gradient "
        "below 2^-24 was lost. If the loss did not fall, that is why: loss_scale=dynamic keeps those gradients.",
    )
