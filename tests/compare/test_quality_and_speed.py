"""The rules by which results count as equal and runs as faster."""

import json
import math

import numpy as np
import pytest

from mpt_cli.compare.comparison import StepTime, compare_quality, format_rule, speed_up, step_time
from mpt_cli.sweep.paired import POWER, PairedDifference
from mpt_cli.sweep.plan import Objective

ACCURACY, LOSS = Objective("val_accuracy", falls=False), Objective("val_loss", falls=True)


@pytest.mark.parametrize(
    ("objective", "pairs", "kind"),
    [
        (ACCURACY, [(0.98, 0.5)], "unclear"),  # one seed has no spread, whatever the difference
        (ACCURACY, [(0.98, 0.979), (0.97, 0.971), (0.99, 0.989)], "equal"),  # ± 0.0019 (90 %) about -0.0003
        (ACCURACY, [(0.98, 0.975), (0.97, 0.971), (0.99, 0.980)], "unclear"),  # -0.0047 ± 0.0093
        (ACCURACY, [(0.95, 0.91), (0.99, 0.95), (0.97, 0.931)], "worse"),  # the baseline's seeds are 4 points apart
        (ACCURACY, [(0.90, 0.97), (0.91, 0.98), (0.90, 0.971)], "better"),
        (ACCURACY, [(0.98, 0.978), (0.97, 0.968), (0.99, 0.9879)], "equal"),  # differs surely, but within a point
        (ACCURACY, [(0.98, 0.96), (0.98, 0.96)], "unclear"),  # twice the same: no known spread
        (ACCURACY, [(0.98, 0.96)] * 6, "worse"),  # 2 / 2**6 is below 5 %
        (LOSS, [(1.00, 1.01), (1.1, 1.12), (0.9, 0.905)], "equal"),  # within 5 %
        (LOSS, [(1.0, 1.1), (1.0, 1.12), (1.0, 1.11)], "worse"),
        (LOSS, [(1.0, math.nan)], "worse"),
        (LOSS, [(math.nan, 1.0)], "unknown"),
        (LOSS, [], "unknown"),
    ],
)
def test_what_counts_as_equal(objective, pairs, kind):
    assert compare_quality(objective, pairs).kind == kind


def test_the_tolerance_can_be_chosen():
    pairs = [(0.98, 0.96), (0.97, 0.951), (0.99, 0.969)]
    assert compare_quality(ACCURACY, pairs, tolerance=0.03).kind == "equal"
    assert compare_quality(ACCURACY, pairs, tolerance=0.0).kind == "worse"


def test_one_seed_says_what_it_can_not_tell():
    rule = "is shown to be within 0.0100 of the baseline; better or worse: it is shown to differ from 0"
    assert rule in format_rule(ACCURACY, [0.01], 3)
    assert format_rule(ACCURACY, [0.01], 1).endswith("One seed can't tell: --seeds 3 can.")
    assert format_rule(ACCURACY, [0.01], 2).endswith("2 seeds can't tell: --seeds 3 can.")


def shares(seeds: int, true: float, deviation: float, steps: int = 0) -> dict[str, float]:
    """Of 400 comparisons whose baselines are 3 points apart; with `steps`, each is a share of so many examples."""
    random = np.random.default_rng([seeds, round(-1e4 * true), round(1e4 * deviation), steps])
    bases = random.normal(0.9, 0.03, (400, seeds))
    others = bases + random.normal(true, deviation, bases.shape)
    if steps:
        bases, others = np.round(bases * steps) / steps, np.round(others * steps) / steps
    pairs = np.stack([bases, others], axis=-1).astype("float32").tolist()
    found = [compare_quality(ACCURACY, [(base, other) for base, other in one]).kind for one in pairs]
    assert set(found) <= {"the same", "equal", "worse", "better", "unclear"}
    return {kind: found.count(kind) / len(found) for kind in ("equal", "worse", "better", "unclear")}


MOST_WRONG = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)  # nominal, and three standard errors of the simulation


@pytest.mark.slow
def test_wrong_verdicts_are_as_rare_as_is_said():
    without_effect = shares(5, 0.0, 0.03, 360)
    assert without_effect["worse"] + without_effect["better"] <= MOST_WRONG
    assert shares(5, -0.01, 0.003, 360)["equal"] <= MOST_WRONG  # at the margin
    three_points_worse = shares(5, -0.03, 0.03, 360)
    assert three_points_worse["equal"] <= 0.02 and three_points_worse["better"] <= 0.025 + 0.01


def test_an_effect_that_is_there_is_found_with_as_many_seeds_as_are_said():
    differences = (-0.05, -0.03, -0.01, 0.0, -0.06)  # mean -0.03, deviation 0.0255
    wanted = PairedDifference(differences).seeds_to_decide(0.01)
    assert wanted == 8  # ((0.84162 + 2.3646) * 0.025495 / 0.03) ** 2 = 7.42, where 2.3646 is t of 7 at 0.975
    deviation = PairedDifference(differences).deviation
    assert shares(wanted, -0.03, deviation)["worse"] == pytest.approx(POWER, abs=0.05)


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
