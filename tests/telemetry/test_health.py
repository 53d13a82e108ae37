import math

import numpy as np
import pytest

from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.schema import LossScaleSettings, PolicySettings, Settings, TrainerSettings
from mpt_cli.telemetry.health import CLIP, DYNAMIC, WIDER, HealthRules, Stop
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions, StepRecords
from mpt_cli.telemetry.records import GradientSample

NAN = math.nan
LOSS_ADVICE = (
    "The loss itself was not finite, which no scale can cause or cure: look for nan or inf in the data, lower "
    "optimizer.learning_rate, or keep a layer that overflows in float32 (policy.overrides)."
)
FLOOR_ADVICE = (
    "No scale is low enough, so scaling is not the cause: look for nan in the model or data, lower "
    "optimizer.learning_rate, or run with policy=mixed_bfloat16 or policy=float32 to compare."
)
LOWER_ADVICE = "Lower loss_scale.initial_scale, or run with policy=mixed_bfloat16 or policy=float32 to compare."


def after(
    *calls: str, scale: float = 4.0, loss: float = 0.5, window: int = 500, floor: float = 2.0**-14
) -> Ledger:
    """A ledger after calls of these steps (. applied, x skipped, 0 applied with all-zero gradients), all at one
    scale and with one loss."""
    ledger = Ledger(LedgerOptions(min_scale=floor), window_steps=window)
    for marks in calls:
        floats = np.array([[loss, scale, scale, 0.1]] * len(marks), np.float32)
        ints = np.array([[mark != "x", 0, 0, 0, 0, mark == "0"] for mark in marks], np.int32)
        ledger.absorb(StepRecords(floats, ints, {}), 1)
    return ledger


def check(ledger: Ledger, trainer: TrainerSettings | None = None, **loss_scale: object) -> Stop | None:
    return HealthRules(LossScaleSettings(**loss_scale), trainer or TrainerSettings()).check(ledger)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("scale", "words"), [(2.0**16, "256"), (2.0**40, "2**32"), (1000.0, "3.90625")])
def test_a_fixed_scale_that_is_too_high_names_a_lower_one(scale, words):
    stop = check(after("xxx", scale=scale), mode="fixed", max_consecutive_skips=3)
    assert stop is not None and stop.remedy == (
        f"The fixed scale is too high for this model: try loss_scale.initial_scale={words} or loss_scale=dynamic."
    )


def test_skips_at_the_floor():
    ledger = after("xxxx", scale=0.5, floor=0.5)
    stop = check(ledger, min_scale=0.5, max_skips_at_floor=4)
    assert str(stop) == (
        "4 steps were skipped though the loss scale is at its floor, 2^-1 (rule loss_scale.max_skips_at_floor). "
        + FLOOR_ADVICE
    )
    assert check(ledger, min_scale=0.5, max_skips_at_floor=5) is None
    assert check(ledger, min_scale=0.5, max_skips_at_floor=None) is None
    assert check(ledger, mode="fixed", min_scale=0.5, max_skips_at_floor=4) is None


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
        "optimizer.learning_rate, or clip with optimizer.global_clipnorm=1.0; in float16 without loss scaling set "
        "loss_scale=dynamic."
    )
    assert check(after("..", loss=NAN), TrainerSettings(max_nonfinite_losses=3)) is None
    assert check(after("xxx", loss=NAN), TrainerSettings(max_nonfinite_losses=3)) is None


def test_zero_gradients():
    stop = check(after("00000"), TrainerSettings(max_zero_gradients=5))
    assert str(stop) == (
        "every gradient was exactly 0 in 5 applied steps in a row (rule trainer.max_zero_gradients). No loss scale "
        "brings them back: look for a loss that does not depend on the weights, for units that are dead (a lower "
        "optimizer.learning_rate), or for targets that are met already."
    )
    assert check(after("00x000.00000"), TrainerSettings(max_zero_gradients=5)).key == "trainer.max_zero_gradients"
    assert check(after("00.000"), TrainerSettings(max_zero_gradients=5)) is None
    assert check(after("00000"), TrainerSettings(max_zero_gradients=None)) is None


