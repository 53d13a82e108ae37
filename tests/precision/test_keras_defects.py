"""Every known defect of Keras's own loss scaling: its class shows it, ours does not. One row, one defect.

`keras_defects.py` measures; its functions say what exactly is done. One process runs them all.
"""

import json
from pathlib import Path

import pytest
from backends import only_on
from preloaded import run_program

ROOT = Path(__file__).parents[2]
TABLE = {  # what is done: (Keras 3.15's own class, mpt)
    "two replicas, nan on the second": ("weights nan and nan", "weights 1 and 1"),
    "BatchNormalization after one overflow": ("evaluate nan", "evaluate finite"),
    "metrics of an epoch with one overflow": ("loss nan", "loss finite"),
    "142 overflows, then a clean step": ("weight nan, scale 0", "weight 0.9, scale 6.10352e-05"),
    "200 zero gradients, then 10 clean steps": ("weight 1, scale inf", "weight 0.875, scale 4.29497e+09"),
    "fixed scale (`loss_scale_factor`), gradient inf": ("weight -inf", "weight 1"),
    "fixed scale after compile": ("loss times 32768", "loss times 8"),
    "every step of fit skipped": ("loss nan, no count", "loss nan, 12 of 12 skipped"),
    "float16 models noticed": ("0 of 4", "4 of 4"),
    "loaded under another policy": ("Adam at iteration 0", "LossScaleOptimizer at iteration 2"),
    "TerminateOnNaN with one overflow": ("1 of 3 epochs", "3 of 3 epochs"),
    "steps counted, steps_per_execution=4": ("3 of 12", "12 of 12"),
    "bad arguments refused": ("0 of 6", "6 of 6"),
    "wrapper around a wrapper": ("weight 0.99998", "refused"),
    "float16 softmax head, gradient -0.9933": ("nan", "-0.9933"),
    "Adam on bfloat16 weights": ("moved 0", "stopped before training"),
    "inputs beyond 65504": ("output inf", "stopped before training"),
}


@pytest.fixture(scope="module")
def measured(made_once) -> dict[str, list[str]]:
    return made_once("defects", measure)


def measure() -> dict[str, list[str]]:
    program = str(Path(__file__).with_name("keras_defects.py"))
    done = run_program(program, "--json", backend="tensorflow", cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@only_on("tensorflow")
@pytest.mark.parametrize("defect", TABLE)
def test_keras_shows_the_defect_and_mpt_does_not(measured, defect):
    assert tuple(measured[defect]) == TABLE[defect]


@pytest.mark.long
@only_on("tensorflow")
def test_the_table_has_every_row_that_is_measured(measured):
    assert list(measured) == list(TABLE)
