"""The models of `benchmarks.speed`: twelve, each buildable, and what README's table makes of their figures."""

from typing import Any

import pytest

from benchmarks.speed import BACKENDS, plan
from benchmarks.speed_cell import MODELS, RECIPES, cell_settings
from benchmarks.speed_table import judge, readme_table
from mpt_cli.data.load import load_data
from mpt_cli.training.assembly import build_under_policy


def row(**changes: Any) -> dict[str, Any]:
    figures = {"over_fit": {"mpt": 1.5}, "over_bare_loop": {"mpt": 0.85}, "telemetry_share": 0.004}
    found = {"backend": "jax", "model": "LSTM", "policy": "float32", **figures, **changes}
    return {**found, "targets": judge(found)}


def test_only_recipes_have_bfloat16() -> None:
    tasks = plan(BACKENDS, list(MODELS), 4, None)
    assert len(tasks) == 24 and len(RECIPES) == 3
    for task in tasks:
        assert ("mixed_bfloat16" in task["policies"]) == (task["model"] in RECIPES)


def test_readme_has_both_backends_in_a_row_and_misses_in_bold() -> None:
    cells = [row(backend="tensorflow", telemetry_share=0.02), row(), row(policy="mixed_float16", error="no")]
    lines = readme_table({"cells": cells}).splitlines()
    assert lines[2:] == ["| LSTM, float32 | 1.50 | **0.85** | **2.0 %** | 1.50 | **0.85** | 0.4 % |",
                         "| LSTM, mixed_float16 | not measured |  |  | not possible |  |  |"]  # fmt: skip


@pytest.mark.slow
def test_models_are_built_for_their_data() -> None:
    for model in set(MODELS) - set(RECIPES):
        settings = cell_settings({"backend": "tensorflow", "model": model}, "mixed_float16")
        data = load_data(settings.data, 0)
        net = build_under_policy(settings, data)
        assert (len(data.train), net.output_shape) == (576 if model == "ResNet" else 1024, (None, 10))
        assert "float16" in {layer.compute_dtype for layer in net.layers}
