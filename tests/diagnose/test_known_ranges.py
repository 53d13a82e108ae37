"""The claim: on nets with known gradient ranges the prediction is what real float16 steps do, within one doubling."""

from dataclasses import replace

import numpy as np
import pytest
from examined import PLATFORM, diagnosed, net_settings

from mpt_cli.data.sources import load_data
from mpt_cli.diagnose.diagnosis import Diagnosis
from mpt_cli.diagnose.float32_examination import RunStepper
from mpt_cli.precision.gradients.exponent_counts import INFS, largest_exponent, share_flushed
from mpt_cli.settings.model_data_optimizer_keys import LossScaleSettings
from mpt_cli.training.build_run_parts import assemble
from mpt_cli.training.run_from_settings import RunDefinition

POWER = -15  # gradients below the gate lie 2**POWER under those above it
BATCHES = 3


@pytest.fixture(scope="module")
def found():
    return diagnosed("subclassed", batches=BATCHES)


def layer(found: Diagnosis, name: str):
    gradients = next(row for row in found.layers if row.name.rpartition("/")[2] == name).activations
    assert gradients is not None
    return gradients


def predicted(found: Diagnosis, scale: float):
    bound = [g for row in found.layers for g in row.gradients if g.is_float16]
    sizes = [g.counts[:INFS].sum() for g in bound]
    return float(np.dot([share_flushed(g.counts, scale) for g in bound], sizes) / sum(sizes))


@pytest.mark.slow
def test_flushed_shares_are_met_within_a_doubling_and_ranges_differ_by_the_gate(found):
    above, below = (largest_exponent(layer(found, name).counts) for name in ("convolution", "gate"))
    assert above == below + POWER
    trials = [trial for trial in found.trials if trial.flushed is not None]
    assert trials[0].scale == 1.0 and predicted(found, 1.0) > 0.001
    for trial in trials:
        within = predicted(found, 2 * trial.scale), predicted(found, trial.scale / 2)
        # what float16 rounds otherwise in the forward pass moves single values around the zero of a ReLU
        assert within[0] - 0.002 <= trial.flushed <= within[1] + 0.002


@pytest.mark.slow
def test_the_highest_safe_scale_is_met_by_real_training_steps(found):
    assert found.window is not None
    highest, predicted = found.window.highest_power, min(row.window.highest_power for row in found.layers if row.window)
    assert predicted - 1 <= highest == found.highest_safe <= predicted
    assert skipped_steps(2.0 ** (highest - 1)) == 0
    assert skipped_steps(2.0 ** (highest + 2)) > 0
    assert found.recommended == 2.0 ** (highest - 1)


def skipped_steps(scale: float):
    """Of real training steps at a fixed scale, with weights that stay where they are."""
    jit = "trainer.jit_compile=false"  # XLA may keep float32 between the operations it fuses
    settings = net_settings("subclassed", jit, "optimizer.learning_rate=1e-30")
    settings = replace(settings, loss_scale=LossScaleSettings(mode="fixed", initial_scale=scale))
    parts = assemble(RunDefinition(settings), PLATFORM, load_data(settings.data, 0))
    RunStepper(parts).train_to(BATCHES)
    assert int(parts.optimizer.seen_steps) == BATCHES
    return int(parts.optimizer.skipped_steps)


@pytest.mark.slow
def test_a_bfloat16_run_is_examined_as_if_it_were_float16():
    found = diagnosed("sequential", "policy=mixed_bfloat16", batches=1)
    assert found.policy.name == "mixed_float16" != found.settings.policy.name
    assert found.loss_scale == 1.0 and found.recommended is not None
