"""Rules that end a run: for each case of `stops` stops.txt has the sentence. When they are looked at."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden import assert_said

from mpt_cli.precision import DynamicScale
from mpt_cli.settings.model_data_optimizer_keys import LossScaleSettings
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.telemetry.health_and_verdict import HealthRules
from mpt_cli.telemetry.record_types import NEVER, GradientSample, Scaling, StopLimits, StreakCounts
from mpt_cli.telemetry.run_state import EventTally, RunState, build_run_state
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters, StepRecords

NAN, INF = float("nan"), float("inf")
OFF = {"max_consecutive_skips": None, "max_skip_rate": None}
NO_TRAINER = TrainerSettings(max_nonfinite_losses=None, max_zero_gradients=None, stop_on_nonfinite_weights=False)
SCALED = Scaling(DynamicScale())


def after(
    *calls: str,
    scale: float = 4.0,
    loss: float = 0.5,
    floor: float = 2.0**-14,
    sample: GradientSample | None = None,
):
    """A run after calls of these steps (. applied, x skipped, 0 applied with all-zero gradients), all at one
    scale and with one loss."""
    counters, tally = StepCounters(CounterOptions(min_scale=floor)), EventTally()
    for marks in calls:
        floats = np.array([[loss, scale, scale, 0.1]] * len(marks), np.float32)
        ints = np.array([[mark != "x", 0, 0, 0, 0, 0, mark == "0"] for mark in marks], np.int32)
        tally.add(counters.absorb(StepRecords(floats, ints), 1))
    counters.sample = sample
    return build_run_state(counters, tally, SCALED, {})


def check(
    run_state: RunState, trainer: TrainerSettings | None = None, at_epoch_end: bool = False, **loss_scale: object
):
    """Of a model in float16."""
    settings = LossScaleSettings(**loss_scale)  # type: ignore[arg-type]
    scaling = Scaling(settings.rule_for(True))
    rules = HealthRules(settings, trainer or TrainerSettings(), scaling)
    return rules.check(replace(run_state, scaling=scaling), at_epoch_end=at_epoch_end)


def check_epoch(run_state: RunState, trainer: TrainerSettings | None = None, **loss_scale: object):
    return check(run_state, trainer, True, **loss_scale)


def check_sample(mode: str, *sample: float):
    trainer = TrainerSettings(max_zero_gradients=3)
    return check(after("000", sample=GradientSample(*sample, 0.0, None)), trainer, mode=mode)  # type: ignore[arg-type]


def check_skips(skips: list[int], forward: list[int], **rule: object):
    """Which of 30 steps were skipped, and which of them for their loss."""
    run_state = RunState(
        SCALED,
        30,
        20,
        skip_steps=skips,
        forward_steps=forward,
        scale=4.0,
        peaks=StreakCounts(3, 0, 0),
    )
    return check(run_state, **{**OFF, **rule})


def stops():
    three = {"max_consecutive_skips": 3}
    losses, zeros = TrainerSettings(max_nonfinite_losses=3), TrainerSettings(max_zero_gradients=5)
    one = {"mode": "fixed", "max_consecutive_skips": 1}
    bad = replace(after("."), weights_are_finite=False)
    return {
        "three skips": check(after("..xxx"), **three),
        "two and two": check(after("..xx.xx"), **three),
        "three that ended within the call": check(after("..xxx.."), **three),
        "in an earlier call": check(after("..xxx", ".."), **three),
        "three with a loss of nan": check(after("xxx", loss=NAN), **three),
        "three at 2**-13": check(after("xxx", scale=2.0**-13), **three),
        "three at 2**-12": check(after("xxx", scale=2.0**-12), **three),
        "three at min_scale": check(after("xxx"), min_scale=4.0, **three),
        "three at a fixed scale of 2**40": check(after("xxx", scale=2.0**40), mode="fixed", **three),
        "half of three forward": check_skips([1, 2, 3, 4, 8, 9, 10], [1, 2, 3, 4, 10], **three),
        "most of three forward": check_skips([1, 2, 3, 4, 8, 9, 10], [1, 2, 3, 4, 9, 10], **three),
        "the first overflow": check(after("..x."), **one),
        "no overflow": check(after("....")),
        "losses of nan": check(after("...", loss=NAN), losses),
        "two losses of nan": check(after("..", loss=NAN), losses),
        "skipped losses of nan": check(after("xxx", loss=NAN), losses),
        "zero gradients": check(after("00000"), zeros),
        "too few": check(after("00.000"), zeros),
        "zero gradients, flushed": check_sample("none", 3, 0.0, 0.25),
        "zero gradients, flushed at a fixed scale": check_sample("fixed", 3, 0.0, 0.25),
        "zero gradients, flushed at another time": check_sample("none", 2, 0.0, 0.25),
        "zero gradients, none flushed": check_sample("fixed", 3, 0.0, 0.0),
        "every second step skipped": check_epoch(after(".x" * 100)),
        "every second step skipped, too few of them": check_epoch(after(".x" * 99)),
        "every third step skipped": check_epoch(after("..x" * 100)),
        "weights of nan": check_epoch(bad),
        "weights of nan, within an epoch": check(bad),
        "all turned off": check_epoch(
            replace(after("x" * 2000, scale=2.0**-14), weights_are_finite=False), NO_TRAINER, **OFF
        ),
        "all turned off, applied": check_epoch(after("0" * 50, loss=NAN), NO_TRAINER, **OFF),
    }


def test_what_ends_a_run_and_what_is_advised():
    found = {name: stop and str(stop) for name, stop in stops().items()}
    text = "".join(f"{name}:\n    {words}\n" for name, words in found.items())
    assert_said(text, Path(__file__).with_name("stops.txt"))


def limits_of(run_state: RunState, trainer: TrainerSettings | None = None, **loss_scale: object):
    settings = LossScaleSettings(**loss_scale)  # type: ignore[arg-type]
    return HealthRules(settings, trainer or TrainerSettings(), run_state.scaling).stop_limits(run_state)


LATE = RunState(SCALED, 20, 9, streaks=StreakCounts(1, 3, 4))


def test_a_call_ends_where_a_count_comes_to_its_limit():
    trainer = TrainerSettings(max_nonfinite_losses=5, max_zero_gradients=8)
    assert limits_of(LATE, trainer, max_consecutive_skips=7) == StopLimits(LATE.streaks, StreakCounts(7, 5, 8))
    assert limits_of(LATE, NO_TRAINER, **OFF).limits == StreakCounts(NEVER, NEVER, NEVER)


def test_zero_gradients_of_a_loss_that_is_zero_itself_are_not_the_scale_s():
    needed = Scaling(DynamicScale(), is_needed=True)
    run_state = replace(after("00000"), loss=0.0, first_loss=0.0, scaling=needed)
    stop = HealthRules(LossScaleSettings(), TrainerSettings(max_zero_gradients=5), needed).check(run_state)
    assert stop is not None and stop.remedy.startswith("The loss itself is exactly 0, which no loss scale changes.")


def test_the_advice_is_of_the_mode_that_auto_came_to():
    peaks, unscaled = StreakCounts(0, 0, 50), Scaling(is_needed=True)
    flushed = replace(LATE, peaks=peaks, streaks=peaks, flushed_share=0.25, sample_is_new=True, scaling=unscaled)
    stop = HealthRules(LossScaleSettings(), TrainerSettings(), unscaled).check(flushed)
    assert stop is not None and stop.needs_sample and "scale the loss (loss_scale=dynamic)" in stop.remedy


def test_a_floor_that_float32_cannot_hold_is_the_floor_all_the_same():
    """0.1 in float32 lies above 0.1."""
    low = float(np.float32(0.1))
    run_state = RunState(Scaling(DynamicScale(min_scale=0.1)), 10, 1, scale=low)
    assert low > 0.1 and run_state.is_near_floor(1)
    assert not replace(run_state, scale=float(np.nextafter(np.float32(low), np.float32(1)))).is_near_floor(1)


@pytest.mark.parametrize(
    ("metrics", "loss"),
    [
        ({}, 0.5),
        ({"loss": 2.0}, 0.5),
        ({"loss": INF, "val_loss": 1.0}, INF),
        ({"val_loss": INF, "my_loss": INF}, 0.5),
    ],
)
def test_a_loss_of_the_last_epoch_that_is_not_finite_stands_for_the_loss(metrics, loss):
    counters = StepCounters(CounterOptions(), seen=9, last_mean_loss=0.5)
    assert build_run_state(counters, EventTally(), SCALED, metrics).loss == loss
    assert (
        build_run_state(StepCounters(CounterOptions()), EventTally(), SCALED, {}).scale is None
    )  # before the first step
