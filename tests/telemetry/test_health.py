import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from mpt_cli.precision import DynamicScale, FixedScale
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.schema import PolicySettings, Settings, TrainerSettings, find_key
from mpt_cli.settings.variants import LossScaleSettings
from mpt_cli.telemetry.health import CLIP, DYNAMIC, WIDER, HealthRules, Stop
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions, StepRecords
from mpt_cli.telemetry.records import NEVER, GradientSample, Scaling, StopLimits, StreakCounts
from mpt_cli.telemetry.signs import LONGEST_SETTLING_SKIPS, EventTally, Signs, observe

NAN = math.nan
LOSS_ADVICE = (
    "The loss itself was not finite, which no scale can cause or cure: look for nan or inf in the data, lower "
    "the learning rate, or keep a layer that overflows in float32."
)
FLOOR_ADVICE = (
    "No scale is low enough, so scaling is not the cause: look for nan in the model or data, lower "
    "the learning rate, or run with the policy mixed_bfloat16 or float32 to compare."
)
LOWER_ADVICE = (
    "Lower the initial loss scale (loss_scale.initial_scale), or run with the policy mixed_bfloat16 or float32 to "
    "compare."
)


@dataclass
class Watched:
    ledger: Ledger
    tally: EventTally = field(default_factory=EventTally)

    def signs(self, scaling: Scaling) -> Signs:
        return observe(self.ledger, self.tally, scaling, {})


def after(
    *calls: str, scale: float = 4.0, loss: float = 0.5, window: int = 500, floor: float = 2.0**-14
) -> Watched:
    """A run after calls of these steps (. applied, x skipped, 0 applied with all-zero gradients), all at one
    scale and with one loss."""
    run = Watched(Ledger(LedgerOptions(min_scale=floor), window_steps=window))
    for marks in calls:
        floats = np.array([[loss, scale, scale, 0.1]] * len(marks), np.float32)
        ints = np.array([[mark != "x", 0, 0, 0, 0, 0, mark == "0"] for mark in marks], np.int32)
        run.tally.add(run.ledger.absorb(StepRecords(floats, ints, {}), 1))
    return run


def resolved(settings: LossScaleSettings) -> Scaling:
    """Of a model in float16. The runs here skip, whatever `on_overflow` says."""
    return Scaling(settings.rule_for(True))


def check(run: Watched, trainer: TrainerSettings | None = None, **loss_scale: object) -> Stop | None:
    settings = LossScaleSettings(**loss_scale)  # type: ignore[arg-type]
    scaling = resolved(settings)
    return HealthRules(settings, trainer or TrainerSettings(), scaling).check(run.signs(scaling))


def check_epoch(
    run: Watched, trainer: TrainerSettings | None = None, are_finite: bool = True, **loss_scale: object
) -> Stop | None:
    settings = LossScaleSettings(**loss_scale)  # type: ignore[arg-type]
    scaling = resolved(settings)
    signs = replace(run.signs(scaling), weights_are_finite=are_finite)
    return HealthRules(settings, trainer or TrainerSettings(), scaling).check(signs, at_epoch_end=True)


def test_a_streak_of_skips():
    stop = check(after("..xxx"), max_consecutive_skips=3)
    assert str(stop) == (
        "3 steps in a row were skipped, the loss scale is 4 (rule loss_scale.max_consecutive_skips). " + LOWER_ADVICE
    )
    assert check(after("..xx.xx"), max_consecutive_skips=3) is None


def test_a_streak_that_ended_within_the_call_counts():
    assert check(after("..xxx.."), max_consecutive_skips=3) is not None
    assert check(after("..xxx", ".."), max_consecutive_skips=3) is None  # was told after the first call


def test_a_streak_of_non_finite_losses_is_not_blamed_on_the_scale():
    stop = check(after("xxx", loss=NAN), max_consecutive_skips=3)
    assert stop is not None and stop.remedy == LOSS_ADVICE


@pytest.mark.parametrize(("scale", "words"), [(2.0**16, "256"), (2.0**40, "2^32"), (1000.0, "3.90625")])
def test_a_fixed_scale_that_is_too_high_names_a_lower_one(scale, words):
    stop = check(after("xxx", scale=scale), mode="fixed", max_consecutive_skips=3)
    assert stop is not None and stop.remedy == (
        f"The fixed scale is too high for this model: try {words} (loss_scale.initial_scale), or let it move "
        "(loss_scale=dynamic)."
    )


