"""The rules by which results count as equal and runs as faster; runs that agree are no proof."""

import math

import pytest

from mpt_cli.compare.comparison import compare_quality, compare_speed
from mpt_cli.sweep.job_list import Objective

ACCURACY, LOSS = Objective("val_accuracy", falls=False), Objective("val_loss", falls=True)


@pytest.mark.parametrize(
    ("objective", "pairs", "kind"),
    [
        (ACCURACY, [(0.98, 0.975), (0.97, 0.97), (0.99, 0.995)], "unclear"),  # 0 ± 0.0124; ± 0.0084 of 90 %
        (ACCURACY, [(0.95, 0.91), (0.99, 0.95), (0.97, 0.931)], "worse"),  # the baseline's seeds are 4 points apart
        (ACCURACY, [(0.90, 0.97), (0.91, 0.98), (0.90, 0.971)], "better"),
        (ACCURACY, [(0.98, 0.978), (0.97, 0.968), (0.99, 0.9879)], "equal"),  # differs surely, but within a point
        (LOSS, [(0.5, 0.5), (0.25, 0.25000001)], "the same"),  # to the digits of float32
        (LOSS, [(1.0, 0.9), (1.0, 1.9)], "unclear"),  # two seeds show nothing but sameness
        (LOSS, [(1.00, 1.01), (1.1, 1.12), (0.9, 0.905)], "equal"),  # within 5 %
        (LOSS, [(0.02, 0.021), (0.5, 0.498), (-0.4, -0.401)], "equal"),  # within the deviation of the seeds, 0.45
        (
            LOSS,
            [(-1999.9, -1999.893), (-1999.8, -1999.792), (-2000.0, -1999.993)],
            "equal",
        ),  # within 0.1, their deviation
        (LOSS, [(-100.0, -96.0), (-101.0, -97.1), (-99.0, -95.0)], "worse"),  # within 5 %, but by four deviations
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
    shifted = [(base - 2000, other - 2000) for base, other in [(0.1, 0.107), (0.2, 0.208), (0.3, 0.3071)]]
    assert compare_quality(LOSS, shifted, tolerance=0.001).kind == "worse"  # a constant in the loss hides nothing
    assert compare_quality(LOSS, [(value, value - 1e-4) for value in (800.0, 801.0, 802.0)]).interval is None


@pytest.mark.parametrize(
    ("factors", "kind"),
    [
        ([1.04, 1.03, 1.035], "equal"),  # within 5 %
        ([0.5, 0.52, 0.51], "worse"),
        ([1.08, 1.07, 1.09], "better"),  # three rounds agree
    ],
)
def test_when_a_run_is_faster(factors, kind):
    assert compare_speed([(factor, 1.0) for factor in factors]).kind == kind
