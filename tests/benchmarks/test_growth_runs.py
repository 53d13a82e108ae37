"""`benchmarks.growth` runs for a moment, and its slopes are those of lines."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.growing.fits import end_exponent, exponent, slope

ROOT = Path(__file__).parents[2]


def test_slope_is_that_of_the_line() -> None:
    assert slope([0, 10, 20], [7, 12, 17]) == pytest.approx(0.5)


def test_exponent_is_the_power() -> None:
    assert exponent([1, 10, 100], [2, 20 * 10**0.5, 2000]) == pytest.approx(1.5)


def test_a_single_size_has_no_exponent() -> None:
    assert exponent([3], [4]) is None


def test_small_sizes_with_a_fixed_cost_are_left_out_of_the_exponent() -> None:
    points = [{"value": value, "step_seconds": max(100, value)} for value in (1, 10, 100, 1000, 10000)]

    assert end_exponent(points, "step_seconds") == pytest.approx(1.0)


@pytest.mark.long
@pytest.mark.slow
def test_quick_run_measures_data_variables_and_a_long_run() -> None:
    words = ["-m", "benchmarks.growth", "--quick", "--sections", "data_size,variables,run"]

    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "not reached" not in done.stdout
    assert "| jax | 30 |" in done.stdout
    assert "jax: 20,000 steps of a model" in done.stdout
