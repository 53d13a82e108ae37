"""The benchmark scripts run; what they measure is another matter."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "expected"),
    [("startup", "mpt --help"), ("speed", "| jax | digits MLP |"), ("short_runs", "| wide MLP | float32 | jax | 1 |")],
)
def test_benchmark_runs(benchmark: str, expected: str) -> None:
    words = [sys.executable, "-m", f"benchmarks.{benchmark}", "--quick"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert "not possible" not in done.stdout