def test_skips_at_the_floor():
    run = after("xxxx", scale=0.5, floor=0.5)
    stop = check(run, min_scale=0.5, max_skips_at_floor=4)
    assert str(stop) == (
        "4 steps were skipped though the loss scale is at its floor, 2^-1 (rule loss_scale.max_skips_at_floor). "
        + FLOOR_ADVICE
    )
    assert check(run, min_scale=0.5, max_skips_at_floor=5) is None
    assert check(run, min_scale=0.5, max_skips_at_floor=None) is None
    assert check(run, mode="fixed", min_scale=0.5, max_skips_at_floor=4) is None


def test_the_skip_rate():
    stop = check(after("." * 10 + "........xx", "xxx.", window=10), skip_rate_window=10, max_skip_rate=0.4)
    assert str(stop) == (
        "50% of 10 steps in a row were skipped (rule loss_scale.max_skip_rate). " + LOWER_ADVICE
    )
    assert check(after("x" * 19, window=10), skip_rate_window=10, max_skip_rate=0.4) is None  # still warming up
    assert check(after("." * 16 + "xxxx", window=10), skip_rate_window=10, max_skip_rate=0.4) is None  # not above


def test_the_first_overflow_where_none_is_allowed():
    stop = check(after("..x."), mode="fixed", on_overflow="abort")
    assert stop is not None
    assert (stop.key, stop.evidence) == ("loss_scale.on_overflow=abort", "gradients were not finite at loss scale 4")
    assert check(after("..x.", "."), mode="fixed", on_overflow="abort") is None
    assert check(after("....")) is None


def test_non_finite_losses_in_applied_steps():
    stop = check(after("...", loss=NAN), TrainerSettings(max_nonfinite_losses=3))
    assert str(stop) == (
        "the loss was not finite in 3 applied steps in a row (rule trainer.max_nonfinite_losses). Lower "
        "the learning rate, or clip gradients to a global norm of 1.0; in float16 without loss scaling scale the loss "
        "(loss_scale=dynamic)."
    )
    assert check(after("..", loss=NAN), TrainerSettings(max_nonfinite_losses=3)) is None
    assert check(after("xxx", loss=NAN), TrainerSettings(max_nonfinite_losses=3)) is None


def test_zero_gradients():
    stop = check(after("00000"), TrainerSettings(max_zero_gradients=5))
    assert str(stop) == (
        "every gradient was exactly 0 in 5 applied steps in a row (rule trainer.max_zero_gradients). No loss scale "
        "brings them back: look for a loss that does not depend on the weights, for units that are dead (a lower "
        "learning rate), or for targets that are met already."
    )
    assert check(after("00x000.00000"), TrainerSettings(max_zero_gradients=5)).key == "trainer.max_zero_gradients"
    assert check(after("00.000"), TrainerSettings(max_zero_gradients=5)) is None
    assert check(after("00000"), TrainerSettings(max_zero_gradients=None)) is None


@pytest.mark.parametrize(
    ("mode", "words", "change"), [("none", "scale the loss (loss_scale=dynamic).", DYNAMIC),
                                  ("fixed", "raise the initial loss scale (loss_scale.initial_scale).", "")]
)
def test_zero_gradients_that_a_higher_scale_would_keep(mode, words, change):
    run = after("000")
    run.ledger.sample = GradientSample(3, 0.0, 0.25, 0.0, None)
    stop = check(run, TrainerSettings(max_zero_gradients=3), mode=mode)
    assert stop is not None
    assert stop.remedy == f"float16 flushed them to zero, a higher loss scale keeps them: {words}"
    assert stop.change == change
    run.ledger.sample = GradientSample(2, 0.0, 0.25, 0.0, None)  # of another time
    assert "No loss scale brings them back" in check(run, TrainerSettings(max_zero_gradients=3), mode=mode).remedy
    run.ledger.sample = GradientSample(3, 0.0, 0.0, 0.0, None)
    assert "No loss scale brings them back" in check(run, TrainerSettings(max_zero_gradients=3), mode=mode).remedy


def test_an_idle_epoch():
    assert str(check_epoch(after("x" * 29))) == (
        "an epoch ended in which every step was skipped, the last at loss scale 4 "
        "(rule loss_scale.stop_on_idle_epoch). " + LOWER_ADVICE
    )
    assert check_epoch(after("x.x")) is None
    assert check_epoch(after("x" * 29, loss=NAN)).remedy == LOSS_ADVICE
    assert check_epoch(after("x" * 29), stop_on_idle_epoch=False) is None


