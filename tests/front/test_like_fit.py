"""Models and inputs of many kinds get from `mpt.fit` what they get from Keras's `fit`."""

import json
from pathlib import Path

import pytest
from backends import QUICKLY_COMPILED
from command import run_program

PROGRAM = str(Path(__file__).with_name("like_fit.py"))
# the sums of a step may be in another order: some roundings of float32 (2^-23) in each of 10 steps
TOLERANCE = 10 * 2.0**-20


def check(tmp_path: Path, backend: str, *names: str) -> list[str]:
    done = run_program(PROGRAM, *names, backend=backend, cwd=tmp_path, timeout=500.0, **QUICKLY_COMPILED)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for kind in found:
        float32, mixed = kind["counts"]
        assert kind["difference"] <= TOLERANCE, kind
        assert float32[0] >= 8 and float32[1] == 0 and mixed[0] >= 6 and sum(mixed) == float32[0], kind
    return [kind["name"] for kind in found]


@pytest.mark.slow
def test_inputs_that_are_ragged_and_sparse_and_losses_of_layers(tmp_path: Path) -> None:
    names = "ragged", "csr", "activity"
    assert check(tmp_path, "tensorflow", *names) == [*names]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_all_kinds(tmp_path: Path, backend: str) -> None:
    assert len(check(tmp_path, backend)) >= 11
