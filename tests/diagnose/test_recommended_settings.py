"""What `mpt diagnose --write` recommends trains as float32 does, with the very highest scale known and the layers that
are to blame named: on models of all kinds that float16 harms.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest
from backends import BACKEND
from examined import NETS, PLATFORM

from mpt_cli import job
from mpt_cli.cli import main
from mpt_cli.data.load import load_data
from mpt_cli.diagnose.examination import RunStepper
from mpt_cli.settings import load_settings
from mpt_cli.settings.loss_scale import LossScaleSettings
from mpt_cli.settings.schema import Settings
from mpt_cli.training.assembly import assemble
from mpt_cli.training.program import SettingsProgram

BATCHES = 2
POINT = 0.01  # of the accuracy: 3 of 360 examples
JIT = f"trainer.jit_compile={str(BACKEND == 'jax').lower()}"  # with XLA it takes longer on TensorFlow, without on JAX
QUIET = ["trainer.save_model=false", "logger=quiet", "expect={}", JIT]
# by net: the layers whose outputs float16 loses, and those that get no gradient in any dtype
BLAMED: dict[str, dict[str, str]] = {
    "faint": {"faint": "vanished"}, "faint_convolution": {"second": "vanished"},
    "large_inputs": {"large": "overflowed"}, "half_dead": {"dead": "dead"}, "recurrent": {}, "normalised": {},
}  # fmt: skip
NEAR = {"large_inputs": ("first",)}  # whose sums are as large


def words(net: str, *more: str) -> list[str]:
    usual = [f"backend={BACKEND}", "backend.device=cpu", f"model.builder={NETS}:{net}", "optimizer.learning_rate=3e-3"]
    return ["conf=digits_mlp", *usual, "trainer.epochs=12", "loss_scale=none", *QUIET, *more]


def accuracy(run_dir: Path, *settings: str) -> float:
    job.train(load_settings([*settings, f"run_dir={run_dir}"]))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["steps_seen"] == 276 and summary["skipped_steps"] <= 3, summary["explanation"]
    return float(summary["metrics"]["val_accuracy"])


def skipped_steps(settings: Settings, power: int) -> int:
    """Of real training steps at a fixed scale, with weights that stay where they are."""
    settings = replace(settings, loss_scale=LossScaleSettings(mode="fixed", initial_scale=2.0**power),
                       optimizer=replace(settings.optimizer, learning_rate=1e-30),
                       trainer=replace(settings.trainer, jit_compile=False))  # fmt: skip  # XLA may keep float32
    keras.utils.set_random_seed(0)
    parts = assemble(SettingsProgram(settings), PLATFORM, load_data(settings.data, 0))
    RunStepper(parts).train_to(BATCHES)
    return int(parts.optimizer.skipped_steps)


def by_name(faults: dict[str, Any]) -> dict[str, Any]:
    return {layer.rpartition("/")[2]: fault for layer, fault in faults.items()}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("net", BLAMED)
def test_the_recommended_setting_trains_within_a_point_of_float32(net, tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    files = ["--out", str(tmp_path / "d"), "--write", str(mine), "--batches", str(BATCHES), "--json"]
    assert main(["diagnose", *words(net, "policy=mixed_float16"), *files]) == 0
    found = json.loads(capsys.readouterr().out)
    verification = found["verification"]
    blamed = {**by_name(verification["mended"]), **by_name(verification["faults"])}
    assert BLAMED[net].items() <= blamed.items() and blamed.keys() <= {*BLAMED[net], *NEAR.get(net, ())}, blamed

    recommended = load_settings([f"conf={mine}"])
    highest = verification["highest_safe_scale"].as_integer_ratio()[0].bit_length() - 1
    assert [skipped_steps(recommended, power) > 0 for power in (highest, highest + 1)] == [False, True]
    assert found["recommended_initial_scale"] < 2.0**highest

    reached = accuracy(tmp_path / "recommended", f"conf={mine}")
    reference = accuracy(tmp_path / "float32", *words(net, "policy=float32"))
    assert reference > 0.9 and abs(reached - reference) <= POINT
