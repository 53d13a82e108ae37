"""The benchmark scripts run; what they measure is another matter."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("startup --quick", ["mpt --help"]),
        ("speed --quick", ["| jax | digits MLP |"]),
        ("short_runs --quick", ["| wide MLP | float32 | jax | 1 |"]),
        ("growth --quick --sections data_size,variables,run", ["| jax | 30 |", "jax: 20,000 steps of a model"]),
        (
            "gpu --dry-run --policies mixed_float16,float32 --minutes 60",
            ["| resnet50 | jax | mixed_float16 | dynamic |", "| transformer | jax | float32 | none |", "| holds |"],
        ),
    ],
)
def test_benchmark_runs(words, expected):
    done = subprocess.run(
        [sys.executable, "-m", *f"benchmarks.{words}".split()], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(row in done.stdout for row in expected) and "not reached" not in done.stdout
    # JAX has no float16 attention on a CPU; everything else is measured
    impossible = {line.split(" | ")[0] for line in done.stdout.splitlines() if "not possible" in line}
    assert impossible <= {"| transformer"}
