"""What `mpt diagnose` recommends trains as float32 does, with the layers that are to blame named: on a model
that float16 harms.
"""

import json
from pathlib import Path

import pytest
import yaml
from backends import BACKEND
from examined import NETS

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.settings.load import load_settings

JIT = f"trainer.jit_compile={str(BACKEND == 'jax').lower()}"  # with XLA it takes longer on TensorFlow, without on JAX
QUIET = ["trainer.save_model=false", "trainer.gradient_health_every_steps=null", "logger=quiet", "expect={}", JIT]


def accuracy(run_dir: Path, *settings: str):
    training_run.train(load_settings([*settings, f"run_dir={run_dir}"]))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["steps_seen"] == 276 and summary["skipped_steps"] <= 3, summary["explanation"]
    return float(summary["metrics"]["val_accuracy"])


@pytest.mark.long
def test_the_recommended_setting_trains_within_a_point_of_float32(tmp_path, capsys):
    words = [
        "conf=digits_mlp",
        f"backend={BACKEND}",
        "backend.device=cpu",
        f"model.builder={NETS}:faint_convolution",
        "optimizer.learning_rate=3e-3",
        "trainer.epochs=12",
        *QUIET,
    ]
    examined = [*words, "policy=mixed_float16", "loss_scale=none"]
    assert main(["diagnose", *examined, "--out", str(tmp_path / "d"), "--batches", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recommended_initial_scale"] < found["verification"]["highest_safe_scale"]

    advice = yaml.safe_load("\n".join(found["config"]))
    assert advice["policy"] == {"overrides": {"second": "float32"}} and advice["loss_scale"]["mode"] == "dynamic"
    scale = advice["loss_scale"]["initial_scale"]
    advised = ["policy.overrides={second: float32}", "loss_scale=dynamic", f"loss_scale.initial_scale={scale}"]
    reached = accuracy(tmp_path / "recommended", *words, "policy=mixed_float16", *advised)
    reference = accuracy(tmp_path / "float32", *words, "policy=float32")
    assert reference > 0.9 and abs(reached - reference) <= 0.01  # 3 of 360 examples
