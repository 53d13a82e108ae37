"""A verdict names no cause that no event and no sample of the run has; and what single observations come to."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpt_cli.precision.scale_rules import DynamicScale, FixedScale, NoScale
from mpt_cli.telemetry.health_and_verdict import judge
from mpt_cli.telemetry.record_types import (
    DEAD,
    DIGITS,
    FLUSHED,
    FORWARD_PASS,
    GROWTH,
    OVERFLOW,
    STALE,
    VANISHED,
    Event,
    Scaling,
)
from mpt_cli.telemetry.run_state import EventTally, RunState, build_run_state
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters

DYNAMIC = Scaling(DynamicScale(initial_scale=2.0**15), is_needed=True)
HEALTHY = RunState(
    DYNAMIC, steps_seen=100, applied_steps=100, scale=2.0**15, loss=0.2, first_loss=1.0, flushed_share=0.0
)


def overflow(step, scale, cause=None, nan=0):
    return Event(step, 1, OVERFLOW, scale, scale / 2, nan=nan, inf=0 if nan else 1, cause=cause)


@st.composite
def run_states(draw):
    """Of a run of 60 steps with some overflows of any kind, a growth perhaps, a sample or none, and any loss."""
    rule = draw(st.sampled_from([DynamicScale(), FixedScale(1024.0), NoScale()]))
    scaling = Scaling(rule, is_needed=draw(st.booleans()))
    tally, scale = EventTally(scaling), scaling.initial_scale
    steps = sorted(draw(st.sets(st.integers(1, 60), max_size=60))) if scaling.scales else []
    for step in steps:
        tally.add([overflow(step, scale, draw(st.sampled_from([None, FORWARD_PASS])), draw(st.integers(0, 1)))])
        scale = max(scale / 2, 2.0**-14) if scaling.moves else scale
    if draw(st.booleans()) and scaling.moves:
        tally.add([Event(61, 1, GROWTH, scale, 2 * scale)])
    counters = StepCounters(
        CounterOptions(),
        seen=60,
        applied=60 - len(steps),
        skipped=len(steps),
        scale=scale,
        first_loss=1.0,
        last_mean_loss=draw(st.sampled_from([None, 0.5, 0.0, math.nan])),
    )
    sampled = draw(st.booleans())
    faults = draw(
        st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([DEAD, DIGITS, FLUSHED, STALE, VANISHED]))
    )
    return replace(
        build_run_state(
            counters, tally, scaling, draw(st.dictionaries(st.sampled_from(["val_loss", "mae"]), st.just(math.nan)))
        ),
        flushed_share=draw(st.sampled_from([0.0, 0.02, 0.9])) if sampled else None,
        faults=faults if sampled else {},
        output_noise=0.5 if sampled else None,
        output_noise_left=0.1 if sampled else None,
        unchecked="" if sampled else "no sample.",
    )


CLAIMS = {
    "overflowed": lambda run_state: run_state.skipped_steps > 0,
    "overflows at any useful scale": lambda run_state: run_state.skipped_steps > 0,
    "would have avoided": lambda run_state: 1 not in run_state.forward_steps and run_state.found_scale is not None,
    "loss itself was not finite": lambda run_state: run_state.forward_steps or not math.isfinite(run_state.loss or 0.0),
    "held nan and no inf": lambda run_state: run_state.nan_steps,
    "were flushed to zero": lambda run_state: run_state.flushed_share is not None,
    "loses the digits": lambda run_state: DIGITS in run_state.faults.values(),
    "running mean, does not move": lambda run_state: STALE in run_state.faults.values(),
    "No gradient reached": lambda run_state: DEAD in run_state.faults.values(),
    "The loss ended as": lambda run_state: run_state.loss is not None and not math.isfinite(run_state.loss),
    "val_loss": lambda run_state: "val_loss" in run_state.spoiled_metrics,
    "was not checked": lambda run_state: bool(run_state.unchecked),
}


@given(run_states())
def test_no_verdict_names_a_cause_that_no_event_or_sample_has(run_state):
    _, explanation = judge(run_state)
    for words, is_shown in CLAIMS.items():
        assert words not in explanation or is_shown(run_state), (words, explanation)


@pytest.mark.parametrize(
    ("seen", "verdict", "words"),
    [
        ({"unchecked": "too short."}, "not checked", "half precision did to the numbers was not checked: too short."),
        ({"scale": 0.5}, "healthy", "All 100 steps were applied at scale 2^-1."),
        (
            {"spoiled_metrics": ["val_loss"], "loss": 0.036},
            "bad values",
            "val_loss ended as inf or nan, though the loss",
        ),
        (
            {"spoiled_metrics": ["my_loss"]},
            "bad values",
            "my_loss ended as inf or nan, though the loss in training is 0.2",
        ),
        ({"flushed_share": 0.9}, "scale too low to matter", "90.0% of the gradient elements were flushed to zero"),
        (  # 2^15 doubled 9.5 times less two doublings; without a limit 2^22.5
            {"flushed_share": 0.9, "headroom_doublings": 9.5, "scale": 2.0**15},
            "scale too low to matter",
            ", up to loss_scale.initial_scale=2**22, where the gradients of step 0 would still be at least four times",
        ),
        (
            {"flushed_share": 0.9, "headroom_doublings": 40.0, "scale": 2.0**15},
            "scale too low to matter",
            ", up to loss_scale.initial_scale=2**32, where",
        ),
        ({"flushed_share": 0.9, "loss": 1e-6}, "healthy", "All 100 steps were applied"),
        ({"faults": {"gate": DEAD}, "loss": 0.9}, "dead layers", "No gradient reached the weights of layer gate"),
        ({"faults": {"gate": DEAD}, "loss": 0.06}, "healthy", "No gradient reached the weights of layer gate"),
        (
            {"faults": {"net/day": DIGITS}, "output_noise": 5.2, "output_noise_left": 2e-4},
            "digits lost",
            "by 5.2 times the variance between examples at step 0, and by 0.0002 with layer day in float32",
        ),
        (
            {"faults": {"*": DIGITS}, "output_noise": 0.3, "output_noise_left": 0.3},
            "digits lost",
            "Use policy=float32.",
        ),
        (
            {"faults": {"targets": DIGITS}, "output_noise": 0.3, "output_noise_left": 0.0},
            "digits lost",
            "because the targets are cast to the dtype of the outputs. Use policy.head=float32.",
        ),
        (
            {"output_noise": 0.006, "sample_step": 100},
            "healthy",
            "by 0.006 times the variance between examples at step 100: in half precision targets can hardly be met",
        ),
        ({"flushed_share": 0.9, "scaling": Scaling(NoScale())}, "healthy", "nothing needed it"),  # of bfloat16
    ],
)
def test_what_one_observation_comes_to(seen, verdict, words):
    found, explanation = judge(replace(HEALTHY, **seen))
    assert found == verdict and words in explanation, explanation


def test_a_loss_that_was_not_finite_is_no_search_for_a_scale():
    """One loud example in 640: no first scale would have prevented that."""
    tally = EventTally(DYNAMIC)
    tally.add([overflow(1, 2.0**15), overflow(5, 2.0**14, FORWARD_PASS)])
    counters = StepCounters(CounterOptions(), seen=20, applied=18, skipped=2, scale=2.0**13, last_mean_loss=0.2)
    verdict, explanation = judge(replace(build_run_state(counters, tally, DYNAMIC, {}), flushed_share=0.0))
    assert verdict == "healthy"
    assert "1 while the scale settled, 1 with a loss that was not finite even before scaling" in explanation
    assert "was too high: 16384 (loss_scale.initial_scale) would have avoided" in explanation
    assert "The loss of step 5 was not finite even before scaling, so the loss scale is not the cause" in explanation
