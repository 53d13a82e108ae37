"""What a diagnosis concludes, and that training never notices it."""

from pathlib import Path

import examined
import keras
import numpy as np
import pytest
from backends import only_on
from examined import PLATFORM, diagnosed, net_settings

from mpt_cli.data.load import load_data
from mpt_cli.diagnose.examination import Examination, ExaminationRequest, RunStepper
from mpt_cli.diagnose.report import config_lines, sentences
from mpt_cli.errors import ConfigError, NumericalError
from mpt_cli.training.assembly import assemble
from mpt_cli.training.checkpoint import collect_state
from mpt_cli.training.program import Program

pytestmark = pytest.mark.slow


def test_weights_are_bit_identical_with_and_without_measuring_between_the_steps():
    words = ("optimizer=adam", "optimizer.learning_rate=1e-2", "trainer.batch_size=100")
    settings = net_settings("subclassed", *words)
    keras.utils.set_random_seed(0)
    plain = assemble(Program(settings), PLATFORM, load_data(settings.data, 0))
    RunStepper(plain).train_to(20)
    keras.utils.set_random_seed(0)
    measured = Examination(Program(settings), PLATFORM, ExaminationRequest(batches=3))
    for step in (0, 7, 14, 20):  # an epoch has 15 steps
        measured.measure_at(step)
    measured.verifier().try_scale(2.0**30)
    expected, found = collect_state(plain.model), collect_state(measured.parts.model)
    assert int(plain.optimizer.seen_steps) == 20 == int(plain.optimizer.applied_steps)
    for name, array in expected.items():
        if not name.startswith("metric/"):
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_where_no_scale_fits_the_layers_to_keep_in_float32_are_named_and_do_help():
    found = diagnosed("torn_apart", batches=2)
    # the gradient of the output of `low` is computed by `gate`, and flushed there as long as that one is in float16
    assert [name.rpartition("/")[2] for name in found.keep_in_float32] == ["low", "gate"]
    assert found.window is not None and not found.window.empty
    at_recommended = next(trial for trial in found.trials if trial.scale == found.recommended)
    assert at_recommended.overflows == 0 and at_recommended.flushed < 0.001
    low, gate = found.keep_in_float32
    assert config_lines(found)[:4] == ["policy:", "  overrides:", f"    {low}: float32", f"    {gate}: float32"]
    assert any("Keep in float32" in text for _, text in sentences(found))


@only_on("tensorflow")
def test_a_loss_that_float32_loses_too_ends_it():
    with pytest.raises(NumericalError, match=r"the loss is (nan|inf) in float32 already, at step 0"):
        diagnosed("lost", batches=1)


@only_on("tensorflow")
def test_steps_beyond_the_end_of_the_run_are_refused():
    with pytest.raises(ConfigError, match=r"--at-steps: must be at most the 345 steps of the run\. Received: 400"):
        diagnosed("sequential", at_steps=(0, 400))


@only_on("tensorflow")
def test_gradients_of_several_steps_have_a_point_each_and_one_window():
    found = diagnosed("sequential", "optimizer.learning_rate=0.2", at_steps=(0, 30), batches=2)
    assert [point.step for point in found.points] == [0, 30]
    assert found.points[1].loss < found.points[0].loss
    assert found.window is not None
    assert found.window.highest_power == min(p.window.highest_power for p in found.points if p.window)
    assert found.verified_point.window.highest_power == found.window.highest_power


PHASES = "~trainer.epochs", "phases=[{epochs: 1, freeze: [hidden]}, {epochs: 2, unfreeze: [hidden]}]"


@only_on("tensorflow")
def test_of_a_run_with_phases_the_first_is_measured():
    found = diagnosed("sequential", *PHASES, at_steps=(0, 5), batches=1)
    assert [layer.name.rpartition("/")[2] for layer in found.layers] == ["head"]
    with pytest.raises(ConfigError, match=r"--at-steps: must be at most the 23 steps of the first phase"):
        diagnosed("sequential", *PHASES, at_steps=(24,))


def test_a_run_with_another_number_of_the_same_layers_keeps_its_names():
    keras.layers.Dense(1)  # counts up Keras's names in this process
    found = diagnosed(f"{Path(examined.__file__)}:unnamed", batches=1)
    assert [layer.name.rpartition("/")[2] for layer in found.layers] == ["dense", "dense_1"]


@only_on("tensorflow")
def test_a_device_that_cannot_do_float16_is_said_without_a_traceback(monkeypatch):
    def refuse(batch, scale=1.0):
        raise ValueError("The precision 'F16_F16_F32' is not supported by dot_general on CPU\nand more")

    settings = net_settings("sequential")
    examination = Examination(Program(settings), PLATFORM, ExaminationRequest(batches=1))
    monkeypatch.setattr(examination, "_in_float16", refuse)
    rule = "policy.name: can't be computed on this device: The precision 'F16_F16_F32' is not supported by dot_general"
    with pytest.raises(ConfigError, match=rule):
        examination.measure_at(0)