def test_an_idle_epoch_while_the_scale_still_settles_is_no_reason_to_stop_as_its_key_says():
    assert f"not before {LONGEST_SETTLING_SKIPS} in a row" in find_key("loss_scale.stop_on_idle_epoch").meaning
    assert check_epoch(after("x" * 28)) is None
    assert check_epoch(after("x"), min_scale=4.0) is not None
    assert check_epoch(after("x"), min_scale=2.0) is None
    assert check_epoch(after("x"), mode="fixed") is not None


def test_weights_that_are_not_finite():
    assert str(check_epoch(after("."), are_finite=False)) == (
        "the weights hold inf or nan (rule trainer.stop_on_nonfinite_weights). Lower the learning rate, clip "
        "gradients to a global norm of 1.0, or use another optimizer."
    )
    assert check_epoch(after("."), are_finite=True) is None
    assert check_epoch(after("."), TrainerSettings(stop_on_nonfinite_weights=False), are_finite=False) is None


def test_every_rule_can_be_turned_off():
    off = {"max_consecutive_skips": None, "max_skip_rate": None, "max_skips_at_floor": None}
    bad = after("x" * 2000, loss=NAN, scale=2.0**-14)
    assert check(bad, TrainerSettings(max_nonfinite_losses=None), **off) is None
    assert check(after("." * 2000, loss=NAN), TrainerSettings(max_nonfinite_losses=None), **off) is None


@pytest.mark.parametrize(
    ("loss_scale", "change"),
    [
        ({}, "policy=mixed_bfloat16"),
        ({"mode": "fixed"}, "loss_scale=dynamic"),
        ({"mode": "fixed", "on_overflow": "apply"}, "loss_scale=dynamic"),
        ({"min_scale": 4.0}, "policy=mixed_bfloat16"),
    ],
)
def test_a_rule_names_a_change_that_another_run_can_be_given(loss_scale, change):
    assert check(after("xxx"), max_consecutive_skips=3, **loss_scale).change == change
    assert check(after("xxx", loss=NAN), max_consecutive_skips=3, **loss_scale).change == ""  # a look comes first


def test_every_change_is_taken_by_a_config_yaml_that_says_otherwise(tmp_path):
    scale, policy = LossScaleSettings(mode="fixed", on_overflow="abort"), PolicySettings("mixed_float16")
    conf = tmp_path / "config.yaml"
    conf.write_text(resolved_yaml(Settings(loss_scale=scale, policy=policy)))
    changed = load_settings([f"conf={conf}", DYNAMIC, WIDER, CLIP])
    assert changed.loss_scale == LossScaleSettings(mode="dynamic") and changed.policy == PolicySettings(
        "mixed_bfloat16"
    )
    assert changed.optimizer.global_clipnorm == 1.0


def limits_of(signs: Signs, trainer: TrainerSettings | None = None, **loss_scale: object) -> StopLimits:
    settings = LossScaleSettings(**loss_scale)  # type: ignore[arg-type]
    return HealthRules(settings, trainer or TrainerSettings(), signs.scaling).stop_limits(signs)


SCALED = Scaling(DynamicScale())
EARLY = Signs(SCALED, 13, 9, window_steps=10, window_skips=3, streaks=StreakCounts(1, 2, 3, 4, 0))
LATE = replace(EARLY, steps_seen=20)


def test_a_call_ends_where_a_count_comes_to_its_limit():
    limits = {"max_consecutive_skips": 7, "max_skips_at_floor": 6, "max_skip_rate": 0.5}
    trainer = TrainerSettings(max_nonfinite_losses=5, max_zero_gradients=8)
    assert limits_of(EARLY, trainer, **limits) == StopLimits(EARLY.streaks, StreakCounts(7, 6, 5, 8, NEVER))
    assert limits_of(LATE, trainer, **limits) == StopLimits(EARLY.streaks, StreakCounts(7, 6, 5, 8, 2))


def test_a_call_does_not_end_for_a_rule_that_is_turned_off():
    off = {"max_consecutive_skips": None, "max_skips_at_floor": None, "max_skip_rate": None}
    trainer = TrainerSettings(max_nonfinite_losses=None, max_zero_gradients=None)
    assert limits_of(LATE, trainer, **off).limits == StreakCounts(NEVER, NEVER, NEVER, NEVER, NEVER)
    assert limits_of(LATE, trainer, **{**off, "max_skips_at_floor": 4}).limits.floor_skips == 4
    fixed = replace(LATE, scaling=Scaling(FixedScale(8.0)))
    assert limits_of(fixed, trainer, **{**off, "max_skips_at_floor": 4}).limits.floor_skips == NEVER


