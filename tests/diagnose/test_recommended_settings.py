"""What `mpt diagnose --write` recommends trains as float32 does, with the layers that are to blame named: on models of
all kinds that float16 harms.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from backends import BACKEND
from examined import NETS

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.settings import load_settings

BATCHES = 2
POINT = 0.01  # of the accuracy: 3 of 360 examples
JIT = f"trainer.jit_compile={str(BACKEND == 'jax').lower()}"  # with XLA it takes longer on TensorFlow, without on JAX
QUIET = ["trainer.save_model=false", "trainer.gradient_health_every_steps=null", "logger=quiet", "expect={}", JIT]
# by net: the layers whose outputs float16 loses
BLAMED: dict[str, dict[str, str]] = {
    "faint_convolution": {"second": "vanished"}, "large_inputs": {"large": "overflowed"},
}  # fmt: skip
NEAR = {"large_inputs": ("first",)}  # whose sums are as large


def words(net: str, *more: str) -> list[str]:
    usual = [f"backend={BACKEND}", "backend.device=cpu", f"model.builder={NETS}:{net}", "optimizer.learning_rate=3e-3"]
    return ["conf=digits_mlp", *usual, "trainer.epochs=12", "loss_scale=none", *QUIET, *more]


def accuracy(run_dir: Path, *settings: str) -> float:
    training_run.train(load_settings([*settings, f"run_dir={run_dir}"]))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["steps_seen"] == 276 and summary["skipped_steps"] <= 3, summary["explanation"]
    return float(summary["metrics"]["val_accuracy"])


def by_name(faults: dict[str, Any]) -> dict[str, Any]:
    return {layer.rpartition("/")[2]: fault for layer, fault in faults.items()}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("net", BLAMED)
def test_the_recommended_setting_trains_within_a_point_of_float32(net, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mpt_cli.diagnose.report.write_pictures", lambda *_: None)
    mine = tmp_path / "mine.yaml"
    files = ["--out", str(tmp_path / "d"), "--write", str(mine), "--batches", str(BATCHES), "--json"]
    assert main(["diagnose", *words(net, "policy=mixed_float16"), *files]) == 0
    found = json.loads(capsys.readouterr().out)
    verification = found["verification"]
    blamed = {**by_name(verification["mended"]), **by_name(verification["faults"])}
    assert BLAMED[net].items() <= blamed.items() and blamed.keys() <= {*BLAMED[net], *NEAR.get(net, ())}, blamed

    assert found["recommended_initial_scale"] < verification["highest_safe_scale"]

    reached = accuracy(tmp_path / "recommended", f"conf={mine}")
    reference = accuracy(tmp_path / "float32", *words(net, "policy=float32"))
    assert reference > 0.9 and abs(reached - reference) <= POINT
