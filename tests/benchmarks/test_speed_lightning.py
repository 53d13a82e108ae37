"""PyTorch Lightning in `benchmarks.speed`: what its process is told, and how its figures are shown."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.beside_lightning import lightning_task, lightning_versions, measure_lightning
from benchmarks.speed import child
from benchmarks.speed_table import beside_lightning

POLICIES = ["float32", "mixed_bfloat16"]
PARAMETERS = {"digits MLP": 301_066, "digits CNN": 99_178, "character transformer": 103_424}


def task_of(model: str, text: Path) -> dict[str, Any]:
    text.write_text("abcdefghij" * 2000)
    common = {"policies": POLICIES, "turn_seconds": 0.0, "repeats": 1, "text": str(text)}
    return {"backend": "jax", "model": model, **common}


def rows_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"policy": policy, "parameters": 7, "steps_per_second": {"mpt": 300.0}} for policy in task["policies"]]


def test_process_is_told_the_recipe_and_finds_its_arrays(tmp_path: Path) -> None:
    told = lightning_task(task_of("digits CNN", tmp_path / "text"), 7, tmp_path / "arrays.npz")

    assert told["model"] == {"name": "cnn", "filters": [32, 64], "hidden_units": 128, "dropout": 0.4, "weights": None,
                             "skip_mismatch": False, "freeze": [], "unfreeze": []}  # fmt: skip
    assert (told["num_classes"], told["batch_size"], told["learning_rate"]) == (10, 64, 1e-3)
    assert told["precisions"] == {"float32": "32-true", "mixed_bfloat16": "bf16-mixed"}
    with np.load(told["arrays"]) as arrays:
        assert arrays["x"].shape == (900, 8, 8, 1)
        assert arrays["y"].shape == (900,)


def test_column_is_the_ratio_or_says_why_there_is_none(tmp_path: Path) -> None:
    task = task_of("digits MLP", tmp_path / "text")
    rows = rows_of(task)

    found = {"float32": {"steps_per_second": 120.0}, "mixed_bfloat16": {"error": "ValueError: not on this device"}}
    measure_lightning(rows, task, lambda _: found)

    assert [beside_lightning(row) for row in rows] == ["2.50", "not possible: ValueError: not on this device"]


def test_a_process_that_failed_says_so_under_every_policy(tmp_path: Path) -> None:
    task = task_of("digits MLP", tmp_path / "text")
    rows = rows_of(task)

    measure_lightning(rows, task, lambda _: {"error": "no output"})

    assert [beside_lightning(row) for row in rows] == ["not possible: no output"] * 2


def test_without_lightning_the_column_says_so() -> None:
    assert beside_lightning({"steps_per_second": {"mpt": 300.0}}) == "not installed"


@pytest.mark.parametrize(
    ("installed", "expected"),
    [({}, {}), ({"torch": "2.6"}, {}), ({"lightning": "2.5", "pytorch_lightning": "2.5"}, {}),
     ({"torch": "2.6", "lightning": "2.5", "pytorch_lightning": "2.5"}, {"torch": "2.6", "lightning": "2.5"}),
     ({"torch": "2.6", "pytorch_lightning": "2.5"}, {"torch": "2.6", "pytorch_lightning": "2.5"})],
)  # fmt: skip
def test_lightning_counts_as_installed_only_beside_torch(
    installed: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(installed)}'\n")
    python.chmod(0o755)

    assert lightning_versions(str(python)) == expected


def test_an_interpreter_that_does_not_run_ends_the_benchmark() -> None:
    with pytest.raises(FileNotFoundError, match="no/such/python"):
        lightning_versions("no/such/python")


@pytest.mark.slow
@pytest.mark.parametrize("model", PARAMETERS)
@pytest.mark.skipif(not lightning_versions(sys.executable), reason="torch and lightning are not installed")
def test_lightning_trains_the_model_under_each_precision(model: str, tmp_path: Path) -> None:
    told = lightning_task(task_of(model, tmp_path / "text"), PARAMETERS[model], tmp_path / "arrays.npz")

    found = child({**told, "seconds": 1.0}, "benchmarks.lightning_cell")

    for policy in POLICIES:
        assert found[policy]["steps_per_second"] > 0
        assert found[policy]["last_loss"] < found[policy]["first_loss"]