def test_of_two_rules_for_one_count_the_lower_limit_ends_the_call():
    assert limits_of(LATE, on_overflow="abort", max_consecutive_skips=7).limits.skips == 1
    assert limits_of(LATE, on_overflow="skip", max_consecutive_skips=7).limits.skips == 7


@pytest.mark.parametrize(("skips", "missing"), [(0, 5), (4, 1), (5, 1), (6, 1)])
def test_a_call_ends_after_at_least_one_more_skip_that_may_exceed_the_rate(skips, missing):
    assert limits_of(replace(LATE, window_skips=skips), max_skip_rate=0.5).limits.skips_in_call == missing


@pytest.mark.parametrize(("seen", "left"), [(0, 20), (13, 7), (19, 1), (20, None), (21, None)])
def test_a_call_ends_where_the_skip_rate_begins_to_count(seen, left):
    signs = replace(EARLY, steps_seen=seen)
    assert HealthRules(LossScaleSettings(), TrainerSettings(), SCALED).steps_to_first_check(signs) == left
    off = HealthRules(LossScaleSettings(max_skip_rate=None), TrainerSettings(), SCALED)
    assert off.steps_to_first_check(signs) is None


@pytest.mark.parametrize(("streaks", "loss_scale", "ahead"), [
    (StreakCounts(0, 0, 0, 0, 0), {}, (10, 10, 50)),  # losses that are not finite, or skips at the floor
    (StreakCounts(45, 0, 0, 0, 0), {}, (5, 10, 50)),
    (StreakCounts(0, 0, 0, 30, 0), {}, (10, 10, 20)),
    (StreakCounts(0, 0, 0, 0, 0), {"on_overflow": "abort"}, (1, 1, 50)),
    (StreakCounts(50, 0, 0, 0, 0), {}, (1, 10, 50)),  # of a rule that is broken and did not end the run
])  # fmt: skip
def test_a_rule_is_broken_no_sooner_than_its_streak_allows(streaks, loss_scale, ahead):
    settings = LossScaleSettings(mode="dynamic", **loss_scale)
    signs = replace(EARLY, steps_seen=900, streaks=streaks, window_steps=500, window_skips=0)
    assert HealthRules(settings, TrainerSettings(), SCALED).next_check(signs) == ahead


def test_the_rate_of_skips_is_looked_at_where_it_begins_to_count_and_where_it_may_be_exceeded():
    settings, trainer = LossScaleSettings(mode="dynamic"), TrainerSettings(max_nonfinite_losses=None)
    rules = HealthRules(replace(settings, max_skips_at_floor=None), trainer, SCALED)
    signs = replace(EARLY, streaks=StreakCounts(0, 0, 0, 0, 0), window_steps=500)
    assert rules.next_check(replace(signs, steps_seen=996, window_skips=249)) == (4, 50, 4)
    assert rules.next_check(replace(signs, steps_seen=1000, window_skips=249)) == (1, 1, 50)
    assert rules.next_check(replace(signs, steps_seen=1000, window_skips=230)) == (20, 20, 50)
    assert rules.next_check(replace(signs, steps_seen=1000, window_skips=100)) == (50, 50, 50)  # or skips in a row


def test_the_advice_is_of_the_mode_that_auto_came_to():
    flushed = replace(
        LATE, peaks=StreakCounts(0, 0, 0, 50, 0), streaks=StreakCounts(0, 0, 0, 50, 0), flushed_share=0.25,
        sample_is_new=True,
    )  # fmt: skip
    auto = LossScaleSettings()
    assert auto.mode == "auto"
    unscaled, fixed = Scaling(is_needed=True), Scaling(FixedScale(8.0))
    stop = HealthRules(auto, TrainerSettings(), unscaled).check(replace(flushed, scaling=unscaled))
    assert stop is not None and (stop.change, stop.needs_sample) == (DYNAMIC, True)
    skipped = Signs(fixed, 60, 10, scale=8.0, skip_steps=range(11, 61), peaks=StreakCounts(50, 0, 0, 0, 0))
    stop = HealthRules(auto, TrainerSettings(), fixed).check(skipped)
    assert stop is not None and stop.remedy.startswith("The fixed scale is too high") and not stop.needs_sample


