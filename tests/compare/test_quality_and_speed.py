"""The rules by which results count as equal and runs as faster."""

import json
import math

import pytest

from mpt_cli.compare.results import StepTime, compare_quality, format_rule, speed_up, step_time
from mpt_cli.sweep.plan import Objective

ACCURACY, LOSS = Objective("val_accuracy", falls=False), Objective("val_loss", falls=True)


@pytest.mark.parametrize(
    ("objective", "pairs", "kind"),
    [
        (ACCURACY, [(0.98, 0.971)], "equal"),  # within a percentage point
        (ACCURACY, [(0.98, 0.96)], "unclear"),  # two points, of one seed
        (ACCURACY, [(0.98, 0.92)], "worse"),  # six
        (ACCURACY, [(0.90, 0.97)], "better"),
        (ACCURACY, [(0.98, 0.96), (0.98, 0.96)], "worse"),
        (ACCURACY, [(0.95, 0.96), (0.99, 0.94)], "equal"),  # the baseline's own seeds are 0.04 apart
        (LOSS, [(1.00, 1.04)], "equal"),  # within 5 %
        (LOSS, [(1.0, 1.1), (1.0, 1.1)], "worse"),
        (LOSS, [(1.0, 0.9), (1.0, 0.9)], "better"),
        (LOSS, [(1.0, math.nan)], "worse"),
        (LOSS, [(math.nan, 1.0)], "unknown"),
        (LOSS, [], "unknown"),
    ],
)
def test_what_counts_as_equal(objective, pairs, kind):
    assert compare_quality(objective, pairs).kind == kind


def test_the_tolerance_can_be_chosen():
    assert compare_quality(ACCURACY, [(0.98, 0.96)], tolerance=0.03).kind == "equal"
    assert compare_quality(LOSS, [(1.0, 1.001)], tolerance=0.0).kind == "worse"


def test_one_seed_says_what_it_can_not_tell():
    assert format_rule(ACCURACY, [0.01], 1) == (
        "Equal quality: val_accuracy within 0.0100 of the baseline. One seed can't tell the effect of a precision from "
        "chance: --seeds 3 can.")  # fmt: skip
    assert "in the mean over 3 seeds" in format_rule(ACCURACY, [0.01], 3)


def test_the_step_time_is_the_median_of_the_logged_speeds(tmp_path):
    rates = [None, 100.0, 100.0, 1.0, 100.0, 200.0, 100.0]
    lines = [{"step": step, "examples_per_second": rate} for step, rate in enumerate(rates)]
    lines.append({"step": 9, "examples_per_second": 7.0, "epoch_end": True})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = step_time(tmp_path / "metrics.jsonl", 50.0, 32)
    assert found is not None and found.seconds == 0.32
    assert step_time(tmp_path / "none", 50.0, 32) == StepTime(0.64, 0.0)
    assert step_time(tmp_path / "none", None, 32) is None


@pytest.mark.parametrize(
    ("factors", "spread", "is_faster", "is_slower"),
    [
        ([1.08], 0.0, False, False),  # one round: up to 10 % may be chance
        ([1.2], 0.0, True, False),
        ([1.2], 0.15, False, False),  # the speed moved within the runs by 0.15 of itself in both
        ([0.5], 0.0, False, True),
        ([1.08, 1.07, 1.09], 0.0, True, False),  # three rounds agree
        ([0.9, 1.6, 1.4], 0.0, False, False),  # one round says otherwise
    ],
)
def test_when_a_run_is_faster(factors, spread, is_faster, is_slower):
    found = speed_up([(StepTime(factor, spread), StepTime(1.0, spread)) for factor in factors])
    assert found is not None and (found.is_faster, found.is_slower) == (is_faster, is_slower)


def test_nothing_timed_is_no_speed():
    assert speed_up([]) is None