@pytest.mark.parametrize(
    ("mode", "words"), [("none", "loss_scale=dynamic."), ("fixed", "raise loss_scale.initial_scale.")]
)
def test_zero_gradients_that_a_higher_scale_would_keep(mode, words):
    ledger = after("000")
    ledger.sample = GradientSample(3, 0.0, 0.25, 0.0, None)
    stop = check(ledger, TrainerSettings(max_zero_gradients=3), mode=mode)
    assert stop is not None
    assert stop.remedy == f"float16 flushed them to zero, a higher loss scale keeps them: {words}"
    ledger.sample = GradientSample(2, 0.0, 0.25, 0.0, None)  # of another time
    assert "No loss scale brings them back" in check(ledger, TrainerSettings(max_zero_gradients=3), mode=mode).remedy


def test_skips_at_a_floor_that_was_left_within_the_call_count():
    ledger = Ledger(LedgerOptions(min_scale=2.0))
    scales = [2.0] * 6 + [4.0, 4.0, 2.0]
    finite = [1, 0, 0, 0, 1, 1, 1, 1, 0]
    floats = np.array([[0.5, scale, scale, 0.1] for scale in scales], np.float32)
    ledger.absorb(StepRecords(floats, np.array([[flag, 0, 0, 0, 0, 0] for flag in finite], np.int32), {}), 1)
    assert (ledger.peak_floor_skips, ledger.floor_skips) == (3, 1)
    stop = check(ledger, min_scale=2.0, max_skips_at_floor=3)
    assert stop is not None and stop.evidence == "3 steps were skipped though the loss scale is at its floor, 2"


def test_an_idle_epoch():
    health = HealthRules(LossScaleSettings(), TrainerSettings())
    assert str(health.check_epoch(after("x" * 29))) == (
        "an epoch ended in which every step was skipped, the last at loss scale 4 "
        "(rule loss_scale.stop_on_idle_epoch). " + LOWER_ADVICE
    )
    assert health.check_epoch(after("x.x")) is None
    assert (
        HealthRules(LossScaleSettings(stop_on_idle_epoch=False), TrainerSettings()).check_epoch(after("x" * 29)) is None
    )


def test_an_idle_epoch_while_the_scale_still_settles_is_no_reason_to_stop():
    assert HealthRules(LossScaleSettings(), TrainerSettings()).check_epoch(after("x" * 28)) is None
    assert HealthRules(LossScaleSettings(min_scale=4.0), TrainerSettings()).check_epoch(after("x")) is not None
    assert HealthRules(LossScaleSettings(mode="fixed"), TrainerSettings()).check_epoch(after("x")) is not None


def test_weights_that_are_not_finite():
    assert str(HealthRules(LossScaleSettings(), TrainerSettings()).check_weights(False)) == (
        "the weights hold inf or nan (rule trainer.stop_on_nonfinite_weights). Lower optimizer.learning_rate, clip "
        "with optimizer.global_clipnorm=1.0, or use another optimizer."
    )
    assert HealthRules(LossScaleSettings(), TrainerSettings()).check_weights(True) is None
    assert (
        HealthRules(LossScaleSettings(), TrainerSettings(stop_on_nonfinite_weights=False)).check_weights(False) is None
    )


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
    scale, policy = LossScaleSettings(mode="fixed", on_overflow="abort"), PolicySettings("mixed_float16", float8=True)
    conf = tmp_path / "config.yaml"
    conf.write_text(resolved_yaml(Settings(loss_scale=scale, policy=policy)))
    changed = load_settings([f"conf={conf}", DYNAMIC, WIDER, CLIP])
    assert changed.loss_scale == LossScaleSettings(mode="dynamic") and changed.policy == PolicySettings(
        "mixed_bfloat16"
    )
    assert changed.optimizer.global_clipnorm == 1.0


@pytest.mark.parametrize(("mode", "change"), [("none", "loss_scale=dynamic"), ("fixed", "")])
def test_the_change_against_flushed_gradients(mode, change):
    ledger = after("000")
    ledger.sample = GradientSample(3, 0.0, 0.25, 0.0, None)
    assert check(ledger, TrainerSettings(max_zero_gradients=3), mode=mode).change == change
    assert check(after("000"), TrainerSettings(max_zero_gradients=3), mode=mode).change == ""