def test_rules_of_steps_and_of_epochs_are_asked_apart():
    peaks = StreakCounts(50, 0, 0, 0, 0)
    bad = replace(LATE, weights_are_finite=False, peaks=peaks, skip_steps=range(1, 12), scale=4.0)
    rules = HealthRules(LossScaleSettings(), TrainerSettings(), SCALED)
    step, epoch = rules.check(bad), rules.check(replace(bad, applied_in_epoch=1), at_epoch_end=True)
    assert step is not None and step.key == "loss_scale.max_consecutive_skips"
    assert epoch is not None and epoch.key == "trainer.stop_on_nonfinite_weights"


def test_an_epoch_that_was_cut_short_may_be_idle():
    run = after("x" * 29).signs(SCALED)
    rules = HealthRules(LossScaleSettings(), TrainerSettings(), SCALED)
    assert rules.check(run, at_epoch_end=True) is not None
    assert rules.check(replace(run, epoch_is_whole=False), at_epoch_end=True) is None


@pytest.mark.parametrize(("forward", "blamed"), [(1, False), (2, True)])
def test_the_forward_pass_is_blamed_for_the_majority_of_the_skips_in_question(forward, blamed):
    """Of the three that break the rule: earlier ones say nothing of them."""
    skips = [1, 2, 3, 4, 8, 9, 10]
    signs = Signs(
        SCALED, 10, 3, skip_steps=skips, forward_steps=[1, 2, 3, 4, *skips[-forward:]], scale=4.0,
        peaks=StreakCounts(3, 0, 0, 0, 0),
    )  # fmt: skip
    stop = HealthRules(LossScaleSettings(max_consecutive_skips=3), TrainerSettings(), SCALED).check(signs)
    assert stop is not None and (stop.remedy == LOSS_ADVICE) == blamed
    assert signs.forward_share(4) == (forward + 1) / 4 and signs.forward_share(6) == (forward + 3) / 6


@pytest.mark.parametrize(
    ("loss_scale", "skips", "forward"),
    [
        ({"on_overflow": "abort"}, [3, 9], [9]),  # the last alone
        ({"max_skip_rate": 0.4}, [1, 2, 3, 4, 5, 21, 23, 25, 27, 29], [25, 27, 29]),  # 5 of the last 10 steps
    ],
)
def test_which_skips_are_in_question_is_a_matter_of_the_rule(loss_scale, skips, forward):
    signs = Signs(
        SCALED, 30, 20, skip_steps=skips, forward_steps=forward, scale=4.0, peaks=StreakCounts(1, 0, 0, 0, 0),
        peak_skip_rate=0.5, window_steps=10,
    )  # fmt: skip
    off = {"max_consecutive_skips": None, "max_skip_rate": None}
    stop = HealthRules(LossScaleSettings(**{**off, **loss_scale}), TrainerSettings(), SCALED).check(signs)
    assert stop is not None and stop.remedy == LOSS_ADVICE


@pytest.mark.parametrize(("scale", "beyond"), [(2.0**-14, True), (2.0**-13, True), (2.0**-12, False)])
def test_up_to_twice_the_floor_no_scale_is_called_low_enough(scale, beyond):
    stop = check(after("xxx", scale=scale), max_consecutive_skips=3)
    assert stop is not None and (stop.remedy == FLOOR_ADVICE) == beyond


def test_a_floor_that_float32_cannot_hold_is_the_floor_all_the_same():
    """0.1 in float32 lies above 0.1."""
    low = float(np.float32(0.1))
    signs = Signs(Scaling(DynamicScale(min_scale=0.1)), 10, 1, scale=low)
    assert low > 0.1 and signs.is_near_floor(1)
    assert not replace(signs, scale=float(np.nextafter(np.float32(low), np.float32(1)))).is_near_floor(1)


@pytest.mark.parametrize(("metrics", "loss"), [({}, 0.5), ({"loss": 2.0}, 0.5), ({"val_loss": math.inf}, math.inf)])
def test_a_loss_of_the_last_epoch_that_is_not_finite_stands_for_the_loss(metrics, loss):
    ledger = Ledger(LedgerOptions(), seen=9, last_mean_loss=0.5)
    assert observe(ledger, EventTally(), SCALED, metrics).loss == loss


def test_before_the_first_step_there_is_no_scale():
    assert observe(Ledger(LedgerOptions()), EventTally(), SCALED, {}).scale is None
