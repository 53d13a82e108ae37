"""The loss scale of a run that is gone on with: what its settings say now, or what it had."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from test_health_runs import TINY, objects, train

from mpt_cli import training_run
from mpt_cli.precision import DynamicScale, LossScaleOptimizer
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import SCALE_RULES, LossScaleSettings
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore
from mpt_cli.training.session import restore_scale, scale_at

FIXED = ["loss_scale=fixed", "loss_scale.initial_scale=2**15"]


def _rule(mode: str, loss_scale: LossScaleSettings):
    """The mode, with those of the numbers that it has."""
    rule = SCALE_RULES[mode]
    return rule(**{name: getattr(loss_scale, name) for name in rule.key_names() if hasattr(loss_scale, name)})


def _parts(mode: str, loss_scale: LossScaleSettings, optimizer: Any = None):
    settings = Settings(loss_scale=loss_scale)
    return SimpleNamespace(settings=settings, scaling=Scaling(_rule(mode, loss_scale)), optimizer=optimizer)


def _checkpoint(mode: str = "dynamic", scale: float = 2.0**10):
    return Checkpoint(40, {"scale/scale": np.float32(scale)}, {"scaling_mode": mode})


def test_the_scale_at_a_checkpoint():
    for mode, before, expected in (
        ("fixed", "fixed", 2.0**7),
        ("fixed", "dynamic", 2.0**7),
        ("dynamic", "dynamic", 2.0**10),
        ("dynamic", "fixed", 2.0**7),
        ("logmax", "logmax", 2.0**10),
        ("none", "dynamic", 1.0),
    ):
        parts = _parts(mode, LossScaleSettings(initial_scale=2.0**7))
        assert scale_at(parts, _checkpoint(before)) == expected, (mode, before)


def test_new_limits_hold_at_once():
    for limits in ({"max_scale": 2.0**9}, {"min_scale": 2.0**11}):
        (scale,) = limits.values()
        parts = _parts("dynamic", LossScaleSettings(initial_scale=scale, **limits))
        assert scale_at(parts, _checkpoint()) == scale


def test_the_scale_is_set_and_new_growth_steps_act():
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(), rule=DynamicScale(growth_steps=7))
    optimizer.build([keras.Variable([1.0])])
    parts = _parts("dynamic", LossScaleSettings(growth_steps=7), optimizer)
    assert restore_scale(parts, _checkpoint()) == 2.0**10 == float(optimizer.loss_scale)
    assert optimizer.dynamic_growth_steps == 7


@pytest.mark.long
def test_a_lower_fixed_scale_acts_when_the_run_goes_on(tmp_path):
    _, run_dir = train(tmp_path, *FIXED, "trainer.max_steps=30")
    lower = [*TINY, "policy=mixed_float16", *FIXED, "loss_scale.initial_scale=2**7", f"resume={run_dir}"]
    summary = training_run.train(load_settings(lower))
    assert (summary.steps_seen, summary.applied_steps, summary.final_loss_scale) == (80, 80, 128.0)
    lines = objects(run_dir / "metrics.jsonl")
    assert {line["loss_scale"] for line in lines if line["step"] <= 30} == {32768.0}
    assert {line["loss_scale"] for line in lines if line["step"] > 30} == {128.0}
    log = (run_dir / "console.log").read_text()
    assert "fixed at 2**7" in log and "changed since: loss_scale.initial_scale was 32768.0, is 128.0" in log
    newest = CheckpointStore(run_dir / "checkpoints").newest()
    assert newest is not None and newest.arrays["scale/scale"] == 128.0
