"""`benchmarks.gpu` runs on the CPU with tiny sizes: processes, contenders, checks and tables."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
def test_dry_run_measures_both_models_and_passes_its_checks() -> None:
    words = ["-m", "benchmarks.gpu", "--dry-run", "--policies", "mixed_float16,float32", "--minutes", "5"]

    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=330)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum("| holds |" in line for line in lines) == 4
    # JAX has no float16 attention on a CPU; everything else is measured
    impossible = {line.split(" | ")[0] for line in lines if "not possible" in line}
    assert impossible <= {"| transformer"}
    assert any(line.startswith("| resnet50 | jax | mixed_float16 | dynamic |") for line in lines)
    assert any(line.startswith("| transformer | jax | float32 | none |") for line in lines)
