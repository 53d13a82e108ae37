"""The benchmark scripts run; what they measure is another matter."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "benchmarks.startup", "--quick"], "mpt --help"),
        (["-m", "benchmarks.speed", "--quick"], "| jax | digits MLP |"),
        (["-m", "benchmarks.sweep", "--quick"], "20 jobs of 0.1 s, 4 at a time"),
        (["-m", "benchmarks.vectorized", "--quick"], "of the CPU time target 0.1"),
        (["-m", "benchmarks.telemetry", "--quick"], "| jax | digits MLP |"),
        (["-m", "benchmarks.compile_time", "--quick"], "| variables | many | jax, XLA | 10 |"),
        (["-m", "benchmarks.lost_updates", "--quick"], "| bfloat16 | 0.01 | stochastically |"),
        (["-m", "benchmarks.short_runs", "--quick"], "| wide MLP | float32 | jax | 1 |"),
    ],
    ids=["startup", "speed", "sweep", "vectorized", "telemetry", "compile_time", "lost_updates", "short_runs"],
)
def test_benchmark_runs(words: list[str], expected: str) -> None:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert "not possible" not in done.stdout
